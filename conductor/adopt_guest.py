"""Adopt a guest whose record is lost: restore its row in the cell, and the API level's records of the server."""

from __future__ import annotations

from cells.instance_mapping import adopt as adopt_rows
from conductor.audit import mend
from conductor.audit.finding import Finding
from conductor.audit.places import Places
from db.api import mappings
from db.audit import cell_rows, servers
from db.audit.servers import Record
from db.cell import guest_adoption, unknown_guests
from db.cell.guest_adoption import Lost
from db.cell.unknown_guests import Reported
from objects import errors
from objects.base import Object
from objects.flavor import Flavor
from objects.instance import Server, State
from objects.lifecycle import Refused
from objects.spec import Image, RequestSpec


class Owner(Object, frozen=True, kw_only=True):
    """The owner of a server, given by the operator if both databases have lost it."""

    project_id: str
    user_id: str


def listed(places: Places) -> dict[str, list[Reported]]:
    """The unknown guests of every cell that answers, by cell UUID."""
    asked = {cell.uuid: places.ask(cell.uuid, unknown_guests.list_all) for cell in places.builders}
    return {uuid: found for uuid, found in asked.items() if found is not None}


def adopt(places: Places, uuid: str, host: str | None, owner: Owner | None) -> tuple[str, Reported]:
    """Make the reported guest the guest of this instance; returns the cell UUID and the report.

    May be repeated. Raises NotFound if no agent reports such a guest, Conflict with advice if the records forbid it, and
    CellUnavailable if a cell that must be asked does not answer.
    """
    cell_uuid, reported = _reported(places, uuid, host)
    record = places.api.read(servers.records, [uuid])[1].get(uuid)
    _check_mapping(places, uuid, cell_uuid, record)
    rows = places.ask(cell_uuid, cell_rows.rows, [uuid])
    lost = _lost(places, reported, record, owner) if rows is not None and uuid not in rows.rows else None
    now = places.api.now()
    outcome = places.change(cell_uuid, guest_adoption.adopt, reported, lost, record.seen if record else 0, now)
    if outcome is None:
        raise errors.CellUnavailable(places.unknown.get(cell_uuid, f"cell {places.name(cell_uuid)} does not answer"))
    if isinstance(outcome, Refused) and not outcome.done:
        raise errors.Conflict(f"The guest of {uuid} on host {reported.host} cannot be adopted: {outcome.reason}")
    if record is None or record.cell_uuid is None:
        places.on(cell_uuid, lambda cell: adopt_rows(places.ledger, cell, [uuid]))
    places.catch_up(cell_uuid)
    mend.claim(places, cell_uuid, [Finding(kind="", key=uuid, what="", scope=cell_uuid)])
    return cell_uuid, reported


def _reported(places: Places, uuid: str, host: str | None) -> tuple[str, Reported]:
    found = [
        (cell.uuid, reported)
        for cell in places.builders
        for reported in places.ask(cell.uuid, unknown_guests.list_all, [uuid]) or []
        if host in (None, reported.host)
    ]
    if len(found) > 1:
        hosts = ", ".join(sorted(reported.host for _, reported in found))
        raise errors.Conflict(f"Hosts {hosts} have a guest of {uuid} each: choose one with --host")
    if not found:
        where = f" on host {host}" if host else ""
        raise errors.NotFound(f"No agent reports an unknown guest of {uuid}{where}: see 'superconductor guest list'")
    return found[0]


def _check_mapping(places: Places, uuid: str, cell_uuid: str, record: Record | None) -> None:
    """Raises Conflict if the server was deleted or is in another cell, CellUnavailable if a silent cell may have it."""
    if record is not None and record.deleted:
        raise errors.Conflict(f"Server {uuid} was deleted by its user: remove the guest on its host instead")
    if record is not None and record.cell_uuid == cell_uuid:
        return
    if record is not None and record.cell_uuid is not None:
        raise errors.Conflict(f"Server {uuid} is mapped to cell '{places.name(record.cell_uuid)}': see 'superconductor verify'")
    for reason in places.unknown.values():
        raise errors.CellUnavailable(f"{reason}; it might have a record of {uuid}")
    for other in places.cells:
        rows = places.ask(other, cell_rows.rows, [uuid]) if other != cell_uuid else None
        row = rows.rows.get(uuid) if rows else None
        if row is not None and row.state is not State.STAGED:
            raise errors.Conflict(f"Cell '{places.name(other)}' has a record of {uuid}, {row.state}: see 'superconductor verify'")


def _lost(places: Places, reported: Reported, record: Record | None, owner: Owner | None) -> Lost:
    """The lost record, from the API database or else from the guest and ``owner``. Raises Conflict if no owner is known."""
    guest = reported.guest
    server = next(iter(places.api.read(mappings.of_bodies, [guest.uuid])), None)
    batch_id = record.batch_id if record else guest.batch_id or guest.uuid
    spec = places.api.read(mappings.specs, [batch_id]).get(batch_id)
    if spec is None:
        spec = _rebuilt(reported, batch_id, _owner(server, owner, guest.uuid))
    if server is not None:
        return Lost(
            spec=spec,
            name=server.name,
            launch_index=server.launch_index,
            created_at=server.created_at,
            server_uuid=server.own_uuid and server.uuid,
            turn=server.turn,
            power=server.power,
            task_number=server.task_number,
        )
    return Lost(spec=spec, name=guest.name, created_at=places.api.now())


def _owner(server: Server | None, owner: Owner | None, uuid: str) -> Owner:
    if server is not None:
        return Owner(project_id=server.project_id, user_id=server.user_id)
    if owner is None:
        raise errors.Conflict(f"No database knows whose server {uuid} is: name its project and its user with --project and --user")
    return owner


def _rebuilt(reported: Reported, batch_id: str, owner: Owner) -> RequestSpec:
    """The request as far as the guest's own record shows it: size and image."""
    guest = reported.guest
    flavor = Flavor(
        flavor_id="adopted",
        name="adopted",
        vcpus=max(0, guest.vcpus),
        memory_mb=max(0, guest.memory_mb),
        root_gb=max(0, guest.disk_gb),
        is_public=False,
        extra_specs={f"resources:{name}": str(amount) for name, amount in sorted(guest.resources.items())},
    )
    return RequestSpec(
        batch_id=batch_id,
        request_id=f"req-{batch_id}",
        project_id=owner.project_id,
        user_id=owner.user_id,
        name=guest.name,
        flavor=flavor,
        image=Image(id=guest.image_id) if guest.image_id else None,
    )
