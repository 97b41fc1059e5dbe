"""What is kept with a guest, in the metadata of its domain."""

from __future__ import annotations

import json

import msgspec

from compute.driver import Guest, GuestSpec
from objects.base import Object


class KeptGuest(Object, frozen=True, kw_only=True):
    """What is kept with a guest in its domain: without the tenant's metadata, and without secrets.

    ``host``: of the agent that made it. ``image_properties``: those of the image and of the request together. ``config_drive``:
    whether it has one.
    """

    guest: Guest
    spec: GuestSpec
    host: str
    image_properties: dict[str, str] = msgspec.field(default_factory=dict)
    config_drive: bool = False

    def as_text(self) -> str:
        """As ASCII text without any character that XML cannot hold."""
        bare = msgspec.structs.replace(
            self,
            guest=msgspec.structs.replace(self.guest, metadata={}),
            spec=msgspec.structs.replace(self.spec, metadata={}),
        )
        return json.dumps(msgspec.to_builtins(bare), separators=(",", ":"))
