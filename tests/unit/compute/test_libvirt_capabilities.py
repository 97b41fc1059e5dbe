"""What libvirt says of a host becomes facts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compute.libvirt import capabilities
from compute.libvirt.capabilities import HostCpu, NumaCell, cpu_list, cpu_text
from objects import errors
from tests.support.libvirt_facts import emulating, recorded


def test_the_recorded_host() -> None:
    facts = emulating()
    assert (facts.arch, facts.virt_types, facts.libvirt_version, facts.small_page_kib) == ("x86_64", ("qemu", "kvm"), 9_000_000, 4)
    cpus = (HostCpu(id=0, siblings=(0,)), HostCpu(id=1, siblings=(1,)))
    assert facts.cells == (NumaCell(id=0, memory_kib=5859532, cpus=cpus, pages={4: 1464883, 2048: 0, 1048576: 0}),)
    assert facts.machine_types["q35"] == facts.machine_types["pc-q35-7.2"] == "pc-q35-7.2"
    default = facts.machine_facts()
    assert (default.name, default.virt_type, default.max_vcpus, default.firmware) == ("pc-i440fx-7.2", "qemu", 255, ())
    assert default.cpu_modes == ("maximum", "host-model", "custom")
    assert default.cpu_models == ("qemu64", "Penryn", "Nehalem")
    assert "ide" in default.disk_buses
    assert "ide" not in facts.machine_facts("q35").disk_buses


def test_implied_features_come_from_the_expanded_cpu() -> None:
    plain = capabilities.parse_capabilities(recorded("capabilities"), [recorded("domain-pc")], 1, 1)
    assert {"avx2", "ht"} <= {*plain.cpu_features}
    assert "sse2" not in plain.cpu_features
    assert {"avx2", "ht", "sse2"} <= {*emulating().cpu_features}


def test_an_unqueried_machine_type_is_like_its_family() -> None:
    facts = emulating()
    assert facts.machine_facts("pc-q35-6.2").name == "pc-q35-7.2"
    with pytest.raises(errors.BuildFailed, match="no machine type 's390-ccw'"):
        facts.machine_facts("s390-ccw")


def test_libvirt_is_queried_for_usual_machine_types() -> None:
    asked = capabilities.machines_to_ask(recorded("capabilities"), "pc-q35-6.2")
    assert asked == [None, "pc-q35-6.2", "pc", "q35"]
    assert capabilities.machines_to_ask(recorded("capabilities"), "none-such") == [None, "pc", "q35"]
    assert capabilities.host_cpu_xml(recorded("capabilities")).startswith("<cpu>")


def test_a_host_without_cells_has_one() -> None:
    text = recorded("capabilities")
    start, end = text.index("<cells"), text.index("</cells>")
    facts = capabilities.parse_capabilities(text[:start] + text[end + len("</cells>") :], [recorded("domain-pc")], 1, 1)
    assert [cpu.id for cell in facts.cells for cpu in cell.cpus] == [0, 1]


@pytest.mark.parametrize(
    "text", ["", "<capabilities>", "<capabilities/>", recorded("capabilities").replace("x86_64", "riscv64", 1)]
)
def test_unusable_capabilities_are_refused(text: str) -> None:
    with pytest.raises(errors.Misconfigured):
        capabilities.parse_capabilities(text, [recorded("domain-pc")], 1, 1)


def test_cpu_sets() -> None:
    assert cpu_list("0-3, 6,^2") == (0, 1, 3, 6)
    assert cpu_text((6, 0, 1, 3, 1)) == "0-1,3,6"
    for wrong in ("a", "3-1", "1-", "0-99999999999", "-1"):
        with pytest.raises(ValueError, match="is not a range of CPUs"):
            cpu_list(wrong)


@given(st.sets(st.integers(0, 500)))
def test_a_cpu_set_survives_its_text(cpus: set[int]) -> None:
    assert cpu_list(cpu_text(tuple(cpus))) == tuple(sorted(cpus))
