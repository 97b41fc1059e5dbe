"""An agent is believed about its own host only: what the conductor's border lets pass, for each method and each kind of sender."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from conductor.agent_identity import IdentityCheck
from db.cell import compute_nodes, services, unknown_guests
from objects import builder_digest, errors
from objects.build import ReportKind
from objects.host_limits import HostLimits
from objects.instance import State
from objects.process import AGENT_BINARY, About
from objects.unknown_guest import UnknownGuest
from rpc.agents import AgentUsers
from rpc.sender import LOCAL, MessageSender
from service import metrics
from tests.support.applying import node
from tests.support.cell_site import CONTEXT, Site, said

OWN = MessageSender(user="compute.h1")
OTHER = MessageSender(user="compute.h2")
SHARED = MessageSender(user="cell1")
UNNAMED = MessageSender()

STRAY = UnknownGuest(
    uuid="i3", name="n", node="h1", fence=1, attempt=1, builder="h1:a", vcpus=1, memory_mb=1, disk_gb=1, reason="no record"
)

CALLS: dict[str, Callable[[IdentityCheck], object]] = {
    "report": lambda border: border.report(CONTEXT, [said(ReportKind.ACCEPT, "i1")]),
    "report beside one of its own": lambda b: b.report(CONTEXT, [said(ReportKind.GONE, "i2", "h2"), said(ReportKind.ACCEPT, "i1")]),
    "build_instances": lambda border: border.build_instances(CONTEXT, [said(ReportKind.FAILED, "i1")]),
    "holdings": lambda border: border.holdings(CONTEXT, "h1"),
    "update_resource_stats": lambda border: border.update_resource_stats(CONTEXT, node("h1")),
    "report_state": lambda border: border.report_state(CONTEXT, "h1", AGENT_BINARY, 1),
    "stopping": lambda border: border.report_state(CONTEXT, "h1", AGENT_BINARY, 1, stopping=True),
    "report_states": lambda border: border.report_states(CONTEXT, ["h1"], AGENT_BINARY, 1),
    "introduce": lambda border: border.introduce(CONTEXT, "h1", AGENT_BINARY, About(), 1.0),
    "unknown_guests": lambda border: border.unknown_guests(CONTEXT, "h1", [STRAY]),
}
"""Everything that an agent of h1 may say of h1."""


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    made = Site(tmp_path)
    made.stage("i1")
    made.activate("i1")
    yield made
    made.close()


def border(site: Site, who: MessageSender, *, required: bool = True) -> IdentityCheck:
    return IdentityCheck(site.conductor, AgentUsers(required=required), lambda: who)


def refusals() -> float:
    return sum(sample.value for metric in metrics.AGENTS_REFUSED.collect() for sample in metric.samples if "_total" in sample.name)


def written(site: Site) -> object:
    of_hosts = (services.list_all, compute_nodes.list_all, unknown_guests.list_all)
    return site.state("i1"), [site.database.read(read) for read in of_hosts]


@pytest.mark.parametrize("required", [True, False])
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS.keys())
def test_a_hosts_user_naming_another_host_changes_nothing(
    site: Site, call: Callable[[IdentityCheck], object], required: bool
) -> None:
    before, counted = written(site), refusals()
    with pytest.raises(errors.Forbidden, match=r"'compute\.h2' reports for host h1: it may report for 'h2' only"):
        call(border(site, OTHER, required=required))
    assert written(site) == before
    assert refusals() == counted + 1


@pytest.mark.parametrize("who", [SHARED, UNNAMED, MessageSender(user="compute."), MessageSender(user="")])
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS.keys())
def test_where_users_are_required_nobody_else_is_believed(
    site: Site, call: Callable[[IdentityCheck], object], who: MessageSender
) -> None:
    before = written(site)
    with pytest.raises(
        errors.Forbidden, match=r"log in as 'compute\.HOST', because \[conductor\] agent_users = required.*host user"
    ):
        call(border(site, who))
    assert written(site) == before


@pytest.mark.parametrize(("who", "required"), [(OWN, True), (OWN, False), (SHARED, False), (UNNAMED, False), (LOCAL, True)])
@pytest.mark.parametrize("name", [name for name in CALLS if "beside" not in name])
def test_a_host_is_believed_about_itself(site: Site, name: str, who: MessageSender, required: bool) -> None:
    CALLS[name](border(site, who, required=required))


def test_other_prefixes_may_be_configured(site: Site) -> None:
    made = IdentityCheck(site.conductor, AgentUsers(required=True, prefix="nova-"), lambda: MessageSender(user="nova-h1"))
    made.report_state(CONTEXT, "h1", AGENT_BINARY, 1)
    with pytest.raises(errors.Forbidden):
        IdentityCheck(site.conductor, AgentUsers(required=True, prefix="nova-"), lambda: OWN).report_state(
            CONTEXT, "h1", AGENT_BINARY, 1
        )


class TestBuilders:
    """A builder is what an agent shows its builds with: nobody else learns it."""

    def test_only_the_host_itself_is_told(self, site: Site) -> None:
        site.build("i1")
        [told] = border(site, OWN).holdings(CONTEXT, "h1")
        assert told.builder == "h1:a"
        [hidden] = border(site, SHARED, required=False).holdings(CONTEXT, "h1")
        assert hidden.builder == builder_digest.builder_digest("h1:a", "i1")

    @pytest.mark.parametrize("kind", [ReportKind.ACCEPT, ReportKind.ACTIVE])
    def test_a_digest_begins_and_ends_no_build(self, site: Site, kind: ReportKind) -> None:
        site.build("i1", active=False)
        [hidden] = border(site, SHARED, required=False).holdings(CONTEXT, "h1")
        forged = said(kind, "i1")
        forged = type(forged)(**{name: getattr(forged, name) for name in forged.__struct_fields__} | {"builder": hidden.builder})
        [verdict] = border(site, SHARED, required=False).report(CONTEXT, [forged])
        assert not verdict.accepted
        assert site.state("i1")[0] == State.BUILDING

    def test_the_digest_hands_back_an_earlier_starts_build(self, site: Site) -> None:
        site.build("i1", active=False)
        shared = border(site, SHARED, required=False)
        [hidden] = shared.holdings(CONTEXT, "h1")
        failed = said(ReportKind.FAILED, "i1")
        failed = type(failed)(**{name: getattr(failed, name) for name in failed.__struct_fields__} | {"builder": hidden.builder})
        [verdict] = shared.build_instances(CONTEXT, [failed])
        assert verdict.accepted
        assert site.state("i1") == (State.SCHEDULED, "h2", 2)


class TestIdentified:
    def test_the_record_says_whether_the_broker_identifies_hosts(self, site: Site) -> None:
        for who, expected in ((SHARED, False), (OWN, True), (SHARED, False), (LOCAL, True)):
            border(site, who, required=False).introduce(CONTEXT, "h1", AGENT_BINARY, About(), 1.0)
            assert site.database.read(services.get, "h1", AGENT_BINARY).identified is expected
            assert site.database.read(services.list_identified, AGENT_BINARY, ["h1", "h2"]) == ({"h1"} if expected else set())

    def test_the_feed_repeats_its_nodes_when_first_shown(self, site: Site) -> None:
        border(site, SHARED, required=False).update_resource_stats(CONTEXT, node("h1"))
        for who, events in ((SHARED, 1), (OWN, 2), (OWN, 2)):
            border(site, who, required=False).introduce(CONTEXT, "h1", AGENT_BINARY, About(), 1.0)
            assert sum(key == "h1" for key, _ in site.events()) == events


class TestLimits:
    """What a host offers must be plausible, all of its nodes together."""

    @pytest.mark.parametrize(
        ("offered", "option"),
        [
            ({"vcpus": 10**9}, "host_max_vcpus"),
            ({"memory_mb": 10**12}, "host_max_memory_mb"),
            ({"disk_gb": 10**9}, "host_max_disk_gb"),
            ({"resources": {"CUSTOM_GPU": 10**8}}, "host_max_resource"),
        ],
    )
    def test_a_host_claiming_more_is_refused_by_option(self, site: Site, offered: dict[str, object], option: str) -> None:
        site.conductor = type(site.conductor)(site.database, site.sender, limits=HostLimits())
        with pytest.raises(errors.Invalid, match=rf"more than \[conductor\] {option} = "):
            site.conductor.update_resource_stats(CONTEXT, node("h1", **offered))
        assert site.database.read(compute_nodes.list_all) == []

    def test_many_nodes_offer_no_more_than_one(self, site: Site) -> None:
        site.conductor = type(site.conductor)(site.database, site.sender, limits=HostLimits(vcpus=20))
        site.conductor.update_resource_stats(CONTEXT, node("h1", node="n1"))
        site.conductor.update_resource_stats(CONTEXT, node("h1", node="n1", vcpus=20))
        with pytest.raises(errors.Invalid, match="host_max_vcpus = 20"):
            site.conductor.update_resource_stats(CONTEXT, node("h1", node="n2"))
