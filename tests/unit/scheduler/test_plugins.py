"""Filters, weighers and drivers by name."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from objects import errors
from scheduler import plugins
from scheduler.filters.adapter import Adapter
from scheduler.framework.settings import SchedulerSettings
from tests.support import fleet


@pytest.mark.parametrize(
    ("changes", "wrong", "right"),
    [
        ({"enabled_filters": ("RamFilter", "RamFliter")}, "enabled_filters: there is no 'RamFliter'", "RamFilter"),
        ({"enabled_weighers": ("RAMWeigher", "Nonsense", "More")}, "there is no 'Nonsense', 'More'", "NumInstancesWeigher"),
        ({"driver": "random"}, "driver: there is no 'random'", "chance, filter"),
    ],
)
def test_a_wrong_name_is_refused_listing_right_ones(changes: dict[str, object], wrong: str, right: str) -> None:
    with pytest.raises(errors.Misconfigured) as refused:
        fleet.driver(**changes)
    assert wrong in str(refused.value)
    assert right in str(refused.value)


def test_a_filter_named_twice_is_refused() -> None:
    with pytest.raises(errors.Misconfigured, match="'RamFilter' is named twice"):
        fleet.driver(enabled_filters=("RamFilter", "RamFilter"))


def test_filters_run_in_configured_order_after_request_demands() -> None:
    driver = fleet.driver(enabled_filters=("DiskFilter", "ComputeFilter"))
    places = ["ForceHosts", "RequestedDestination", "RequestedCell", "SourceHost", "IgnoreHosts", "ExcludedCells"]
    always = [*places, "ExcludedHosts", "ResourceClassFilter", "ServerGroupRackFilter"]
    assert [one.name for one in driver.filters] == [*always, "DiskFilter", "ComputeFilter", "NUMATopologyFilter"]


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Another distribution that registers filters of its own."""
    name = f"site_filters_{tmp_path.name}".replace("-", "_")
    (tmp_path / f"{name}.py").write_text(
        "class EvenHosts:\n"
        "    reason = 'odd'\n"
        "    def host_passes(self, host, spec):\n"
        "        return int(host.host[1:]) % 2 == 0\n"
        "class Nothing:\n"
        "    def __init__(self, settings): pass\n"
        "class Demanding:\n"
        "    def __init__(self, settings, more): pass\n"
        "    def host_passes(self, host, spec): return True\n"
    )
    info = tmp_path / f"{name}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        f"[superconductor.scheduler.filters]\nEvenHosts = {name}:EvenHosts\nNothing = {name}:Nothing\n"
        f"Demanding = {name}:Demanding\nBroken = {name}:Missing\nAllHostsFilter = {name}:EvenHosts\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    plugins.registered_plugins.cache_clear()
    yield name
    plugins.registered_plugins.cache_clear()


def test_a_sites_own_filter_joins_the_chain(site: str) -> None:
    driver = plugins.load_driver(SchedulerSettings(enabled_filters=("RamFilter", "EvenHosts")))
    own = driver.filters[-2]
    assert isinstance(own, Adapter)
    assert (own.name, own.reason) == ("EvenHosts", "odd")


def test_a_plugin_that_is_no_filter_is_refused(site: str) -> None:
    with pytest.raises(errors.Misconfigured, match="'Nothing' is neither a Filter nor has it host_passes"):
        plugins.load_driver(SchedulerSettings(enabled_filters=("Nothing",)))


def test_an_unbuildable_plugin_is_refused_by_its_name(site: str) -> None:
    with pytest.raises(errors.Misconfigured, match=r"enabled_filters: 'Demanding' cannot be used: TypeError: .*missing"):
        plugins.load_driver(SchedulerSettings(enabled_filters=("Demanding",)))


def test_an_unimportable_plugin_is_refused_by_its_path(site: str) -> None:
    with pytest.raises(errors.Misconfigured, match=f"enabled_filters: '{site}:Missing' cannot be used: AttributeError"):
        plugins.load_driver(SchedulerSettings(enabled_filters=("Broken",)))


def test_a_doubly_registered_name_is_refused_with_paths(site: str) -> None:
    with pytest.raises(errors.Misconfigured, match=f"registered twice, as .*:AllHostsFilter and {site}:EvenHosts"):
        plugins.load_driver(SchedulerSettings(enabled_filters=("AllHostsFilter",)))

    own = plugins.load_driver(SchedulerSettings(enabled_filters=(f"{site}:EvenHosts",)))
    assert own.filters[-2].name == f"{site}:EvenHosts"


class TestByPath:
    """A class of the site's own, by where it is."""

    def test_filters_weighers_and_drivers_are_found(self) -> None:
        driver = fleet.driver(
            driver="scheduler.drivers.chance:ChanceScheduler",
            enabled_filters=("scheduler.filters.capacity:RamFilter",),
            enabled_weighers=("scheduler.weighers.capacity:RAMWeigher",),
        )
        assert driver.name == "chance"
        ranked = fleet.driver(enabled_filters=("scheduler.filters.capacity:RamFilter",), enabled_weighers=())
        assert ranked.filters[-2].name == "RamFilter"

    @pytest.mark.parametrize(
        ("path", "why"),
        [
            ("no_such_module:Driver", "ModuleNotFoundError"),
            ("scheduler.drivers.chance:Nothing", "AttributeError"),
            ("scheduler.engine.driver:ANY_HOST", "is not a class"),
            ("pathlib:Path", "cannot be used"),
            ("scheduler.drivers.chance:", "cannot be used|is not a class"),
        ],
    )
    def test_missing_or_invalid_drivers_are_refused_by_name(self, path: str, why: str) -> None:
        with pytest.raises(errors.Misconfigured, match=why) as refused:
            fleet.driver(driver=path)
        assert path in str(refused.value)
