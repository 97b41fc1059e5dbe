"""Options of guests become settings, and combinations that cannot work are refused."""

from __future__ import annotations

from typing import Any

import pytest
from oslo_config import cfg

from compute.libvirt.guest_options import GUEST, GuestSettings, guest_settings
from objects import errors


def read(**values: Any) -> GuestSettings:
    conf = cfg.ConfigOpts()
    conf.register_opts([cfg.StrOpt("virt_type", default="kvm"), *GUEST], group="libvirt")
    conf([], default_config_files=[])
    for name, value in values.items():
        conf.set_override(name, value, group="libvirt")
    return guest_settings(conf.libvirt)


def test_every_option_reaches_the_settings() -> None:
    assert read() == GuestSettings()
    assert {option.dest for option in GUEST} | {"virt_type"} == {*GuestSettings.__struct_fields__}
    found = read(cpu_mode="custom", cpu_models=["EPYC", "Penryn"], virt_type="qemu", guest_overhead_mb=0)
    assert (found.cpu_models, found.effective_cpu_mode, found.effective_overhead_mb) == (("EPYC", "Penryn"), "custom", 0)


def test_defaults_depend_on_the_virtualization() -> None:
    assert (GuestSettings().effective_cpu_mode, GuestSettings().effective_overhead_mb) == ("host-model", 64)
    emulated = GuestSettings(virt_type="qemu")
    assert (emulated.effective_cpu_mode, emulated.effective_overhead_mb) == ("none", 100)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"cpu_mode": "custom"}, "cpu_models: name at least one"),
        ({"cpu_models": ["EPYC"]}, "cpu_models: set cpu_mode = custom"),
        ({"cpu_mode": "host-passthrough", "virt_type": "qemu"}, "host-passthrough needs virt_type = kvm"),
        ({"cpu_features": ["+avx"], "virt_type": "qemu"}, "cpu_features: set cpu_mode"),
        ({"disk_io": "native"}, "native needs disk_cache"),
        ({"cpu_shared_set": "a"}, "cpu_shared_set: 'a' is not a set of CPUs"),
    ],
)
def test_what_cannot_work_is_refused(values: dict[str, Any], said: str) -> None:
    with pytest.raises(errors.Misconfigured, match=said):
        read(**values)
