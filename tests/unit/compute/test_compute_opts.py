"""Options become settings, drivers are found by name."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from compute import opts
from compute.drivers import open_driver
from compute.simulated import SimulatedDriver
from objects import errors
from service import config


def test_every_option_reaches_the_settings() -> None:
    conf = config.load_options([], opts.list_opts(), files=[], overrides={"compute.host": "h7", "simulated.vcpus": 3})
    settings = opts.read_settings(conf)
    assert (settings.host, settings.simulated.vcpus) == ("h7", 3)
    names = {option.dest for option in opts.COMPUTE} | {"simulated", "images_folder", "images_drop"}
    names |= {"report_window", "report_retry_max", "call_timeout", "dispatch_threads"}
    assert names == {field.name for field in msgspec.structs.fields(opts.ComputeSettings)}
    assert {option.dest for option in opts.SIMULATED} == {field.name for field in msgspec.structs.fields(opts.SimulatedSettings)}


def test_defaults_of_settings_are_those_of_the_options() -> None:
    settings = opts.read_settings(config.load_options([], opts.list_opts(), files=[]))
    path = settings.simulated.state_path
    assert settings == opts.ComputeSettings(host=settings.host, simulated=opts.SimulatedSettings(state_path=path))


def test_delays_must_go_together() -> None:
    conf = config.load_options([], opts.list_opts(), files=[], overrides={"simulated.spawn_delay_min": 2})
    with pytest.raises(errors.Misconfigured, match="spawn_delay_max"):
        opts.read_settings(conf)


CONF = config.load_options([], opts.list_opts(), files=[])


@pytest.mark.parametrize("wrong", ["rack", "[]", '"r1"', ""])
def test_attributes_must_be_an_object(wrong: str) -> None:
    conf = config.load_options([], opts.list_opts(), files=[], overrides={"simulated.attributes": wrong})
    with pytest.raises(errors.Misconfigured, match=r"\[simulated\] attributes: .* is not a JSON object"):
        opts.read_settings(conf)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ("[]", "'[]' is not a JSON object of whole numbers"),
        ('{"CUSTOM_GPU": 1.5}', "is not a JSON object of whole numbers"),
        ('{"CUSTOM_GPU": "4"}', "is not a JSON object of whole numbers"),
        ('{"GPU": 4}', "GPU: is not a custom resource class"),
        ('{"CUSTOM_GPU": -4}', "CUSTOM_GPU: -4 is not a whole number from 0 to 2147483647"),
        ('{"CUSTOM_GPU": 4294967296}', "CUSTOM_GPU: 4294967296 is not a whole number from 0 to 2147483647"),
    ],
)
def test_resources_must_be_amounts_of_custom_classes(wrong: str, said: str) -> None:
    conf = config.load_options([], opts.list_opts(), files=[], overrides={"simulated.resources": wrong})
    with pytest.raises(errors.Misconfigured, match=r"^\[simulated\] resources: ") as refused:
        opts.read_settings(conf)
    assert said in str(refused.value)


def test_a_simulated_host_offers_its_resources(tmp_path: Path) -> None:
    text = '{"CUSTOM_GPU": 4, "CUSTOM_FPGA": 0}'
    driver = open_driver(
        CONF, opts.ComputeSettings(host="h1", simulated=opts.SimulatedSettings(state_path=str(tmp_path), resources=text))
    )
    assert driver.nodes()[0].resources == {"CUSTOM_GPU": 4, "CUSTOM_FPGA": 0}
    driver.close()


def test_a_simulated_host_tells_its_attributes(tmp_path: Path) -> None:
    text = '{"traits": ["SSD"], "rack": "r1"}'
    driver = open_driver(
        CONF, opts.ComputeSettings(host="h1", simulated=opts.SimulatedSettings(state_path=str(tmp_path), attributes=text))
    )
    assert driver.nodes()[0].attributes == {"traits": ["SSD"], "rack": "r1"}
    driver.close()


def test_the_simulated_driver_is_there_without_installation(tmp_path: Path) -> None:
    settings = opts.ComputeSettings(host="h1", simulated=opts.SimulatedSettings(state_path=str(tmp_path), memory_mb=77))
    driver = open_driver(CONF, settings)
    assert isinstance(driver, SimulatedDriver)
    assert driver.nodes()[0].memory_mb == 77
    driver.close()


def test_an_unknown_driver_is_refused_listing_known_ones(tmp_path: Path) -> None:
    settings = opts.ComputeSettings(host="h1", driver="kvm", simulated=opts.SimulatedSettings(state_path=str(tmp_path)))
    with pytest.raises(errors.Misconfigured, match=r"no 'kvm'; choose one of: .*simulated"):
        open_driver(CONF, settings)
