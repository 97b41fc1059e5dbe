"""The load and the schedule of faults are functions of the seed, and hit everything there is to hit."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import msgspec
import pytest

from chaos import command, mixed, plan
from chaos.links import level_of, links_hit, links_of, list_levels
from chaos.plan import BAD_HOSTS_PER_CELL, GROUP_SIZE_LIMITS
from chaos.run import Settings
from chaos.schedule import REAL_ONLY, Kind, list_targets, plan_faults
from cli.standalone.demo.boots import Expected
from deploy.local.shape import Role, Shape
from objects import errors

SHAPE = Shape(agents=6)
CELLS = [[f"{cell}-host{number}" for number in range(1, 7)] for cell in ("cell1", "cell2")]
LONG = 20_000.0


def test_the_same_seed_repeats_load_and_faults() -> None:
    assert plan.plan_boots(7, 4.0, 120.0, CELLS) == plan.plan_boots(7, 4.0, 120.0, CELLS) != plan.plan_boots(8, 4.0, 120.0, CELLS)
    assert plan_faults(7, 120.0, 4.0, set(Kind), SHAPE) == plan_faults(7, 120.0, 4.0, set(Kind), SHAPE)
    assert plan_faults(7, 120.0, 4.0, set(Kind), SHAPE) != plan_faults(8, 120.0, 4.0, set(Kind), SHAPE)


def test_faults_come_in_order_and_in_requested_number() -> None:
    faults = plan_faults(7, LONG, 4.0, set(Kind), SHAPE)

    assert [fault.at for fault in faults] == sorted(fault.at for fault in faults)
    assert 0.0 < faults[0].at < faults[-1].at < LONG
    assert LONG / 4.0 * 0.9 < len(faults) < LONG / 4.0 * 1.1


def test_a_long_schedule_hits_every_target_every_way() -> None:
    faults = plan_faults(7, LONG, 1.0, set(Kind), SHAPE)

    pairs = {(fault.kind, fault.target) for fault in faults}
    assert pairs == {(kind, target) for kind in Kind for target in list_targets(kind, SHAPE)}
    killed = {target.split()[1] for kind, target in pairs if kind is Kind.KILL}
    assert killed == {member.name for member in SHAPE.list_members()}


@pytest.mark.parametrize("proxies", [0, 1])
def test_roles_are_hit_alike_whatever_their_process_count(proxies: int) -> None:
    shape = msgspec.structs.replace(SHAPE, proxies=proxies)
    roles = {member.name: member.role for member in shape.list_members()}
    hits = Counter(roles[target] for target in list_targets(Kind.STOP, shape))

    assert hits.keys() == set(Role) - (set() if proxies else {Role.CONSOLE_PROXY})
    assert len(set(hits.values())) == 1


@pytest.mark.parametrize("kinds", [{Kind.KILL}, {Kind.BROKER, Kind.CUT}, set()])
def test_only_the_kinds_asked_for_come(kinds: set[Kind]) -> None:
    assert {fault.kind for fault in plan_faults(7, LONG, 4.0, kinds, SHAPE)} == kinds


def test_the_run_of_every_change_evacuates_and_drains() -> None:
    kinds = {fault.kind for fault in plan_faults(1, 60.0, 4.0, Settings().kinds, SHAPE)}
    assert kinds >= {Kind.HOST, Kind.DRAIN}
    assert not kinds & REAL_ONLY


def test_real_hosts_get_only_requests_they_can_fulfil() -> None:
    scripted = plan.plan_boots(7, 4.0, 120.0, CELLS)
    real = plan.plan_boots(7, 4.0, 120.0, CELLS, real=True)

    assert [(boot.request_name, boot.at, boot.count, boot.acts) for boot in real] == [
        (boot.request_name, boot.at, boot.count, boot.acts) for boot in scripted
    ]
    assert any(boot.simulated for boot in scripted)
    assert not any(boot.simulated for boot in real)
    failing = [boot for boot in real if boot.image not in plan.images_of(real)]
    assert failing
    assert {boot.expected for boot in failing} == {Expected.ABORTED}


@pytest.mark.parametrize(
    ("words", "kinds"),
    [
        ([], set(Kind) - REAL_ONLY),
        (["--driver", "libvirt"], set(Kind)),
        (["--faults", ""], set()),
        (["--driver", "libvirt", "--faults", "guest,kill"], {Kind.GUEST, Kind.KILL}),
    ],
)
def test_faults_are_those_requested_or_all_hosts_support(words: list[str], kinds: set[Kind]) -> None:
    assert command.parse_settings(words).kinds == kinds


def test_faults_of_libvirt_are_refused_on_simulated_hosts(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        command.main(["--faults", "guest"])
    assert "add --driver libvirt" in capsys.readouterr().err


def test_a_level_is_both_of_its_links() -> None:
    assert links_hit(SHAPE, "cell1") == ("cell1-bus", "cell1-database")
    assert links_hit(SHAPE, "above-cell2-bus") == ("above-cell2-bus",)
    assert {level_of(link) for link in links_of(SHAPE)} == set(list_levels(SHAPE))


def test_the_load_has_every_kind_of_request() -> None:
    boots = plan.plan_boots(7, 10.0, 300.0, CELLS)

    assert len(boots) == 3000
    assert {boot.expected for boot in boots} == set(Expected)
    assert len({name for boot in boots for name in boot.server_names()}) == sum(boot.count for boot in boots)
    assert any(boot.deletes for boot in boots if boot.count > 1)
    assert all(boot.deletes <= boot.count for boot in boots)
    partly = [boot for boot in boots if boot.simulated and ":" in boot.simulated]
    retried = [(boot.simulated or "").split(":")[1].split(",") for boot in partly if not boot.all_or_nothing]
    assert len({tuple(hosts) for hosts in retried}) > 10
    assert all(len(set(hosts) & set(cell)) == BAD_HOSTS_PER_CELL for hosts in retried for cell in CELLS)


def test_groups_fit_apart_and_have_one_policy() -> None:
    boots = [boot for boot in plan.plan_boots(7, 10.0, 300.0, CELLS) if boot.group is not None]
    members: Counter[str] = Counter()
    for boot in boots:
        assert boot.group is not None
        members[boot.group.name] += boot.count

    groups = plan.groups_of(boots)
    assert len({group.name for group in groups}) == len(groups) == len(members)
    assert all(members[group.name] <= GROUP_SIZE_LIMITS[group.policy] for group in groups)
    assert max(members.values()) > 1


# -- two releases --------------------------------------------------------------------------------------------------------------


def test_every_member_alternates_releases_within_the_load() -> None:
    rolls = mixed.plan_rolls(7, 120.0, SHAPE)

    assert rolls == mixed.plan_rolls(7, 120.0, SHAPE) != mixed.plan_rolls(8, 120.0, SHAPE)
    for member in SHAPE.list_members():
        assert [roll.release for roll in rolls if roll.member == member.name] == ["new", "old", "new"]
    assert [roll.at for roll in rolls] == sorted(roll.at for roll in rolls)
    assert 0.0 < rolls[0].at < rolls[-1].at < 120.0
    assert {roll.kills for roll in rolls} == {True, False}


def test_two_releases_are_not_tried_with_libvirt(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        command.main(["--mixed", "v1", "--driver", "libvirt"])
    assert "leave --driver out" in capsys.readouterr().err


@pytest.mark.parametrize(("old", "why"), [("nowhere/x.whl", "there is no wheel"), ("no-such-commit", "cannot be had")])
def test_a_missing_older_release_is_reported(tmp_path: Path, old: str, why: str) -> None:
    with pytest.raises(errors.SuperconductorError, match=why):
        mixed.install_release(old, tmp_path / "old")
