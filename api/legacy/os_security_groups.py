"""``/os-security-groups``: where clients without a network service look up security groups, up to 2.35."""

from __future__ import annotations

from typing import Any

import falcon

from api.http import call as calls
from api.http.query_parameters import whole_number
from api.http.validation import is_uuid
from api.http.versions import answer
from api.lookup import security_groups
from objects import errors

Document = dict[str, Any]

_ANYWHERE = {"IPv4": "0.0.0.0/0", "IPv6": "::/0"}


class ProjectSecurityGroups:
    """The group of the caller's project. The method with the suffix ``one`` shows it by its ID."""

    def on_get(self, req: falcon.Request, resp: falcon.Response) -> None:
        whole_number("limit", req.get_param("limit") or "0")  # raises errors.Invalid; one group fits every limit
        offset = whole_number("offset", req.get_param("offset") or "0")
        answer(resp, {"security_groups": [_shown(calls.of(req).context.project_id)][offset:]})

    def on_get_one(self, req: falcon.Request, resp: falcon.Response, security_group_id: str) -> None:
        project_id = calls.of(req).context.project_id
        if not is_uuid(security_group_id):
            raise errors.Invalid("Security group id should be uuid")
        if security_group_id.lower() != security_groups.id_of(project_id):
            raise errors.NotFound(f"Security group {security_group_id} does not exist")
        answer(resp, {"security_group": _shown(project_id)})


def _shown(project_id: str) -> Document:
    """The group as the Compute API has it: with the rules of incoming traffic only."""
    group = security_groups.group(project_id)
    return {
        "id": group["id"],
        "name": group["name"],
        "description": group["description"],
        "tenant_id": project_id,
        "rules": [_rule(rule) for rule in group["security_group_rules"] if rule["direction"] == "ingress"],
    }


def _rule(rule: Document) -> Document:
    return {
        "id": rule["id"],
        "parent_group_id": rule["security_group_id"],
        "ip_protocol": rule["protocol"],
        "from_port": rule["port_range_min"],
        "to_port": rule["port_range_max"],
        "group": {},
        "ip_range": {"cidr": _ANYWHERE[rule["ethertype"]]},
    }
