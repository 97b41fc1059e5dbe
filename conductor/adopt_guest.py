"""Adopt a guest whose record is lost: restore its row in the cell, and the API level's records of the server."""

from __future__ import annotations

from cells.instance_mapping import adopt_rows as adopt_rows
from conductor.audit import mend
from conductor.audit.finding import Finding
from conductor.audit.places import Places
from db.api.servers import addresses, mappings
from db.audit import cell_rows, operations, servers
from db.audit.servers import Record
from db.cell import guest_adoption, tasks, unknown_guests
from db.cell.guest_adoption import Lost, Told
from db.cell.unknown_guests import Reported
from objects import errors
from objects.base import Object
from objects.flavor import Flavor
from objects.instance import Server, State
from objects.lifecycle import LARGEST_LEARNED_TASK, Refused
from objects.spec import Image, RequestSpec
from objects.unknown_guest import UnknownGuest


class Owner(Object, frozen=True, kw_only=True):
    """The owner of a server that both databases have lost: given by the operator, or as its host says."""

    project_id: str
    user_id: str


class Adopted(Object, frozen=True, kw_only=True):
    """A guest that was adopted, as its agent had reported it. ``from_host``: what no database knew, so its host's word counts."""

    cell_uuid: str
    reported: Reported
    from_host: tuple[str, ...] = ()


def list_unknown(places: Places) -> dict[str, list[Reported]]:
    """The unknown guests of every cell that answers, by cell UUID."""
    guests_by_cell = {cell.uuid: places.read_cell(cell.uuid, unknown_guests.list_all) for cell in places.building_cells}
    return {uuid: guests for uuid, guests in guests_by_cell.items() if guests is not None}


def adopt_guest(places: Places, uuid: str, host: str | None, owner: Owner | None) -> Adopted:
    """Make the reported guest the guest of this instance.

    May be repeated. Raises NotFound if no agent reports such a guest, Conflict with advice if the records forbid it, and
    CellUnavailable if a cell that must be asked does not answer.
    """
    cell_uuid, reported = _find_reported(places, uuid, host)
    record = places.api.read(servers.read_records, [uuid])[1].get(uuid)
    _check_mapping(places, uuid, cell_uuid, record)
    rows = places.read_cell(cell_uuid, cell_rows.read_rows, [uuid])
    from_host: list[str] = []
    lost = _lost_record(places, reported, record, owner, from_host) if rows is not None and uuid not in rows.rows else None
    task_seen = _seen_task(record, next(iter(places.api.read(mappings.of_bodies, [uuid])), None))
    outcome = places.write_cell(cell_uuid, guest_adoption.adopt_guest, reported, lost, task_seen, places.api.current_time())
    if outcome is None:
        raise errors.CellUnavailable(places.unknown.get(cell_uuid, f"cell {places.name_of(cell_uuid)} does not answer"))
    if isinstance(outcome, Refused) and not outcome.done:
        raise errors.Conflict(f"The guest of {uuid} on host {reported.host} cannot be adopted: {outcome.reason}")
    if record is None or record.cell_uuid is None:
        places.call_cell(cell_uuid, lambda cell: adopt_rows(places.ledger, cell, [uuid]))
    _connect_interfaces(places, cell_uuid, reported, from_host)
    places.catch_up(cell_uuid)
    mend.claim_resources(places, cell_uuid, [Finding(kind="", key=uuid, what="", scope=cell_uuid)])
    return Adopted(cell_uuid=cell_uuid, reported=reported, from_host=tuple(from_host))


def _seen_task(record: Record | None, server: Server | None) -> Told:
    if record is None or server is None:
        return Told()
    return Told(
        seen=record.seen,
        number=server.task_number,
        power=server.power,
        state=server.task_state,
        fault=server.task_fault,
    )


def _connect_interfaces(places: Places, cell_uuid: str, reported: Reported, from_host: list[str]) -> None:
    """Note the interfaces that the guest has. Its server gets addresses that the API database has lost, if nobody has them.

    An agent of an older release does not report them: then they are those of the server.
    """
    guest = reported.guest
    server = next(iter(places.api.read(mappings.of_bodies, [guest.uuid])), None)
    if server is None or server.deleted:
        return
    known = places.api.read(addresses.ports_of, [server.uuid]).get(server.uuid, ())
    if guest.mac_addresses - {port.mac for port in known}:
        places.api.write(addresses.take_back, {server.uuid: guest.ports}, places.api.current_time())
        taken = places.api.read(addresses.ports_of, [server.uuid]).get(server.uuid, ())
        from_host += [f"interface {port.mac}" for port in taken if port not in known]
        known = taken
    own_ports = [port for port in known if port.mac in guest.mac_addresses] if guest.power else known
    places.write_cell(cell_uuid, tasks.connect_interfaces, guest.uuid, own_ports)


def _find_reported(places: Places, uuid: str, host: str | None) -> tuple[str, Reported]:
    matches = [
        (cell.uuid, reported)
        for cell in places.building_cells
        for reported in places.read_cell(cell.uuid, unknown_guests.list_all, [uuid]) or []
        if host in (None, reported.host)
    ]
    if len(matches) > 1:
        hosts = ", ".join(sorted(reported.host for _, reported in matches))
        raise errors.Conflict(f"Hosts {hosts} have a guest of {uuid} each: choose one with --host")
    if not matches:
        where = f" on host {host}" if host else ""
        raise errors.NotFound(f"No agent reports an unknown guest of {uuid}{where}: see 'superconductor guest list'")
    return matches[0]


def _check_mapping(places: Places, uuid: str, cell_uuid: str, record: Record | None) -> None:
    """Raises Conflict if the server was deleted or is in another cell, CellUnavailable if a silent cell may have it."""
    if record is not None and record.deleted:
        raise errors.Conflict(f"Server {uuid} was deleted by its user: remove the guest on its host instead")
    if record is not None and record.cell_uuid == cell_uuid:
        return
    if record is not None and record.cell_uuid is not None:
        raise errors.Conflict(f"Server {uuid} is mapped to cell '{places.name_of(record.cell_uuid)}': see 'superconductor verify'")
    for reason in places.unknown.values():
        raise errors.CellUnavailable(f"{reason}; it might have a record of {uuid}")
    for other in places.cells:
        rows = places.read_cell(other, cell_rows.read_rows, [uuid]) if other != cell_uuid else None
        row = rows.rows.get(uuid) if rows else None
        if row is not None and row.state is not State.STAGED:
            raise errors.Conflict(
                f"Cell '{places.name_of(other)}' has a record of {uuid}, {row.state}: see 'superconductor verify'"
            )


def _lost_record(places: Places, reported: Reported, record: Record | None, owner: Owner | None, from_host: list[str]) -> Lost:
    """The lost record, from the API database or else from ``owner`` and the guest. Raises Conflict if no owner is known.

    What only the guest's host says is added to ``from_host``.
    """
    guest = reported.guest
    server = next(iter(places.api.read(mappings.of_bodies, [guest.uuid])), None)
    home = places.api.read(mappings.get, guest.server_uuid) if server is None and guest.server_uuid else None
    batch_id = record.batch_id if record else guest.batch_id or guest.uuid
    spec = places.api.read(mappings.specs_by_batch, [batch_id]).get(batch_id)
    if spec is None:
        from_host += ["size", "image"]
        spec = _rebuilt_spec(reported, batch_id, _find_owner(server or home, owner, guest, from_host))
    if server is not None:
        return Lost(
            spec=spec,
            name=server.name,
            launch_index=server.launch_index,
            created_at=server.created_at,
            server_uuid=server.own_uuid and server.uuid,
            turn=server.turn,
        )
    from_host.append(f"name {guest.name!r}")
    return Lost(
        spec=spec,
        name=guest.name,
        created_at=places.api.current_time(),
        server_uuid=guest.server_uuid or None,
        turn=_next_turn(places, guest) if guest.server_uuid else 0,
    )


def _next_turn(places: Places, guest: UnknownGuest) -> int:
    """Which body of its server this is: a later one than those that are known."""
    others = [each.guest for found in list_unknown(places).values() for each in found if each.guest.uuid != guest.uuid]
    of_server = [other for other in others if guest.server_uuid in (other.server_uuid, other.uuid)]
    numbers = [other.last_task for other in of_server if other.last_task <= LARGEST_LEARNED_TASK]
    return places.api.read(operations.next_turn, guest.server_uuid, numbers)


def _find_owner(server: Server | None, owner: Owner | None, guest: UnknownGuest, from_host: list[str]) -> Owner:
    """An operator's word counts before the host's."""
    if server is not None:
        return Owner(project_id=server.project_id, user_id=server.user_id)
    if owner is not None:
        return owner
    if not guest.project_id:
        text = f"No database knows whose server {guest.uuid} is: name its project and its user with --project and --user"
        raise errors.Conflict(text)
    from_host += [f"project {guest.project_id}", f"user {guest.user_id}"]
    return Owner(project_id=guest.project_id, user_id=guest.user_id)


def _rebuilt_spec(reported: Reported, batch_id: str, owner: Owner) -> RequestSpec:
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
