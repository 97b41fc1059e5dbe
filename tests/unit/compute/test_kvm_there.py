"""KVM is used only if the processor has it and the device can be opened."""

from __future__ import annotations

from pathlib import Path

import pytest

from compute.libvirt.kvm import why_no_kvm

INTEL = "processor\t: 0\nvendor_id\t: GenuineIntel\nflags\t\t: fpu vmx sse\n"
WITHOUT = "processor\t: 0\nvendor_id\t: AuthenticAMD\nflags\t\t: fpu svm_lock sse\n"
ARM = "processor\t: 0\nBogoMIPS\t: 243.75\nFeatures\t: fp asimd\n"


@pytest.mark.parametrize(
    ("cpuinfo", "device", "why"),
    [
        (INTEL, True, ""),
        (INTEL, False, "cannot be opened"),
        (WITHOUT, True, "neither vmx nor svm"),
        (ARM, True, ""),
        (ARM, False, "cannot be opened"),
    ],
)
def test_processor_and_device_must_offer_it(tmp_path: Path, cpuinfo: str, device: bool, why: str) -> None:
    (tmp_path / "cpuinfo").write_text(cpuinfo)
    if device:
        (tmp_path / "kvm").touch()

    found = why_no_kvm(tmp_path / "cpuinfo", tmp_path / "kvm")

    assert why in found
    assert bool(found) == bool(why)
