"""The chart by Helm's own code and Kubernetes' schemas: what it makes of the answers, and which values it refuses."""

from __future__ import annotations

from typing import Any

import pytest

from cli.install import units
from service.opts import SHUTDOWN
from tests.support.install_site import InstallSite
from tests.support.rendered_chart import COMMANDS, pods, render


@pytest.fixture(scope="module")
def rendered(site: InstallSite) -> dict[str, Any]:
    return render(site, api={"authStrategy": "noauth-anywhere"})


def test_helm_does_not_complain_and_objects_fit_schemas(rendered: dict[str, Any]) -> None:
    assert [message for message in rendered["messages"]["messages"] if message["severity"] > 1] == []
    assert (rendered["error"], rendered["faults"]) == ("", [])


def test_every_role_has_probes_limits_and_stop_times(rendered: dict[str, Any]) -> None:
    found = pods(rendered)
    assert {name: pod["containers"][0]["command"][0] for name, pod in found.items()} == COMMANDS
    for pod in found.values():
        (container,) = pod["containers"]
        assert container["livenessProbe"]["httpGet"] == {"path": "/alive", "port": "monitoring"}
        assert container["readinessProbe"]["httpGet"] == {"path": "/health", "port": "monitoring"}
        assert {"requests", "limits"} <= container["resources"].keys()
        assert pod["terminationGracePeriodSeconds"] >= SHUTDOWN.default + units.STOP_MARGIN_S
        assert container["securityContext"]["readOnlyRootFilesystem"]
        assert "env" not in container, "no secret is in the environment"
    budgets = {made["metadata"]["name"] for made in rendered["objects"] if made["kind"] == "PodDisruptionBudget"}
    assert budgets == {name for name in COMMANDS if "agent" not in name}


def test_a_pod_reads_only_its_levels_secret(rendered: dict[str, Any]) -> None:
    secrets = {name: pod["volumes"][0]["projected"]["sources"][0]["secret"]["name"] for name, pod in pods(rendered).items()}
    assert secrets == dict.fromkeys(("sc-api", "sc-scheduler", "sc-conductor"), "sc-api") | {
        "sc-conductor-cell1": "sc-cell1",
        "sc-agent-cell1-host1": "sc-cell1-host1",
    }
    (job,) = [made for made in rendered["objects"] if made["kind"] == "Job"]
    assert job["spec"]["template"]["spec"]["containers"][0]["command"] == ["superconductor", "db", "sync"]


def test_a_changed_configuration_replaces_the_pods(site: InstallSite, rendered: dict[str, Any]) -> None:
    def checksums(told: dict[str, Any]) -> dict[str, str]:
        kinds = ("Deployment", "StatefulSet")
        annotated = {
            made["metadata"]["name"]: made["spec"]["template"]["metadata"] for made in told["objects"] if made["kind"] in kinds
        }
        return {name: metadata["annotations"]["checksum/configuration"] for name, metadata in annotated.items()}

    changed = render(site, api={"authStrategy": "noauth-anywhere"}, secrets={"cell1": "[DEFAULT]\n"})
    before, after = checksums(rendered), checksums(changed)
    assert {name for name in before if before[name] != after[name]} == {"sc-conductor-cell1"}


def test_values_that_cannot_work_are_refused(site: InstallSite) -> None:
    for values in ({}, {"api": {"authStrategy": "none"}}, {"api": {"authStrategy": "keystone"}, "replicas": 3}):
        told = render(site, **values)
        said = " ".join([told["error"], *(message["error"] for message in told["messages"]["messages"])])
        assert "authStrategy" in said or "replicas" in said, told
        assert told["objects"] == []


def test_keystone_has_a_secret_and_images_a_volume(site: InstallSite) -> None:
    told = render(
        site,
        api={"authStrategy": "keystone"},
        secrets={"keystone": "[keystone_authtoken]\nauth_url = x\n"},
        imagesClaim="images",
        roles={"console-proxy": {"replicas": 1}},
    )
    assert told["faults"] == []
    by_name = {(made["kind"], made["metadata"]["name"]): made for made in told["objects"]}
    assert by_name["Secret", "sc-api"]["stringData"]["keystone.conf"].startswith("[keystone_authtoken]")
    options = by_name["ConfigMap", "sc-pods"]["data"]["pods.conf"]
    assert "auth_strategy = keystone" in options
    assert "noauth_anywhere" not in options
    claims = {name for name, pod in pods(told).items() for volume in pod["volumes"] if "persistentVolumeClaim" in volume}
    assert claims == {"sc-api", "sc-conductor", "sc-agent-cell1-host1"}
    assert ("Service", "sc-console-proxy") in by_name
