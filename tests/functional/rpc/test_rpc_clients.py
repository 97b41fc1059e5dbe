"""The typed clients reach endpoints that fit the Protocol beside them, with what they were given, and bring the answers back."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import msgspec
import pytest

from objects import errors
from objects.build import BuildOrder, BuildOrders, DeleteOrder, Holding, Report, ReportKind, Verdict
from objects.capacity import Capacity, FlavorRoom, Loss, LossKind, PlaceRoom, SetRoom
from objects.choice import Choice, refusal_choice
from objects.compute_node import ComputeNode
from objects.console import ConsoleKind, ConsoleListener, ConsolePlace, digest_of
from objects.context import RequestContext
from objects.decision import Decision
from objects.diagnostics import CpuDiagnostics, Diagnostics, GuestState
from objects.dry_run import DryRun, PlannedServer
from objects.flavor import Flavor
from objects.messages_version import SPAN, V1_0
from objects.process import About
from objects.rebalance import Rebalance, RebalanceMove, RoomLeft
from objects.selection import Selection
from objects.spec import RequestSpec
from objects.task import DriveChanges, Power, TaskArgs, TaskKind, TaskOrder
from objects.unknown_guest import UnknownGuest
from rpc import cell_conductor, compute, scheduler, super_conductor
from rpc.cell_conductor import CellConductorClient
from rpc.compute import ComputeClient, HostOrders
from rpc.scheduler import SchedulerClient
from rpc.server import APART_QUEUE_LIMIT, APART_THREADS
from rpc.super_conductor import SuperConductorClient
from rpc.transport import Bus
from service.periodic import wait_until
from tests.support.bus import CONTEXT, KINDS, embedded_url, url_of

PATIENCE = 90.0
SPEC = RequestSpec(
    batch_id="b1",
    request_id="r",
    project_id="p",
    user_id="u",
    name="web",
    flavor=Flavor(flavor_id="1", name="small", vcpus=1, memory_mb=512),
    fences={"i1": 1, "i2": 4},
)
DIAGNOSTICS = Diagnostics(state=GuestState.RUNNING, memory_mb=512, cpus=(CpuDiagnostics(id=0, time=7),))
NODE = ComputeNode(host="h1", node="n1", vcpus=8, memory_mb=1024, disk_gb=10, attributes={"rack": "a", "gpus": [1, 2]})

DRY_RUN = DryRun(
    decision=Decision(id="", batch_id="b1", request_id="req-1", at=1.0, driver="filter", hosts=2),
    servers=(PlannedServer(instance_uuid="i1", host="h1", score=1.5, parts={"RAMWeigher": 1.5}, alternates=("h2",)),),
    one_of=2,
)
REBALANCE = Rebalance(
    servers=9,
    allowed=1,
    moves=(
        RebalanceMove(
            server="s1",
            name="web",
            project_id="p",
            flavor="small",
            vcpus=1,
            memory_mb=512,
            source="h1",
            destination="h2",
            live=True,
            gain=1.0,
        ),
    ),
    hosts=("h1",),
    bound=1,
    before=RoomLeft(empty_hosts=0, stranded_vcpus=1.5, stranded_memory_mb=0.0, fits={"small": 3}),
    after=RoomLeft(empty_hosts=1, stranded_vcpus=0.5, stranded_memory_mb=0.0, fits={"small": 4}),
    considered=2,
    kept={"locked": 1},
)
LOSS = Loss(kind=LossKind.HOST, name="h7")
CAPACITY = Capacity(
    flavors=(
        FlavorRoom(flavor="small", servers=7, hosts=2, cells=(PlaceRoom(name="c", servers=7, hosts=2),), limits={"RamFilter": 2}),
    ),
    hosts=3,
    sets=SetRoom(least=2, most=3),
)


class Recorder:
    """Every endpoint at once: notes each call as (method, arguments) and answers what fits."""

    def __init__(self) -> None:
        self.calls: list[tuple[object, ...]] = []

    def select_destinations(
        self, context: RequestContext, request_spec: RequestSpec, instance_uuids: Sequence[str]
    ) -> list[list[Selection]]:
        self.calls.append(("select_destinations", context, request_spec, instance_uuids))
        if len(instance_uuids) > 2:
            raise errors.NoValidHost("There is no room for 3.", "decision-1")
        return [[Selection(host=f"h-{uuid}", node="n", cell_uuid="c", fence=1)] for uuid in instance_uuids]

    def select_for_each(self, context: RequestContext, request_specs: Sequence[RequestSpec]) -> list[Choice]:
        self.calls.append(("select_for_each", context, *request_specs))
        refusals = [errors.NoValidHost("There is no room.", "decision-1"), errors.StorageFull("The disk is full.")]
        found = [Choice(selections=((Selection(host="h1", node="n", cell_uuid="c", fence=1),), ())), *map(refusal_choice, refusals)]
        return found[: len(request_specs)]

    def capacity(self, context: RequestContext, request_specs: Sequence[RequestSpec], lost: Loss | None = None) -> Capacity:
        self.calls.append(("capacity", context, *request_specs, lost))
        return CAPACITY

    def refusal_of_image(self, context: RequestContext, request_spec: RequestSpec, instance_uuid: str) -> str:
        self.calls.append(("refusal_of_image", context, request_spec, instance_uuid))
        return "unable to run such an image"

    def rebalance(self, context: RequestContext, request_specs: Sequence[RequestSpec], at_most: float) -> Rebalance:
        self.calls.append(("rebalance", context, *request_specs, at_most))
        return REBALANCE

    def dry_run(self, context: RequestContext, request_spec: RequestSpec) -> DryRun:
        self.calls.append(("dry_run", context, request_spec))
        return DRY_RUN

    def schedule_and_build_batches(self, context: RequestContext, batch_ids: Sequence[str]) -> None:
        self.calls.append(("schedule_and_build_batches", context, *batch_ids))

    def schedule_and_build_instances(self, context: RequestContext, batch_id: str) -> None:
        self.calls.append(("schedule_and_build_instances", context, batch_id))

    def report(self, context: RequestContext, reports: Sequence[Report]) -> list[Verdict]:
        self.calls.append(("report", context, *reports))
        return [Verdict(instance_uuid=report.instance_uuid, accepted=report.attempt == 1) for report in reports]

    def holdings(self, context: RequestContext, host: str) -> list[Holding]:
        return [Holding(instance_uuid=f"on-{host}", state="active", fence=2, attempt=1, builder="h1:x")]

    def update_resource_stats(self, context: RequestContext, node: ComputeNode) -> None:
        self.calls.append(("update_resource_stats", context, node))

    def report_state(self, context: RequestContext, host: str, binary: str, version: int, stopping: bool = False) -> None:
        self.calls.append(("report_state", context, host, binary, version, stopping))

    def report_states(
        self, context: RequestContext, hosts: Sequence[str], binary: str, version: int, stopping: bool = False
    ) -> None:
        self.calls.append(("report_states", context, *hosts, binary, version, stopping))

    def introduce(self, context: RequestContext, host: str, binary: str, about: About, uptime: float) -> None:
        self.calls.append(("introduce", context, host, binary, about, uptime))

    def unknown_guests(self, context: RequestContext, host: str, guests: Sequence[UnknownGuest]) -> None:
        self.calls.append(("unknown_guests", context, host, *guests))


class Conductor(Recorder):
    def build_instances(self, context: RequestContext, reports: Sequence[Report]) -> list[Verdict]:
        self.calls.append(("build_instances", context, *reports))
        return [Verdict(instance_uuid=report.instance_uuid, accepted=True, reason="next") for report in reports]

    def delete_instances(self, context: RequestContext, uuids: Sequence[str]) -> None:
        self.calls.append(("delete_instances", context, uuids))

    def operate(self, context: RequestContext, uuids: Sequence[str]) -> None:
        self.calls.append(("operate", context, uuids))

    def console_output(self, context: RequestContext, uuid: str, lines: int | None, timeout: float) -> str:
        self.calls.append(("console_output", context, uuid, lines, timeout))
        return "login:"

    def open_console(
        self, context: RequestContext, uuid: str, kind: ConsoleKind, path_digest: str, lifetime: float, timeout: float
    ) -> ConsolePlace:
        self.calls.append(("open_console", context, uuid, kind, path_digest, lifetime, timeout))
        return PLACE

    def diagnostics(self, context: RequestContext, uuid: str, timeout: float) -> Diagnostics:
        self.calls.append(("diagnostics", context, uuid, timeout))
        return DIAGNOSTICS


class Agent(Recorder):
    """``let_go``: console output is had from then on."""

    def __init__(self) -> None:
        super().__init__()
        self.let_go = threading.Event()

    def build_instances(self, context: RequestContext, orders: BuildOrders) -> None:
        self.calls.append(("build_instances", context, orders))

    def delete_instances(self, context: RequestContext, orders: Sequence[DeleteOrder]) -> None:
        self.calls.append(("delete_instances", context, *orders))

    def do_tasks(self, context: RequestContext, orders: Sequence[TaskOrder]) -> None:
        self.calls.append(("do_tasks", context, *orders))

    def introduce_again(self, context: RequestContext) -> None:
        self.calls.append(("introduce_again", context))

    def console_output(self, context: RequestContext, uuid: str, lines: int | None) -> str:
        if not self.let_go.wait(PATIENCE):
            raise errors.NotFound("Nobody let go.")
        return f"{uuid} {lines}"

    def open_console(
        self, context: RequestContext, uuid: str, kind: ConsoleKind, path_digest: str, lifetime: float
    ) -> ConsoleListener:
        self.calls.append(("open_console", context, uuid, kind, path_digest, lifetime))
        return PLACE.listener

    def diagnostics(self, context: RequestContext, uuid: str) -> Diagnostics:
        self.calls.append(("diagnostics", context, uuid))
        return DIAGNOSTICS


PLACE = ConsolePlace(host="h1", body_uuid="b1", listener=ConsoleListener(address="10.0.0.1", port=6000))


@pytest.fixture(params=KINDS)
def bus(request: pytest.FixtureRequest) -> Iterator[Bus]:
    for url in url_of(request.param):
        bus = Bus(url)
        yield bus
        bus.close()


UNKNOWN = UnknownGuest(
    uuid="i3", name="n", node="h1", fence=1, attempt=1, builder="h1:x", vcpus=1, memory_mb=1, disk_gb=1, reason="no record"
)


def a_report(uuid: str, kind: ReportKind, attempt: int = 1) -> Report:
    return Report(kind=kind, instance_uuid=uuid, host="h1", fence=1, attempt=attempt, builder="h1:x")


def test_the_scheduler_is_asked_and_answers_or_refuses(bus: Bus) -> None:
    endpoint = Recorder()
    scheduler.serve_topic(bus, "s1", endpoint)
    client = SchedulerClient(bus)

    assert client.select_destinations(CONTEXT, SPEC, ("i1", "i2")) == [
        [Selection(host="h-i1", node="n", cell_uuid="c", fence=1)],
        [Selection(host="h-i2", node="n", cell_uuid="c", fence=1)],
    ]
    with pytest.raises(errors.NoValidHost) as refused:
        client.select_destinations(CONTEXT, SPEC, ("i1", "i2", "i3"))

    assert endpoint.calls[0] == ("select_destinations", CONTEXT, SPEC, ["i1", "i2"])
    assert refused.value.decision_id == "decision-1"


def test_the_scheduler_answers_for_each_of_several_batches(bus: Bus) -> None:
    """What one of them is refused for is an error of its own."""
    endpoint = Recorder()
    scheduler.serve_topic(bus, "s1", endpoint)
    first, second, third = SchedulerClient(bus).select_for_each(CONTEXT, [SPEC, SPEC, SPEC])

    assert first.get_selections() == [[Selection(host="h1", node="n", cell_uuid="c", fence=1)], []]
    with pytest.raises(errors.NoValidHost, match=r"no room") as no_host:
        second.get_selections()
    with pytest.raises(errors.DatabaseUnavailable, match="disk is full"):
        third.get_selections()
    assert no_host.value.decision_id == "decision-1"
    assert endpoint.calls == [("select_for_each", CONTEXT, SPEC, SPEC, SPEC)]


def test_the_scheduler_is_asked_what_it_would_decide(bus: Bus) -> None:
    endpoint = Recorder()
    scheduler.serve_topic(bus, "s1", endpoint)

    assert SchedulerClient(bus).dry_run(CONTEXT, SPEC) == DRY_RUN
    assert SchedulerClient(bus).capacity(CONTEXT, [SPEC, SPEC], LOSS) == CAPACITY
    assert SchedulerClient(bus).rebalance(CONTEXT, [SPEC], 2.5) == REBALANCE
    asked = [("dry_run", CONTEXT, SPEC), ("capacity", CONTEXT, SPEC, SPEC, LOSS), ("rebalance", CONTEXT, SPEC, 2.5)]
    assert endpoint.calls == asked


def test_the_super_conductor_hears_the_doorbells(bus: Bus) -> None:
    endpoint = Conductor()
    super_conductor.serve_topic(bus, "c1", endpoint, threads=1)
    client = SuperConductorClient(bus)

    client.schedule_and_build_instances(CONTEXT, "b1")
    client.schedule_and_build_batches(CONTEXT, ("b2", "b3"))
    client.delete_instances(CONTEXT, ("i1", "i2"))
    client.operate(CONTEXT, ("o1",))

    assert wait_until(lambda: len(endpoint.calls) == 4, PATIENCE)
    assert endpoint.calls == [
        ("schedule_and_build_instances", CONTEXT, "b1"),
        ("schedule_and_build_batches", CONTEXT, "b2", "b3"),
        ("delete_instances", CONTEXT, ["i1", "i2"]),
        ("operate", CONTEXT, ["o1"]),
    ]


def test_a_super_conductor_has_less_time_for_consoles(bus: Bus) -> None:
    endpoint = Conductor()
    super_conductor.serve_topic(bus, "c1", endpoint, threads=1)
    assert SuperConductorClient(bus).console_output(CONTEXT, "i1", None, 20.0) == "login:"
    assert endpoint.calls == [("console_output", CONTEXT, "i1", None, 16.0)]


def test_consoles_are_opened_by_the_agent(bus: Bus) -> None:
    conductor, agent = Conductor(), Agent()
    super_conductor.serve_topic(bus, "c1", conductor, threads=1)
    compute.serve_topic(bus, "h1", agent)
    digest = digest_of("path")
    assert SuperConductorClient(bus).open_console(CONTEXT, "i1", ConsoleKind.VNC, digest, 600.0, 20.0) == PLACE
    assert conductor.calls == [("open_console", CONTEXT, "i1", ConsoleKind.VNC, digest, 600.0, 16.0)]
    assert ComputeClient(bus).open_console(CONTEXT, "h1", "i1", ConsoleKind.SERIAL, digest, 1.5, 20.0) == PLACE.listener
    assert agent.calls == [("open_console", CONTEXT, "i1", ConsoleKind.SERIAL, digest, 1.5)]
    with pytest.raises(errors.Invalid, match="open_console cannot be used"):
        ComputeClient(bus).open_console(CONTEXT, "h1", "i1", ConsoleKind.SERIAL, "the path itself", 1.5, 20.0)


def test_diagnostics_are_told_by_the_agent(bus: Bus) -> None:
    conductor, agent = Conductor(), Agent()
    super_conductor.serve_topic(bus, "c1", conductor, threads=1)
    compute.serve_topic(bus, "h1", agent)
    assert SuperConductorClient(bus).diagnostics(CONTEXT, "i1", 20.0) == DIAGNOSTICS
    assert conductor.calls == [("diagnostics", CONTEXT, "i1", 16.0)]
    assert ComputeClient(bus).diagnostics(CONTEXT, "h1", "i1", 20.0) == DIAGNOSTICS
    assert agent.calls == [("diagnostics", CONTEXT, "i1")]


def test_an_agent_waiting_for_a_console_executes_orders(bus: Bus) -> None:
    """It takes orders in one thread; and it does not keep questions without end."""
    agent = Agent()
    compute.serve_topic(bus, "h1", agent, threads=0)
    client = ComputeClient(bus)
    gone = DeleteOrder(instance_uuid="i1", attempt=1)
    asked = 2 * (APART_THREADS + APART_QUEUE_LIMIT)
    with ThreadPoolExecutor(asked) as pool:
        answers = [pool.submit(client.console_output, CONTEXT, "h1", "i1", n, PATIENCE) for n in range(asked)]
        try:
            assert wait_until(lambda: any(answer.done() for answer in answers), PATIENCE)
            client.send_orders([HostOrders(CONTEXT, "h1", [gone])])
            assert wait_until(lambda: agent.calls == [("delete_instances", CONTEXT, gone)], PATIENCE)
        finally:
            agent.let_go.set()
    refused = [error for answer in answers if (error := answer.exception()) is not None]
    assert {str(error) for error in refused} == {f"{APART_QUEUE_LIMIT} calls of console_output wait already: try again later."}
    assert [answer.result() for answer in answers if answer.exception() is None] == [
        f"i1 {n}" for n, answer in enumerate(answers) if answer.exception() is None
    ]


def test_a_message_of_an_agent_names_its_machine(bus: Bus) -> None:
    endpoint, context = Conductor(), msgspec.structs.replace(CONTEXT, machine="a" * 32)
    cell_conductor.serve_topic(bus, "c1", endpoint, threads=1)
    CellConductorClient(bus).update_resource_stats(context, NODE)
    assert [call[1] for call in endpoint.calls] == [context]


def test_agents_are_asked_to_introduce_themselves(bus: Bus) -> None:
    agents = {host: Agent() for host in ("h1", "h2")}
    for host, agent in agents.items():
        compute.serve_topic(bus, host, agent)
    ComputeClient(bus).introduce_again(CONTEXT, list(agents))
    assert wait_until(lambda: all(agent.calls == [("introduce_again", CONTEXT)] for agent in agents.values()), PATIENCE)


def test_an_agent_speaks_with_its_cell_conductor(bus: Bus) -> None:
    endpoint = Conductor()
    cell_conductor.serve_topic(bus, "c1", endpoint, threads=1)
    client = CellConductorClient(bus)
    accept, late = a_report("i1", ReportKind.ACCEPT), a_report("i2", ReportKind.ACTIVE, attempt=2)

    verdicts = client.report(CONTEXT, (accept, late))
    handed_back = client.build_instances(CONTEXT, [late])
    held = client.holdings(CONTEXT, "h1")
    client.update_resource_stats(CONTEXT, NODE)
    client.report_state(CONTEXT, "h1", "superconductor-compute", 3)
    client.report_state(CONTEXT, "h1", "superconductor-compute", 3, stopping=True)
    client.report_states(CONTEXT, ["h1", "h2"], "superconductor-compute", 3)
    assert wait_until(lambda: len(endpoint.calls) == 6, PATIENCE)
    about = About(release="1.2", messages="1.0", pid=7)
    client.introduce(CONTEXT, "h1", "superconductor-compute", about, 1.5)
    client.unknown_guests(CONTEXT, "h1", [UNKNOWN])

    assert verdicts == [Verdict(instance_uuid="i1", accepted=True), Verdict(instance_uuid="i2", accepted=False)]
    assert handed_back == [Verdict(instance_uuid="i2", accepted=True, reason="next")]
    assert held == [Holding(instance_uuid="on-h1", state="active", fence=2, attempt=1, builder="h1:x")]
    assert endpoint.calls == [
        ("report", CONTEXT, accept, late),
        ("build_instances", CONTEXT, late),
        ("update_resource_stats", CONTEXT, NODE),
        ("report_state", CONTEXT, "h1", "superconductor-compute", 3, False),
        ("report_state", CONTEXT, "h1", "superconductor-compute", 3, True),
        ("report_states", CONTEXT, "h1", "h2", "superconductor-compute", 3, False),
        ("introduce", CONTEXT, "h1", "superconductor-compute", about, 1.5),
        ("unknown_guests", CONTEXT, "h1", UNKNOWN),
    ]


def test_the_schedulers_second_call_ends_at_cell_conductors(bus: Bus) -> None:
    endpoint = Conductor()
    cell_conductor.serve_topic(bus, "c1", endpoint)
    client = SchedulerClient(bus)

    client.update_resource_stats(CONTEXT, "h1", NODE)
    client.update_resource_stats(CONTEXT, ("h1", "n1"), NODE)
    client.update_resource_stats(CONTEXT, ("h1", "n1"), msgspec.structs.asdict(NODE))

    assert endpoint.calls == [("update_resource_stats", CONTEXT, NODE)] * 3
    with pytest.raises(errors.Invalid, match="stats of h1, n1: Object missing required field"):
        client.update_resource_stats(CONTEXT, ("h1", "n1"), {"vcpus": 1})


@pytest.mark.parametrize("name", ["h2", ("h1", "n2"), ("h2", "n1"), ""])
def test_stats_under_a_foreign_name_are_refused(name: str | tuple[str, str]) -> None:
    bus = Bus(embedded_url())

    with pytest.raises(errors.Invalid, match="h1"):
        SchedulerClient(bus).update_resource_stats(CONTEXT, name, NODE)
    bus.close()


@pytest.mark.parametrize("listens_once", [False, True])
def test_orders_reach_the_host_they_are_for(bus: Bus, listens_once: bool) -> None:
    agents = {host: Agent() for host in ("h1", "h2", "h3")}
    if listens_once:
        server = compute.serve_each(bus, agents)
        assert not server.find_trouble()
    else:
        for host, agent in agents.items():
            compute.serve_topic(bus, host, agent, threads=1)
    client = ComputeClient(bus)
    orders = BuildOrders(
        spec=SPEC, orders=(BuildOrder(instance_uuid="i1", name="web-1", host="h1", node="n1", fence=1, attempt=1),)
    )
    gone = DeleteOrder(instance_uuid="i1", attempt=1)
    stop = TaskOrder(
        instance_uuid="i1", fence=1, attempt=1, number=4, kind=TaskKind.POWER, power=Power.OFF, args=TaskArgs(hard=True)
    )

    client.send_orders([HostOrders(CONTEXT, "h1", orders), HostOrders(CONTEXT, "h2", (gone,)), HostOrders(CONTEXT, "h3", (stop,))])

    assert wait_until(lambda: all(agent.calls for agent in agents.values()), PATIENCE)
    assert agents["h1"].calls == [("build_instances", CONTEXT, orders)]
    assert agents["h2"].calls == [("delete_instances", CONTEXT, gone)]
    assert agents["h3"].calls == [("do_tasks", CONTEXT, stop)]


def test_agents_sharing_a_listener_are_called_separately(bus: Bus) -> None:
    agents = {host: Agent() for host in ("h1", "h2")}
    compute.serve_each(bus, agents)
    client = ComputeClient(bus)
    for host in agents:
        assert client.diagnostics(CONTEXT, host, f"of-{host}", PATIENCE) == DIAGNOSTICS
    assert [agent.calls for agent in agents.values()] == [[("diagnostics", CONTEXT, f"of-{host}")] for host in agents]


def test_every_agent_gets_complete_orders_it_understands(bus: Bus) -> None:
    agents = {host: Agent() for host in ("new", "old")}
    for host, agent in agents.items():
        compute.serve_topic(bus, host, agent, threads=1)
    bus.peers = lambda topic, server: V1_0 if server == "old" else SPAN.newest
    client = ComputeClient(bus)
    order = TaskOrder(instance_uuid="i1", fence=1, attempt=1, number=4, kind=TaskKind.REBUILD, power=Power.ON)
    changing = msgspec.structs.replace(order, args=TaskArgs(drive=DriveChanges(removes_user_data=True)))
    factor = msgspec.structs.replace(SPEC, flavor=msgspec.structs.replace(SPEC.flavor, rxtx_factor=2.0))
    build = BuildOrders(spec=factor, orders=())

    with pytest.raises(errors.PeerTooOld, match=r"its agent knows 1\.0: upgrade it"):
        client.send_orders([HostOrders(CONTEXT, "new", (order,)), HostOrders(CONTEXT, "old", (changing,))])
    client.send_orders([HostOrders(CONTEXT, "new", (changing,)), HostOrders(CONTEXT, "old", (order,))])
    client.send_orders([HostOrders(CONTEXT, "new", build), HostOrders(CONTEXT, "old", build)])

    assert wait_until(lambda: all(len(agent.calls) == 2 for agent in agents.values()), PATIENCE)
    assert agents["new"].calls == [("do_tasks", CONTEXT, changing), ("build_instances", CONTEXT, build)]
    without = msgspec.structs.replace(build, spec=SPEC)
    assert agents["old"].calls == [("do_tasks", CONTEXT, order), ("build_instances", CONTEXT, without)]


def test_an_unringable_doorbell_is_logged_without_raising(caplog: pytest.LogCaptureFixture) -> None:
    bus = Bus("rabbit://guest:not-to-be-seen@127.0.0.1:1/")
    client = SuperConductorClient(bus)

    with caplog.at_level(logging.WARNING):
        client.schedule_and_build_instances(CONTEXT, "b1")
        client.delete_instances(CONTEXT, ["i1"])

    assert caplog.text.count("a sweep will find its work") == 1, "the bus that is down is named once for many doorbells"
    assert "not-to-be-seen" not in caplog.text
    bus.close()
