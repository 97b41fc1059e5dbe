"""Resource classes and traits in extra specs: what is understood, and what is refused in which words."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from objects import errors, extra_specs
from objects.amounts import Amounts
from objects.flavor import Flavor

KEYS = st.sampled_from(["resources:VCPU", "resources:CUSTOM_A", "resources:CUSTOM_a", "resources:GPU", "resources1:CUSTOM_A"])
VALUES = st.one_of(st.integers(-2, 2**33).map(str), st.sampled_from(["", "1.0", "1e3", " 1", "one", "0x1", "\u0661"]))


def flavor(specs: dict[str, str]) -> Flavor:
    return Flavor(flavor_id="f", name="f", vcpus=2, memory_mb=512, root_gb=10, extra_specs=specs)


def test_what_a_flavor_takes() -> None:
    assert flavor({}).taken_amounts == Amounts(vcpus=2, memory_mb=512, disk_gb=10)
    specs = {"resources:CUSTOM_GPU": "3", "resources:VCPU": "0", "resources:DISK_GB": "7", "hw:cpu_policy": "shared"}
    assert flavor(specs).taken_amounts == Amounts(vcpus=0, memory_mb=512, disk_gb=7, resources={"CUSTOM_GPU": 3})


@pytest.mark.parametrize(
    "specs",
    [
        {},
        {"resources:CUSTOM_GPU_2": "1", "resources:CUSTOM_A": "2147483647", "resources:MEMORY_MB": "0"},
        {"trait:SSD": "required", "trait:HW_GPU": "forbidden", "capabilities:x": "maybe", "traits": "x", "resources": "y"},
    ],
)
def test_what_can_be_read_passes(specs: dict[str, str]) -> None:
    extra_specs.check_specs(specs)


CLASSES = "use VCPU, MEMORY_MB, DISK_GB, or a custom one: CUSTOM_ and then A-Z, 0-9 and _"
GROUPS = "use resources:CLASS and trait:NAME"


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("resources:FOO", "1", f"resources:FOO: there is no resource class 'FOO'; {CLASSES}"),
        ("resources:VGPU", "1", f"resources:VGPU: there is no resource class 'VGPU'; {CLASSES}"),
        ("resources:CUSTOM_gpu", "1", f"resources:CUSTOM_gpu: there is no resource class 'CUSTOM_gpu'; {CLASSES}"),
        ("resources:CUSTOM_", "1", f"resources:CUSTOM_: there is no resource class 'CUSTOM_'; {CLASSES}"),
        ("resources:", "1", f"resources:: there is no resource class ''; {CLASSES}"),
        ("resources:CUSTOM_GPU", "0", "resources:CUSTOM_GPU: '0' is not a whole number from 1 to 2147483647"),
        ("resources:CUSTOM_GPU", "-1", "resources:CUSTOM_GPU: '-1' is not a whole number from 1 to 2147483647"),
        ("resources:CUSTOM_GPU", "1.5", "resources:CUSTOM_GPU: '1.5' is not a whole number from 1 to 2147483647"),
        ("resources:CUSTOM_GPU", "2147483648", "resources:CUSTOM_GPU: '2147483648' is not a whole number from 1 to 2147483647"),
        ("resources:CUSTOM_GPU", "9" * 5000, f"resources:CUSTOM_GPU: '{'9' * 40}' is not a whole number from 1 to 2147483647"),
        ("resources:VCPU", "-1", "resources:VCPU: '-1' is not a whole number from 0 to 2147483647"),
        ("trait:SSD", "maybe", "trait:SSD: 'maybe' is not required or forbidden"),
        ("trait:", "required", "trait:: does not name a trait; use trait:NAME"),
        ("resources1:CUSTOM_GPU", "1", f"resources1:CUSTOM_GPU: there are no groups such as 'resources1'; {GROUPS}"),
        ("trait_PCI:SSD", "required", f"trait_PCI:SSD: there are no groups such as 'trait_PCI'; {GROUPS}"),
    ],
)  # fmt: skip
def test_an_unreadable_extra_spec_is_refused_by_key(key: str, value: str, said: str) -> None:
    with pytest.raises(errors.Invalid) as refused:
        extra_specs.check_specs({"hw:ok": "1", key: value})
    assert str(refused.value) == said


def test_a_name_may_fill_its_column() -> None:
    extra_specs.check_specs({f"resources:CUSTOM_{'X' * 248}": "1"})
    with pytest.raises(errors.Invalid, match="there is no resource class"):
        extra_specs.check_specs({f"resources:CUSTOM_{'X' * 249}": "1"})


@given(st.dictionaries(KEYS, VALUES, max_size=3))
def test_what_passes_is_what_is_taken(specs: dict[str, str]) -> None:
    """Each key by itself: one that is refused asks for nothing, any other for its amount."""
    for key, value in specs.items():
        try:
            extra_specs.check_specs({key: value})
        except errors.Invalid:
            assert extra_specs.resource_amounts({key: value}) == {}
        else:
            assert extra_specs.resource_amounts({key: value}) == {key.partition(":")[2]: int(value)}


def test_an_image_can_only_require() -> None:
    extra_specs.check_image({"trait:SSD": "required", "hw_architecture": "x86_64"})
    for value in ("forbidden", "maybe"):
        with pytest.raises(errors.Invalid, match=f"trait:SSD: '{value}' is not required"):
            extra_specs.check_image({"trait:SSD": value})


@pytest.mark.parametrize(
    ("offered", "said"),
    [
        ({"VCPU": 1}, "VCPU: is not a custom resource class"),
        ({"GPU": 1}, "GPU: is not a custom resource class"),
        ({"CUSTOM_GPU": -1}, "CUSTOM_GPU: -1 is not a whole number from 0"),
        ({"CUSTOM_GPU": 2**31}, "CUSTOM_GPU: 2147483648 is not a whole number from 0"),
    ],
)
def test_what_no_host_can_offer(offered: dict[str, int], said: str) -> None:
    extra_specs.check_offer({"CUSTOM_GPU": 0, "CUSTOM_FPGA": 2**31 - 1})
    with pytest.raises(errors.Invalid, match=f"^{said}"):
        extra_specs.check_offer(offered)


@pytest.mark.parametrize(
    "key", ["pci_passthrough:alias", "accel:device_profile", "hw:pmem", "hw:cpu_dedicated_mask", "group_policy", "same_subtree1"]
)
def test_what_would_be_ignored_is_refused(key: str) -> None:
    with pytest.raises(errors.Invalid, match=f"^{key}: is not offered: .*; remove it"):
        extra_specs.check_specs({"hw:cpu_policy": "dedicated", key: "1"})
