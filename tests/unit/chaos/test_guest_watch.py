"""The watch of ``make chaos`` over guests and disks sees a server that runs twice, and a disk that has lost what was written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from chaos.guest_watch import GuestWatch
from chaos.schedule import Kind
from chaos.weather import Incident, Weather
from cli.standalone.demo.evidence import Evidence, InstanceState
from cli.standalone.demo.hosts import SimulatedFindings
from compute.disks import Disk, Disks, disks_path, write_to_disk
from compute.driver import Guest
from compute.journal import Journal
from compute.simulated import journal_path
from deploy.local.shape import Shape
from objects.instance import Instance, Server, State
from objects.operation import Operation, OperationKind, OperationState, Outcome
from objects.task import Power

A, B = "cell1-host1", "cell1-host2"
SHAPE = Shape(agents=2)
CALM = Weather(SHAPE, ())


def guest(uuid: str, power: Power = Power.ON) -> Guest:
    common: dict[str, Any] = {"fence": 1, "attempt": 1, "builder": "b", "vcpus": 1, "memory_mb": 1, "disk_gb": 0}
    return Guest(uuid=uuid, name="n", node="h", server_uuid="s", power=power, **common)


def put(path: Path, host: str, *guests: Guest) -> None:
    journal = Journal(journal_path(str(path), host))
    for each in guests:
        journal.add_guest(each)
    journal.close()


def put_disk(path: Path, host: str, uuid: str, *, image: str = "i", writes: int = 1) -> None:
    disks = Disks(disks_path(str(path), host))
    disks.open()
    disks.create(uuid, Disk(server_uuid="s", image_id=image, writes=writes))


def watch(path: Path) -> GuestWatch:
    return GuestWatch(SimulatedFindings(path, (A, B)))


@pytest.mark.parametrize(("power", "looks", "number"), [(Power.ON, 2, 1), (Power.OFF, 2, 0), (Power.ON, 1, 0)])
def test_two_bodies_seen_running_twice_ran_at_once(tmp_path: Path, power: Power, looks: int, number: int) -> None:
    put(tmp_path, A, guest("s", power))
    put(tmp_path, B, guest("twin"))
    watched = watch(tmp_path)
    for _ in range(looks):
        watched.watch_once()
    assert len(list(watched.list_doubles(CALM))) == number


def test_one_body_on_two_hosts_is_no_double(tmp_path: Path) -> None:
    put(tmp_path, A, guest("s"))
    put(tmp_path, B, guest("s"))
    watched = watch(tmp_path)
    watched.watch_once()
    watched.watch_once()
    assert list(watched.list_doubles(CALM)) == []


def test_only_long_host_silence_excuses_a_second_guest(tmp_path: Path) -> None:
    put(tmp_path, A, guest("s"))
    put(tmp_path, B, guest("twin"))
    watched = watch(tmp_path)
    watched.watch_once()
    watched.watch_once()
    at = watched.doubles["s"].at
    long, brief = (Incident(kind=Kind.STOP, target=A, began=at - seconds, ended=at) for seconds in (30.0, 5.0))
    assert list(watched.list_doubles(Weather(SHAPE, [long]))) == []
    assert len(list(watched.list_doubles(Weather(SHAPE, [brief])))) == 1


def evidence(kind: OperationKind | None, outcome: Outcome = Outcome.DONE) -> Evidence:
    """At rest the server is the twin on B, after a move of this kind; None: itself, on A."""
    body, host = ("twin", B) if kind else ("s", A)
    server = Server(
        uuid="s",
        name="n",
        batch_id="b",
        project_id="p",
        user_id="u",
        created_at=1.0,
        updated_at=1.0,
        state="active",
        own_uuid=body if kind else None,
    )
    values: dict[str, Any] = {"charged": {}, "claimed": {}, "memory_used": {}, "guests": {}, "requests": 0, "claims": {}}
    rows = (InstanceState(cell="cell1", instance=Instance(uuid=body, state=State.ACTIVE, fence=1, host=host)),)
    history: tuple[Operation, ...] = ()
    if kind is not None:
        history = (
            Operation(
                uuid="o",
                server_uuid="s",
                kind=kind,
                state=OperationState.ENDED,
                number=4,
                power_before=Power.ON,
                project_id="p",
                user_id="u",
                request_id="r",
                created_at=1.0,
                updated_at=1.0,
                deadline=2.0,
                source_uuid="s",
                twin_uuid="twin",
                outcome=outcome,
            ),
        )
    return Evidence(servers=(server,), rows=rows, history=history, **values)


@pytest.mark.parametrize(("kind", "number"), [(OperationKind.MIGRATE, 1), (OperationKind.RESIZE, 1), (OperationKind.EVACUATE, 0)])
def test_a_moved_disk_has_all_writes_unless_evacuated(tmp_path: Path, kind: OperationKind, number: int) -> None:
    put_disk(tmp_path, A, "s", writes=5)
    watched = watch(tmp_path)
    watched.watch_once()
    put_disk(tmp_path, B, "twin", writes=4)
    assert len(list(watched.list_lost_disks(evidence(kind)))) == number
    write_to_disk(str(tmp_path), B, "twin")
    assert list(watched.list_lost_disks(evidence(kind))) == []


@pytest.mark.parametrize(("image", "number"), [("i", 1), ("another", 0)])
def test_an_unmoved_disk_loses_writes_only_by_rebuild(tmp_path: Path, image: str, number: int) -> None:
    put_disk(tmp_path, A, "s", writes=5)
    watched = watch(tmp_path)
    watched.watch_once()
    put_disk(tmp_path, A, "s", image=image, writes=1)
    assert len(list(watched.list_lost_disks(evidence(None)))) == number
