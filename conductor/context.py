"""What the parts of a super conductor have in common."""

from __future__ import annotations

from cells.registry import CellRegistry
from conductor.quarantine import Quarantine
from conductor.restored import RestoreWatch
from conductor.signals import NoSignals, WorkSignals
from db.api.claims.claims import Ledger
from db.api.rows.incarnation import Known
from images.store import FolderStore
from service.vault import Vault


class ConductorContext:
    """The connections of one super conductor, its dead letters, its keys and its signals."""

    def __init__(
        self,
        ledger: Ledger,
        registry: CellRegistry,
        *,
        restored: RestoreWatch | None = None,
        vault: Vault | None = None,
        images: FolderStore | None = None,
        signals: WorkSignals | None = None,
        aside: Quarantine | None = None,
    ) -> None:
        """``restored``: knows which incarnation of the API database was compared with the cells; None: any counts as compared.

        ``images``: the image store; None: there is none, or this process cannot read it. ``signals``: None: nobody listens.
        """
        self.ledger = ledger
        self.database = ledger.database
        self.registry = registry
        self.restored = restored
        self.vault = vault or Vault()
        self.images = images
        self.signals: WorkSignals = signals or NoSignals()
        self.aside = aside or Quarantine(ledger.database, "api")

    @property
    def known(self) -> Known | None:
        """The incarnation that leases must match; None: any, or none while the database ``is_held``."""
        return self.restored.known if self.restored is not None else None

    @property
    def is_held(self) -> bool:
        """Whether the API database may be older than its cells: it has yet to be compared with them."""
        return self.restored is not None and self.restored.known is None
