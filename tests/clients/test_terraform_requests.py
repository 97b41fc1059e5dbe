"""What Terraform's OpenStack provider sends in the life of each resource works, with the answers that it needs."""

from __future__ import annotations

import pytest

from tests.support.keys import ED25519
from tests.support.keystone_cloud import KeystoneCloud
from tests.support.terraform_replay import Record, TerraformReplay, records

RECORDS = records()


@pytest.mark.parametrize("record", RECORDS, ids=[record.resource for record in RECORDS])
def test_resource_requests_succeed_as_terraform_expects(cloud: KeystoneCloud, record: Record) -> None:
    caller = cloud.caller(record.user)
    token, project = caller.done("token", "issue", "-f", "value", "-c", "id", "-c", "project_id").split()
    other = cloud.admin.done("project", "show", "beta", "-f", "value", "-c", "id")
    endpoints = {service: f"{cloud.root}{path}" for service, path in SERVICES.items()}
    kept = {"public_key": ED25519, "project": project, "other_project": other}
    TerraformReplay(endpoints, token, kept).run(record)


SERVICES = {"compute": "/v2.1", "image": "/image", "network": "/network"}
"""The paths that the catalog has."""
