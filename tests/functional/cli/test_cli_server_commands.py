"""``server``, ``explain`` and ``status`` against an API that really listens."""

from __future__ import annotations

import base64
import json
import socket
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import sqlalchemy as sa

from api.opts import ApiSettings
from cli.shared.http import ApiClient
from cli.shared.waiting import POLL_INTERVAL_S
from conductor.build import Builder
from conductor.context import ConductorContext
from conductor.guest_reader import GuestReader
from conductor.roll_back import BatchSweep
from db import dead_letters, processes, secrets
from db.api.claims import decisions
from db.api.deployment import cell_mappings, silences
from db.api.deployment.silences import Silence
from db.api.operations import accepting, operations
from db.api.operations.accepting import NewOperation
from db.api.queue import leases
from db.api.servers import images, mappings
from db.cell import services
from db.cell.services import Beat
from db.cell.tables import cell_processes
from images.store import FolderStore
from objects import errors
from objects.cell import CellMapping
from objects.context import RequestContext
from objects.decision import Candidate, DecidedInstance, Decision, FilterCount
from objects.diagnostics import Diagnostics, DiskDiagnostics, GuestState
from objects.instance import FailureClass
from objects.machine import Machine
from objects.operation import OperationKind
from objects.process import AGENT_BINARY, CONDUCTOR_BINARY, About, Process
from objects.relaxation import Asked, Relaxation, RelaxationPair
from objects.spec import BootSecrets
from rpc.scheduler import SchedulerClient
from service.periodic import Periodic, wait_until
from service.vault import Vault, new_key
from tests.support import fleet
from tests.support.api import CELL1_UUID, IMAGE, Front, endpoint_of, serve_http
from tests.support.cell_databases import closed_port, silent_port
from tests.support.commands import Operator, Shell
from tests.support.deciding import add_hosts, decide, scheduler_of
from tests.support.fronts import front_fixture

VAULT = Vault([new_key()])
DEAD = Process(uuid="dead", binary=CONDUCTOR_BINARY, host="c1", about=About(), started_at=0.0, last_seen=0.0, age=0.0)
BOOT = f"server boot web --flavor m1.small --image {IMAGE}"


front = front_fixture(ApiSettings(max_limit=5), VAULT)


stocked = front_fixture(vault=VAULT, images=True)


@pytest.fixture
def operator(front: Front, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[Operator]:
    with typing_at(front, tmp_path, capsys) as operator:
        yield operator


@contextmanager
def typing_at(front: Front, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[Operator]:
    with serve_http(front, vault=VAULT) as service:
        yield Operator(Shell(tmp_path, capsys), endpoint_of(service))


def test_last_known_rows_are_marked_beside_the_output(front: Front, operator: Operator) -> None:
    """Once, and not in the output that scripts read."""
    front.boot(max_count=7)
    front.hand_over()
    front.database.write(silences.begin_silences, [Silence(cell_uuid=CELL1_UUID, since=1_700_000_000.0, reason="r")])
    listed = operator("server list -f json")
    assert (listed.status, len(json.loads(listed.out))) == (0, 7)
    assert listed.err == "Shown as last known: servers in cell1 since 2023-11-14T22:13:20Z\n"


class WrittenConsoles(GuestReader):
    """Every guest has written two lines, one of them in order to mislead."""

    def console_output(self, context: RequestContext, server_uuid: str, lines: int | None, timeout: float) -> str:
        return "ready\nlogin: \u202eroot\x1b[2J\n"


def test_a_console_is_printed_without_terminal_controls(front: Front, operator: Operator) -> None:
    front.doorbells.guests = WrittenConsoles(front.database, front.registry, 60.0)
    front.boot()
    assert operator.done("server console web") == "ready\nlogin: \\u202eroot[2J\n"
    assert operator.done("server console web --lines 1") == "login: \\u202eroot[2J\n"
    assert operator("server console web --lines 0").status == 2
    assert operator("server console web --lines 1 --attach").status == 2


class CountedGuests(GuestReader):
    """Every guest runs, and has read from its disk."""

    def diagnostics(self, context: RequestContext, server_uuid: str, timeout: float) -> Diagnostics:
        return Diagnostics(state=GuestState.RUNNING, memory_mb=512, disks=(DiskDiagnostics(device="vda", read_bytes=7),))


def test_diagnostics_are_shown_to_people_and_programs(front: Front, operator: Operator) -> None:
    front.doorbells.guests = CountedGuests(front.database, front.registry, 60.0)
    front.boot()
    shown = operator.json("server diagnostics web")
    assert (shown["state"], shown["uptime"], shown["memory_details"]) == ("running", None, {"maximum": 512, "used": None})
    assert shown["disk_details"][0]["read_bytes"] == 7
    assert "'read_bytes': 7" in operator.done("server diagnostics web")


def test_a_console_is_attached_to_a_terminal_only(front: Front, operator: Operator) -> None:
    """Nothing is asked of the API before."""
    assert "--attach needs a terminal" in operator("server console none --attach").err
    front.boot()
    assert "Unavailable console type serial" in operator("server console web --url serial").err


def test_boot_shows_every_server_of_the_request(front: Front, operator: Operator, tmp_path: Path) -> None:
    """With all that was asked for, and none of an earlier request of the same name."""
    (tmp_path / "data").write_bytes(b"#cloud-config\n")
    operator.done(BOOT)
    line = (
        f"{BOOT} --max 3 --property a=b --property c=d=e --tag t --hint k=v --hint k=w --user-data {tmp_path}/data --description D"
    )
    servers = operator.json(line)
    assert [(server["Name"], server["Status"]) for server in servers] == [
        ("web-1", "BUILD"),
        ("web-2", "BUILD"),
        ("web-3", "BUILD"),
    ]
    assert sorted(server["ID"] for server in servers) == sorted(front.uuids()[1:])
    stored = front.database.read(mappings.get, servers[0]["ID"])
    assert stored is not None
    spec = front.database.read(mappings.specs_by_batch, [stored.batch_id])[stored.batch_id]
    assert (spec.num_instances, spec.scheduler_hints) == (3, {"k": ("v", "w")})
    assert (spec.properties.metadata, spec.properties.tags, spec.properties.description) == ({"a": "b", "c": "d=e"}, ("t",), "D")
    sealed = front.database.read(secrets.of_request, stored.batch_id)
    assert sealed is not None
    assert VAULT.open(stored.batch_id, sealed) == BootSecrets(user_data="I2Nsb3VkLWNvbmZpZwo=")


def test_boot_can_wait_until_the_servers_run(front: Front, operator: Operator) -> None:
    """And fails, with the reason in the table, if one did not come to that."""
    run = threading.Thread(target=_build_all, args=(front, 2))
    run.start()
    servers = operator.json(f"{BOOT} --max 2 --wait")
    run.join()
    assert [server["Status"] for server in servers] == ["ACTIVE", "ACTIVE"]
    assert [server["Host"] for server in servers] == ["h1", "h1"]

    fail = threading.Thread(target=_bury_one, args=(front,))
    fail.start()
    outcome = operator(f"{BOOT} --wait -f json")
    fail.join()
    assert outcome.status == 1
    assert json.loads(outcome.out)[0]["Fault"] == "No valid host was found."


def test_boot_can_wait_until_the_roll_back_ends(front: Front, operator: Operator) -> None:
    """One server of a batch that stands or falls together fails after the other is ACTIVE."""
    run = threading.Thread(target=_fail_second, args=(front,))
    run.start()
    outcome = operator(f"{BOOT} --max 2 --all-or-nothing --wait -f json")
    run.join()
    assert outcome.status == 1
    first, second = json.loads(outcome.out)
    assert (first["Status"], second["Status"]) == ("ERROR", "ERROR")
    assert first["Fault"].startswith(f"Rolled back: server web-2 ({second['ID']}) of its all-or-nothing batch failed: Build of ")


def _fail_second(front: Front) -> None:
    assert wait_until(lambda: front.database.read(mappings.measure_queue).depth == 2, 90.0)
    first, second = front.uuids()
    front.hand_over()
    front.activate(first)
    front.accept(second)
    front.fail(second, kind=FailureClass.REQUEST)
    front.follow_feed()
    time.sleep(2 * POLL_INTERVAL_S)  # it is seen so, and waited for
    BatchSweep(front.database, front.registry, idle=0.0).decide_batches()
    assert front.get(f"/v2.1/servers/{first}").json["server"]["status"] == "BUILD"
    front.destroyed(first)
    front.follow_feed()


def _build_all(front: Front, count: int) -> None:
    assert wait_until(lambda: front.database.read(mappings.measure_queue).depth == count, 90.0)
    front.hand_over()
    for server in front.uuids():
        front.activate(server)
    front.follow_feed()


def _bury_one(front: Front) -> None:
    assert wait_until(lambda: front.database.read(mappings.measure_queue).depth == 1, 90.0)
    front.bury("No valid host was found.")


def test_list_follows_the_pages_to_the_end(front: Front, operator: Operator) -> None:
    """Or as far as it is told."""
    front.boot("web", max_count=12)
    front.boot("db", headers={"X-Project-Id": "p2"})
    assert sorted(server["ID"] for server in operator.json("server list --all-projects")) == sorted(front.uuids())
    assert len(operator.json("server list")) == 12
    assert len(operator.json("server list --limit 7")) == 7
    assert [server["Name"] for server in operator.json("server list --project p2")] == ["db"]
    assert [server["Name"] for server in operator.json("server list --name=-3$")] == ["web-3"]
    assert operator.json("server list --status error --host h1") == []
    assert operator.json("server list --long --name=-3$")[0]["Flavor"] == "m1.small"


def test_show_takes_a_name_or_an_id(front: Front, operator: Operator) -> None:
    """A name that several servers have is refused, and so is one that none has."""
    server = front.boot("a.c", metadata={"k": "v"})
    front.boot("abc")
    assert operator.json("server show a.c")["id"] == operator.json(f"server show {server}")["id"] == server
    assert operator.json("server show a.c")["metadata"] == {"k": "v"}
    assert "k=v" in operator.done("server show a.c")
    front.boot("abc")
    assert "2 servers are called 'abc'" in operator.refused("server show abc")
    assert "no server 'nobody'" in operator.refused("server show nobody")


def test_show_begins_with_what_matters(front: Front, operator: Operator) -> None:
    """People see no more than that without --all; programs see all, and may choose."""
    front.boot("web", metadata={"k": "v"})
    front.bury("No valid host was found.")
    lines = [line.split("|")[1:3] for line in operator.done("server show web").splitlines() if line.startswith("| ")][1:]
    fields = [field.strip() for field, _ in lines]
    assert fields[:4] == ["name", "id", "status", "fault"]
    assert [value.strip() for _, value in lines][2:4] == ["ERROR", "No valid host was found."]
    assert "m1.small (1 vCPU, 2048 MiB, 20 GiB)" in [value.strip() for _, value in lines]
    assert "accessIPv4" not in fields
    assert "accessIPv4" in operator.done("server show web --all")
    assert "accessIPv4" in operator.done("server show web -c accessIPv4")
    told = operator.json("server show web")
    assert list(told)[:4] == fields[:4]
    assert told["accessIPv4"] == ""


def test_images_go_by_name_in_the_store(stocked: Front, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Otherwise, and for flavors, the line says where names are found."""
    with typing_at(stocked, tmp_path, capsys) as operator:
        store = FolderStore(tmp_path / "images")
        (tmp_path / "disk").write_bytes(bytes(1024))
        added = store.add_image(tmp_path / "disk", name="debian 12", image_id=str(uuid.uuid4()))
        stocked.database.write(images.add_images, [added.to_stored("")])
        operator.done("server boot web --flavor m1.small --image 'debian 12'")
        assert operator.json("server show web")["image"]["id"] == added.id
        assert "No image is named 'nothing': 'superconductor image list'" in operator.refused(
            "server create web --flavor m1.small --image nothing"
        )
        other = store.add_image(tmp_path / "disk", name="debian 12", image_id=str(uuid.uuid4()))
        stocked.database.write(images.add_images, [other.to_stored("")])
        assert "2 images are named 'debian 12': give an id" in operator.refused(
            "server boot web --flavor m1.small --image 'debian 12'"
        )
        refused = operator.refused(f"server boot web --flavor huge --image {IMAGE}")
        assert "There is no flavor 'huge' for this project; see 'superconductor flavor list'." in refused


def test_delete_goes_on_after_a_refusal(front: Front, operator: Operator) -> None:
    """One line for each that could not be deleted, and a status that says so."""
    first, second = front.boot("one"), front.boot("two")
    outcome = operator(f"server delete one nobody {second} --wait")
    assert outcome.status == 1
    assert outcome.err == "superconductor: There is no server 'nobody' in this project.\n"
    assert front.uuids() == []
    assert first != second


def test_a_dry_run_shows_hosts_and_boots_nothing(front: Front, operator: Operator) -> None:
    """Text and a table for people, rows for programs; the exit status says whether all servers would be placed."""
    add_hosts(front, [fleet.node(f"h{n}", vcpus=1 + n) for n in range(3)])
    with scheduler_of(front):
        rows = operator.json(f"{BOOT} --min 2 --dry-run")
        assert [(row["Name"], row["Cell"], row["Host"], row["Zone"]) for row in rows] == [
            ("web-1", "cell1", "h2", "nova"),
            ("web-2", "cell1", "h1", "nova"),
        ]
        assert rows[0]["Score"] == pytest.approx(sum(rows[0]["Weighers"].values()), abs=1e-3)
        text = operator.done(f"{BOOT} --dry-run")
        for part in ("nothing was booted", "All servers would find hosts", "CoreFilter", "h2", "RAMWeigher"):
            assert part in text, part
        outcome = operator(f"{BOOT} --min 7 --dry-run")
        assert (outcome.status, outcome.err) == (1, "")
        for part in ("The request would be refused", "not enough vCPUs", "It would have fitted with 1 server fewer."):
            assert part in outcome.out, part
        assert "web-7" not in outcome.out
        refused = operator(f"{BOOT} --min 7 --dry-run -f value -c Host")
        assert (refused.status, refused.out.split()) == (1, [])
        assert "No valid host was found" in refused.err
    away = operator(f"{BOOT} --dry-run")
    assert (away.status, away.out) == (1, "")
    assert "No scheduler answers" in away.err
    assert front.uuids() == []


def test_hosts_are_held_and_booted_or_released(front: Front, operator: Operator) -> None:
    add_hosts(front, [fleet.node(f"h{n}", vcpus=1 + n) for n in range(3)])
    with scheduler_of(front), conducting(front):
        rows = operator.json(f"{BOOT} --min 2 --hold 10m")
        assert [(row["Name"], row["Held"], row["Cell"]) for row in rows] == [("web-1", True, "cell1"), ("web-2", True, "cell1")]
        [held] = operator.json("hold list")
        assert (held["State"], held["Servers"]) == ("held", 2)
        assert operator.json(f"hold show {held['ID']}") == rows
        text = operator.done(f"{BOOT} --hold 90s")
        assert "superconductor hold boot" in text
        other = next(row["ID"] for row in operator.json("hold list") if row["ID"] != held["ID"])
        operator.done(f"hold release {other}")
        assert [row["Name"] for row in operator.json(f"hold boot {held['ID']}")] == ["web-1", "web-2"]
        assert operator.json("hold list") == []
        assert "was booted" in operator.refused(f"hold boot {held['ID']}")
        assert "could not be found" in operator.refused(f"hold release {other}")
        outcome = operator(f"{BOOT} --min 7 --hold 10m")
        assert outcome.status == 1
        assert "No valid host was found" in outcome.out
        assert "nothing is held" in outcome.err
        assert operator.json("hold list") == []
    for text in ("0", "x", "10d", "-5m", "9" * 12):
        operator.refused(f"{BOOT} --hold={text}", status=2)
    assert "max_hold_seconds" in operator.refused(f"{BOOT} --hold 2h")


@contextmanager
def conducting(front: Front) -> Iterator[None]:
    """Batches are driven as soon as they are accepted, until their hand-over."""
    context = ConductorContext(front.ledger, front.registry)
    builder = Builder(context, SchedulerClient(front.bus), owner="test", lease_seconds=60.0, retry_pause=0.1)

    def sweep() -> None:
        builder.schedule_and_build(front.database.read(leases.list_waiting, front.database.current_time(), 100))

    sweeps = Periodic("build", 0.05, sweep).start()
    try:
        yield
    finally:
        sweeps.stop()


def test_capacity_is_shown_by_place(front: Front, operator: Operator) -> None:
    add_hosts(front, [fleet.node(f"h{n}", vcpus=1 + n) for n in range(3)])
    with scheduler_of(front):
        rows = operator.json("capacity m1.small --without-host h0")
        shown = [(row["Flavor"], row["Where"], row["Name"], row["Servers"], row["Hosts"]) for row in rows]
        assert shown == [
            ("m1.small", "all", "", 5, 2),
            ("m1.small", "cell", "cell1", 5, 2),
            ("m1.small", "zone", "nova", 5, 2),
        ]
        text = operator.done("capacity m1.small m1.private")
        for part in ("m1.small: limited by CoreFilter on 3 hosts.", "Sets of one server of each: 2 at least, 3 at most.", "cell1"):
            assert part in text, part
        assert "none fits" in operator.done("capacity m1.small --without-cell cell1")
        assert "there is no cell 'x'" in operator.refused("capacity m1.small --without-cell x")
        operator.refused("capacity", status=2)
        assert "Servers on them: 0, of which 0 fit elsewhere" in operator.done("capacity m1.small --after-losing host h1")
        front.boot("web", availability_zone="nova:h2", min_count=3)
        assert decide(front) == ["h2"] * 3
        outcome = operator("capacity m1.small --after-losing zone nova")
        assert (outcome.status, outcome.err) == (1, "")
        for part in ("Servers on them: 3, of which 0 fit elsewhere", "web-1", "Servers that fit nowhere else", "none fits"):
            assert part in outcome.out, part
        assert "rack 'r1' could not be found" in operator.refused("capacity 1 --after-losing rack r1")
        assert "--after-losing: 'row' is not one of zone, rack, host, cell" in operator.refused("capacity 1 --after-losing row r1")


def test_explain_has_text_and_machine_formats(front: Front, operator: Operator) -> None:
    """Filters with counts, scores with their parts, the choice, the attempts."""
    server = front.boot("web")
    stored = front.database.read(mappings.get, server)
    assert stored is not None
    decision = Decision(
        id=str(uuid.uuid4()),
        batch_id=stored.batch_id,
        request_id="req-1",
        at=time.time(),
        driver="filter",
        hosts=24,
        filters=(FilterCount(name="ram", before=24, after=7, reason="not enough memory"),),
        candidates=(Candidate(host="h1", node="n1", cell="cell1", score=1.25, parts={"ram": 1.0, "cpu": 0.25}),),
        choices=(DecidedInstance(instance_uuid=server, host="h1", cell="cell1", alternates=("h2",)),),
        cells={"cell1": 0.2, "cell2": None},
        elapsed_ms=1.5,
    )
    front.database.write(decisions.store_all, [decision])
    front.hand_over("h1", alternates=("h2",))
    front.accept(server)
    front.fail(server, "no [disk] space")
    text = operator.done("explain web")
    for part in (
        "web (",
        "BUILD",
        "24 hosts known",
        "cell2 unknown",
        "ram",
        "not enough memory",
        "17",
        "1.25",
        "0.25",
        "alternates: h2",
    ):
        assert part in text, part
    assert "no [disk] space" in text
    told = operator.json("explain web")
    ram = {"name": "ram", "before": 24, "after": 7, "reason": "not enough memory", "partial": False}
    assert told["decisions"][0]["filters"] == [ram]
    assert [attempt["host"] for attempt in told["attempts"]] == ["h1", "h2"]


def test_explain_knows_what_there_is_not(front: Front, operator: Operator) -> None:
    """No decision, no attempt."""
    front.boot("web")
    assert "waits for its scheduling decision" in operator.done("explain web")
    front.bury("No valid host was found.")
    assert "No valid host was found." in operator.done("explain web")
    assert "no host was asked" in operator.done("explain web")


def test_explain_shows_administrators_why_a_request_waits(front: Front, operator: Operator) -> None:
    server = front.boot("web")
    batch = front.batch_of(server)
    made = Decision(
        id=str(uuid.uuid4()),
        batch_id=batch,
        request_id=f"req-{batch}",
        at=time.time(),
        driver="filter",
        hosts=2,
        message="No valid host was found.",
        choices=(DecidedInstance(instance_uuid=server, host=None),),
        waits="Nothing is heard from cell west",
    )
    front.database.write(decisions.store_all, [made])
    assert "Decision 1 of 1: not now. Nothing is heard from cell west." in operator.done("explain web")
    assert "west" not in operator.done("explain web --tenant")


def test_explain_lists_decisions_and_sufficient_changes(front: Front, operator: Operator) -> None:
    """By the id of the request, too."""
    server = front.boot("web")
    batch = front.batch_of(server)
    common = {"batch_id": batch, "request_id": f"req-{batch}", "driver": "filter", "hosts": 2}
    nowhere = (DecidedInstance(instance_uuid=server, host=None),)
    closed = Relaxation(asked=Asked.CELL, places=("cell1",))
    for number, relaxations in enumerate([(), (Relaxation(asked=Asked.VCPUS, less=1), closed)]):
        made = Decision(
            id=str(uuid.uuid4()),
            at=float(number),
            message=f"No valid host was found, {number}.",
            choices=nowhere,
            relaxations=relaxations,
            conflicts=number,
            taken=("h7",) * number,
            **common,  # type: ignore[arg-type]  # fields of several types
        )
        front.database.write(decisions.store_all, [made])
    for subject in ("web", server, f"req-{batch}", f"r-{batch.replace('-', '')}", batch):
        text = operator.done(f"explain {subject}")
        for part in (
            "It would have fitted with a flavor of 1 vCPU less.",
            "Decision 1 of 2: No valid host was found, 0.",
            "Decision 2 of 2: " + ("refused." if subject in ("web", server) else "No valid host was found, 1."),
            "1970-01-01T00:00:01Z",
            "Hosts that others took first: 1 times (h7).",
            "Cells that were closed to it and have the room: cell1.",
            "Choice: none, no host was left.",
        ):
            assert part in text, (subject, part)
    assert [server["name"] for server in operator.json(f"explain req-{batch}")["servers"]] == ["web"]
    for subject in ("web", f"req-{batch}"):
        text = operator.done(f"explain {subject} --tenant")
        assert "It would have fitted with a flavor of fewer vCPUs." in text
        assert not [word for word in ("h7", "cell1", "Decision") if word in text]
    assert "no known servers" in operator.refused(f"explain req-{uuid.uuid4()}")
    assert "could not be found" in operator.refused(f"explain {uuid.uuid4()}")
    pair = RelaxationPair(first=Relaxation(asked=Asked.VCPUS, less=1), second=closed)
    ours = RelaxationPair(first=Relaxation(asked=Asked.VCPUS, less=1), second=Relaxation(asked=Asked.DISK, less=3))
    both = Decision(
        id=str(uuid.uuid4()),
        at=3.0,
        message="No valid host was found.",
        choices=nowhere,
        relaxations=(),
        pairs=(pair, ours),
        largest_flavor="m1.tiny",
        **common,  # type: ignore[arg-type]  # fields of several types
    )
    front.database.write(decisions.store_all, [both])
    text = operator.done("explain web")
    for part in (
        "No single change of the request would have been enough.",
        "It would have fitted with a flavor of 1 vCPU less and 3 GiB less disk.",
        "The largest flavor that fits: m1.tiny.",
        "The smallest two changes that are enough together: with a flavor of 1 vCPU less and in cell cell1, closed to it.",
    ):
        assert part in text, part
    text = operator.done("explain web --tenant")
    assert "It would have fitted with a flavor of fewer vCPUs and less disk." in text
    assert "The largest flavor that fits: m1.tiny." in text
    assert "cell1" not in text


def test_status_names_two_machines_of_one_host(front: Front, operator: Operator) -> None:
    beat = Beat(host="h1", binary=AGENT_BINARY, machine="a" * 32)
    front.cell.write(services.introduce_service, beat, About(machine="rack-a"), 1.0)
    front.cell.write(services.admit, beat, Machine(id="b" * 32, name="rack-b"), 60.0)
    assert "Cell cell1: two machines are called h1: rack-a runs as the host, and rack-b is refused." in operator.done("status")


def test_status_counts(front: Front, operator: Operator) -> None:
    """Tables for people, everything for programs."""
    running = front.boot()
    front.bring_up(running)
    front.boot(max_count=3)
    text = operator.done("status")
    assert "cell1" in text
    assert "Waiting for a host: 3, the oldest for" in text
    assert operator.json("status")["queue"]["depth"] == 3
    assert operator.json("status")["cells"][0]["servers"] == {"active": 1}
    assert operator.json("status")["hosts_in_two_cells"] == []
    assert "Dead letters" not in text
    assert "two machines" not in text
    assert "Open operations" not in text
    now = time.time()
    stop = NewOperation(
        uuid=str(uuid.uuid4()),
        server_uuid=running,
        kind=OperationKind.STOP,
        scope=None,
        user_id="u",
        request_id="req-1",
        deadline=now + 60.0,
    )
    front.database.write(accepting.accept_operation, stop, now - 5.0)
    assert "Open operations: 1 in task, the oldest for " in operator.done("status")
    assert "Open operations: 1 in task, the oldest for " in operator.done("top --once")
    assert operator.json("status")["operations"]["task"]["count"] == 1


def test_servers_that_cannot_be_shelved_are_named(front: Front, operator: Operator) -> None:
    front.boot()
    front.hand_over()
    front.follow_feed()
    assert "no image store is configured: set [images] folder" in operator.refused("server shelve web")
    assert "it is not shelved on a host" in operator.refused("server shelve web --offload")
    assert "while it is in vm_state" in operator.refused("server unshelve web")


def test_status_counts_dead_letters_where_there_are_any(front: Front, operator: Operator) -> None:
    front.database.write(dead_letters.put_letters, "api", "build", {"server-1": "why", "server-2": "why"})
    front.cell.database.write(dead_letters.put_letters, "cell", "deadlines", {"server-3": "why"})
    text = operator.done("status")
    assert "Dead letters of the API level: 2 of build; see 'superconductor dead-letter list'" in text
    assert "Dead letters of cell cell1: 1 of deadlines; see" in text
    status = operator.json("status")
    assert (status["dead_letters"], status["cells"][0]["dead_letters"]) == ({"build": 2}, {"deadlines": 1})


def test_status_shows_silent_parts_and_since_when(front: Front, operator: Operator) -> None:
    """In bounded time, in every format, without passwords; the rest is told as ever."""
    front.boot()
    front.cell.database.write(processes.record_process, "cell", DEAD)
    front.cell.database.write(lambda tx: tx.execute(sa.update(cell_processes).values(last_seen=0.0)))
    with silent_port() as frozen:
        away = CellMapping(
            uuid=str(uuid.uuid4()),
            name="away",
            database_url=f"mysql+pymysql://sc:secret@127.0.0.1:{closed_port()}/cell",
            transport_url=f"rabbit://sc:secret@127.0.0.1:{frozen}/away",
        )
        front.database.write(cell_mappings.create, away)
        front.registry.refresh_cells()
        for form in ("table", "json", "yaml", "csv", "value"):
            text = operator.done(f"status -f {form}")
            assert "away" in text
            assert "secret" not in text
        status = operator.json("status")
        table = operator.done("status")
    cells = {cell["name"]: cell for cell in status["cells"]}
    for what in ("database", "bus"):
        assert not cells["away"][what]["reachable"]
        assert cells["away"][what]["since"] is not None
        assert cells["cell1"][what]["reachable"]
    assert (cells["away"]["processes"], cells["away"]["feed"]) == (None, None)
    assert cells["cell1"]["processes"] == {CONDUCTOR_BINARY: {"up": 0, "down": 1}}
    assert "Cell away: its database is silent since" in table
    assert "Cell away: its broker is silent since" in table
    [row] = [line.split() for line in table.splitlines() if line.split()[:1] == ["away"]]
    assert row[2:9] == ["silent", "silent", *["?"] * 5]
    assert "0 up, 1 down" in table


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (f"server boot web --flavor nope --image {IMAGE}", "no flavor 'nope'"),
        ("server boot web --flavor 1 --image cirros", "cannot be found by name"),
        (f"{BOOT} --zone nowhere", "server.availability_zone"),
        (f"{BOOT} --group nobody", "os:scheduler_hints.group"),
        (f"{BOOT} --min 3 --max 2", "server.min_count"),
        (f"{BOOT} --user-data /nonexistent", "--user-data"),
        ("server list --name (", "name: "),
        ("explain nobody", "no server 'nobody'"),
    ],
)
def test_what_the_api_refuses_is_one_line(operator: Operator, line: str, words: str) -> None:
    """Naming the field."""
    assert words in operator.refused(line.replace("(", "'('"))


def test_a_rebuild_replaces_user_data_and_prints_passwords(front: Front, operator: Operator, tmp_path: Path) -> None:
    uuid = front.boot(user_data="b2xk")
    front.bring_up(uuid)
    (tmp_path / "data").write_bytes(b"#cloud-config\n")
    rebuild = f"server rebuild web --image {IMAGE}"
    assert "rebuild.key_name" in operator.refused(f"{rebuild} --key-name unknown")
    assert "--user-data" in operator.refused(f"{rebuild} --user-data /nonexistent")
    said = operator(f"{rebuild} --user-data {tmp_path}/data --no-key-name")
    operation = front.database.read(operations.open_for, [uuid])[uuid]
    given = VAULT.open(operation.uuid, front.database.read(operations.kept_secrets, [operation.uuid])[operation.uuid])
    assert base64.b64decode(given.user_data or "") == b"#cloud-config\n"
    assert (said.status, said.out) == (0, f"web: password {given.admin_pass}\n")
    assert (operation.args.drive.key_name, operation.args.drive.removes_user_data) == ("", False)


@pytest.mark.parametrize(
    "line", ["server boot web", f"{BOOT} --max 0", f"{BOOT} --hint novalue", f"{BOOT} --wait --dry-run", "server delete", "explain"]
)
def test_bad_arguments_are_usage_errors(operator: Operator, line: str) -> None:
    """Told before anything is asked."""
    operator.refused(line, status=2)


def test_an_absent_api_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """No trace, and what to do about it."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    operator = Operator(Shell(tmp_path, capsys), f"http://127.0.0.1:{port}/v2.1")
    for line in (BOOT, "server list", "server show x", "server delete x y", "explain x", "status"):
        told = operator.refused(line)
        assert "connection refused" in told
        assert "superconductor standalone" in told
    assert "--endpoint" in Operator(Shell(tmp_path, capsys), "nonsense").refused("status")


def test_something_else_that_listens_there_is_told_apart(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A web server that is no Compute API."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        thread = threading.Thread(target=_greet, args=(other,), daemon=True)
        thread.start()
        told = Operator(Shell(tmp_path, capsys), f"http://127.0.0.1:{other.getsockname()[1]}/v2.1").refused("server list")
        thread.join()
    assert "does not answer like a Compute API" in told


def _greet(listener: socket.socket) -> None:
    connection, _ = listener.accept()
    with connection:
        connection.recv(65536)
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello")


def test_the_endpoint_comes_from_the_environment(
    operator: Operator, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The own variable before the one that OpenStack's clients read."""
    shell = Shell(tmp_path, capsys)
    monkeypatch.setenv("OS_ENDPOINT", operator.endpoint)
    assert shell.run("server", "list", "-f", "json").out.strip() == "[]"
    monkeypatch.setenv("SUPERCONDUCTOR_ENDPOINT", "http://127.0.0.1:1/v2.1")
    assert shell.run("server", "list").status == 1


def test_a_client_reads_the_kind_of_a_refusal(front: Front, operator: Operator) -> None:
    """So that commands can tell what is not there from what may not be done."""
    client = ApiClient(operator.endpoint)
    with pytest.raises(errors.NotFound, match="could not be found"):
        client.get("servers/00000000-0000-4000-8000-000000000000")
    with pytest.raises(errors.Invalid, match=r"^limit: "):
        client.get("servers", limit="x")


def test_the_events_of_a_server_are_complete(front: Front, operator: Operator) -> None:
    """Each stage and attempt in its order; a deleted server by its id."""
    server = front.boot()
    front.hand_over("h1", alternates=("h2",))
    front.accept(server)
    front.fail(server, "disk broke")
    front.activate(server)
    [created] = operator.json("server event list web")
    assert (created["Action"], created["Result"], created["Attempts"]) == ("create", "Success", 2)
    events = operator.json("server event show web")
    assert [(e["Event"], e["Try"], e["Host"], e["Result"]) for e in events] == [
        ("api_accept_build_request", "", "", "Success"),
        ("conductor_stage_instance", "", "", "Success"),
        ("conductor_schedule_and_build_instances", "", "", "Success"),
        ("conductor_build_instances", 1, "h1", "Success"),
        ("compute__do_build_and_run_instance", 1, "h1", "Error"),
        ("conductor_build_instances", 2, "h2", "Success"),
        ("compute__do_build_and_run_instance", 2, "h2", "Success"),
    ]
    assert [(e["Error"], e["Message"]) for e in events if e["Error"]] == [("BuildFailed", "disk broke")]
    assert all(e["Started"] <= e["Finished"] for e in events)
    front.delete(server)
    deleted, again = operator.json(f"server event list {server}")
    assert (deleted["Action"], deleted["Result"], again) == ("delete", "", created)
    [end] = operator.json(f"server event show {server} --request {deleted['Request']}")
    assert (end["Event"], end["Host"], end["Result"]) == ("compute_terminate_instance", "h2", "")
    assert operator.done(f"server event show {server} -f csv").startswith('"Event","Try","Host"')
    assert "req-x" in operator.refused(f"server event show {server} --request req-x")


def test_a_soft_deleted_server_is_addressed_by_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    front = Front(tmp_path, ApiSettings(reclaim_instance_interval=600))
    for name in ("one", "two"):
        uuid = front.boot(name)
        front.bring_up(uuid)
    with typing_at(front, tmp_path, capsys) as operator:
        operator.done("server delete one two --wait")
        assert operator.json("server list") == []
        assert {each["Status"] for each in operator.json("server list --status soft_deleted")} == {"SOFT_DELETED"}
        assert "There is no server 'one'" in operator.refused("server stop one")
        operator.done("server restore one")
        assert "it is not soft-deleted" in operator.refused("server restore one")
        operator.done("server delete two --force --wait")
        assert "There is no server 'two'" in operator.refused("server restore two")
    front.close()
