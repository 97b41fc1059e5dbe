"""``GET /superconductor/capacity``: how many more servers of flavors fit. Our own extension of the Compute API."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import falcon

from api.http import call as calls
from api.http.call import Call, send_json
from api.lookup.catalog import Catalog
from api.lookup.scheduler_queries import SchedulerAsker
from api.opts import ApiSettings
from api.servers.accept import Acceptor
from cells.registry import CellRegistry
from db.api.deployment import host_mappings
from db.sql.engine import ApiDatabase
from objects import errors, text
from objects.capacity import Loss, LossKind
from objects.spec import RequestSpec
from rpc.scheduler import FLAVORS_LIMIT

EXCLUSIONS_LIMIT = 1000
"""Maximum number of cells, and of hosts, that a question leaves out."""

PARAMETERS = {"flavor": FLAVORS_LIMIT, "without_cell": EXCLUSIONS_LIMIT, "without_host": EXCLUSIONS_LIMIT} | {
    f"lost_{kind}": 1 for kind in LossKind
}
"""The parameters of the query, which may be repeated, and how often."""


class ServerCapacity:
    """Asks a scheduler for servers of the caller's project, without a group and without hints."""

    def __init__(
        self,
        settings: ApiSettings,
        database: ApiDatabase,
        registry: CellRegistry,
        catalog: Catalog,
        acceptor: Acceptor,
        schedulers: SchedulerAsker,
    ) -> None:
        self._settings = settings
        self._catalog = catalog
        self._database = database
        self._registry = registry
        self._acceptor = acceptor
        self._schedulers = schedulers

    def on_get(self, req: falcon.Request, resp: falcon.Response) -> None:
        call = calls.get_call(req)
        parameters = _read_parameters(req)
        if not parameters["flavor"]:
            raise errors.Invalid("flavor: name one flavor or several")
        cells, hosts = (
            self._resolve_cells(parameters["without_cell"], "without_cell"),
            self._check_hosts(parameters["without_host"], "without_host"),
        )
        specs = [self._build_spec(call, flavor, cells, hosts) for flavor in parameters["flavor"]]
        send_json(resp, {"capacity": self._schedulers.get_capacity(call, specs, self._parse_loss(call, parameters))})

    def _parse_loss(self, call: Call, parameters: Mapping[str, Sequence[str]]) -> Loss | None:
        """What the question assumes to be lost. Raises errors.Invalid for what there is not, and for more than one."""
        losses = [(kind, name) for kind in LossKind for name in parameters[f"lost_{kind}"]]
        if not losses:
            return None
        if len(losses) > 1:
            raise errors.Invalid("lost_zone, lost_rack, lost_host, lost_cell: give one of them")
        [(kind, name)] = losses
        match kind:
            case LossKind.CELL:
                [name] = self._resolve_cells([name], "lost_cell")
            case LossKind.HOST:
                self._check_hosts([name], "lost_host")
            case LossKind.ZONE if name != self._settings.default_availability_zone and not self._catalog.has_zone(name, call):
                raise errors.Invalid(f"lost_zone: zone {name[:80]!r} could not be found")
            case LossKind.RACK if not self._catalog.has_rack(name, call):
                raise errors.Invalid(f"lost_rack: rack {name[:80]!r} could not be found")
        return Loss(kind=kind, name=name)

    def _build_spec(self, call: Call, flavor: str, cells: Sequence[str], hosts: Sequence[str]) -> RequestSpec:
        context = call.context
        return RequestSpec(
            batch_id=context.request_id.removeprefix("req-"),
            request_id=context.request_id,
            project_id=context.project_id,
            user_id=context.user_id,
            name="capacity",
            flavor=self._acceptor.find_flavor(call, flavor, "flavor"),
            ignore_hosts=tuple(hosts),
            excluded_cells=tuple(cells),
        )

    def _resolve_cells(self, names: Sequence[str], field: str) -> list[str]:
        """The uuids of cells that are named by name or uuid. Raises errors.Invalid."""
        known = {name: cell.uuid for cell in self._registry.list_cells() for name in (cell.uuid, cell.name)}
        unknown = next((name for name in names if name not in known), None)
        if unknown is not None:
            raise errors.Invalid(f"{field}: there is no cell {unknown[:80]!r}")
        return [known[name] for name in names]

    def _check_hosts(self, names: Sequence[str], field: str) -> Sequence[str]:
        """The same names. Raises errors.Invalid for one that is in no cell."""
        for name in names:
            if not self._database.read(host_mappings.is_known, name, None):
                raise errors.Invalid(f"{field}: Compute host {name[:80]} could not be found.")
        return names


def _read_parameters(req: falcon.Request) -> dict[str, list[str]]:
    """The values of each parameter. Raises errors.Invalid: one that is not known would be left out of the answer silently."""
    unknown = next((name for name in req.params if name not in PARAMETERS), None)
    if unknown is not None:
        raise errors.Invalid(f"{unknown[:80]}: is no parameter here; there are {', '.join(PARAMETERS)}")
    parameters = {name: req.get_param_as_list(name) or [] for name in PARAMETERS}
    for name, values in parameters.items():
        if len(values) > PARAMETERS[name]:
            raise errors.Invalid(f"{name}: may be given {PARAMETERS[name]} times at most")
        if not all(value and text.is_safe(value) for value in values):
            raise errors.Invalid(f"{name}: is empty or has a control character")
    return parameters
