"""Why a server is where it is, or nowhere: its stored request, decided once more on the cloud as it is now."""

from __future__ import annotations

from collections.abc import Sequence

from beside_nova import readers
from beside_nova.decide import NovaOutcome, decide_request
from beside_nova.engine import by_size
from beside_nova.records import NovaInstance
from beside_nova.request import NotJudged
from beside_nova.servers import find_instances, place_requests, requests_of_servers
from beside_nova.site import NovaSite
from beside_nova.state import NovaState
from objects import errors
from objects.base import Object

REQUEST_PREFIX = "req-"


class ServerExplanation(Object, frozen=True, kw_only=True):
    """``host``: where its cell says that it is. ``claimed``: hosts where it has allocations.

    ``fault``: what Nova said last of it. ``not_judged``: conditions of its request that are not judged here; then ``outcome`` is
    None. The outcome is of now, as if the server had no claim.
    """

    server: str
    name: str
    cell: str
    state: str
    host: str
    claimed: tuple[str, ...]
    fault: str
    not_judged: tuple[str, ...] = ()
    outcome: NovaOutcome | None = None


def explain_subject(site: NovaSite, state: NovaState, subject: str) -> list[ServerExplanation]:
    """``subject``: the UUID of a server, or the ID of a request for servers. The state is loaded without their claims.

    Raises NotFound.
    """
    state.load_all()
    servers = _servers_of_request(state, subject) if subject.startswith(REQUEST_PREFIX) else [subject]
    instances = find_instances(state, servers)
    requests = requests_of_servers(site, state, servers)
    if not servers or (not instances and isinstance(requests[servers[0]], NotJudged)):
        raise errors.NotFound(f"Nova knows no {'request' if subject.startswith(REQUEST_PREFIX) else 'server'} {subject}")
    claimed = state.hosts_of_consumers(servers)
    if claimed:
        state.load_all(without=servers)
    flavors = sorted((one for one in state.databases.api.read(readers.list_flavors) if not one.disabled), key=by_size)
    driver, moment = site.make_driver(), state.plan_context()
    explanations: list[ServerExplanation] = []
    for server in servers:
        request, instance = requests[server], instances.get(server)
        outcome = None
        if not isinstance(request, NotJudged):
            [placed] = place_requests(state, [request])
            outcome = decide_request(state.table, driver, moment, placed, 1, flavors)
        explanations.append(
            ServerExplanation(
                server=server,
                name=instance.name if instance is not None else "",
                cell=instance.cell if instance is not None else "",
                state=_state_text(instance),
                host=instance.host if instance is not None else "",
                claimed=tuple(sorted(claimed.get(server, ()))),
                fault=_fault_of(state, instance),
                not_judged=request.reasons if isinstance(request, NotJudged) else (),
                outcome=outcome,
            )
        )
    return explanations


def _servers_of_request(state: NovaState, request_id: str) -> Sequence[str]:
    servers: dict[str, None] = {}
    for cell in state.facts.cells:
        servers |= dict.fromkeys(state.database_of(cell).read(readers.servers_of_request, request_id))
    return list(servers)


def _state_text(instance: NovaInstance | None) -> str:
    if instance is None:
        return "in no cell"
    if instance.ended_at is not None:
        return "deleted"
    return f"{instance.vm_state} ({instance.task_state})" if instance.task_state else instance.vm_state


def _fault_of(state: NovaState, instance: NovaInstance | None) -> str:
    if instance is None:
        return ""
    cell = next(cell for cell in state.facts.cells if cell.name == instance.cell)
    return state.database_of(cell).read(readers.latest_fault, instance.uuid)
