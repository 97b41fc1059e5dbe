"""``/limits``: the quotas of the caller's project, in another format."""

from __future__ import annotations

import falcon
import msgspec

from api.http import call as calls
from api.http import policies
from api.http.call import Call, send_json
from api.http.microversions import Microversion
from api.http.query_parameters import refuse_unknown_names
from api.lookup.quota_limits import LimitsInForce, of_servers
from db.api.projects import quotas
from db.sql.engine import ApiDatabase
from objects import errors
from objects.ids import checked_identifier
from objects.quota import UNLIMITED

_NAMES = {
    "maxServerMeta": "metadata_items",
    "maxTotalKeypairs": "key_pairs",
    "maxServerGroups": "server_groups",
    "maxServerGroupMembers": "server_group_members",
    "maxTotalInstances": "instances",
    "maxTotalCores": "cores",
    "maxTotalRAMSize": "ram",
}
"""Quotas by the names of their limits; those of further names exist in older versions only."""
_INJECTED = {"maxPersonality": "injected_files", "maxPersonalitySize": "injected_file_content_bytes"}
_NETWORK = {
    "maxSecurityGroupRules": "security_group_rules",
    "maxSecurityGroups": "security_groups",
    "maxTotalFloatingIps": "floating_ips",
}
_NETWORK_USES = ("totalFloatingIpsUsed", "totalSecurityGroupsUsed")


class ProjectLimits:
    """Limits of the caller's project. An administrator may name another project in ``tenant_id``."""

    def __init__(self, database: ApiDatabase, limits: LimitsInForce) -> None:
        self._database = database
        self._limits = limits

    def on_get(self, req: falcon.Request, resp: falcon.Response) -> None:
        call = calls.get_call(req)
        project_id = _select_project(req, call)
        quota, groups = self._database.read(quotas.read_usage, project_id)
        limits = self._limits.read_layers(call, project_id).of_project
        limits |= msgspec.structs.asdict(quota.own.over_defaults(of_servers(limits)))
        absolute = {
            "totalInstancesUsed": quota.used.instances,
            "totalCoresUsed": quota.used.cores,
            "totalRAMUsed": quota.used.ram,
            "totalServerGroupsUsed": groups,
        }
        absolute |= {name: limits[quota_name] for name, quota_name in _limit_names(call).items()}
        if not call.has_feature(Microversion.NETWORK_LIMITS_GONE):
            absolute |= dict.fromkeys(_NETWORK_USES, 0)
        if not call.has_feature(Microversion.IMAGE_LIMITS_GONE):
            absolute["maxImageMeta"] = UNLIMITED
        send_json(resp, {"limits": {"rate": [], "absolute": absolute}})


def _limit_names(call: Call) -> dict[str, str]:
    network = {} if call.has_feature(Microversion.NETWORK_LIMITS_GONE) else _NETWORK
    injected = {} if call.has_feature(Microversion.INJECTED_FILES_GONE) else _INJECTED
    return _NAMES | network | injected


def _select_project(req: falcon.Request, call: Call) -> str:
    refuse_unknown_names(req, call, ("tenant_id",))
    named = req.get_param("tenant_id")
    if named is None or named == call.context.project_id:
        return call.context.project_id
    project = checked_identifier("tenant_id", named)
    if not call.is_allowed(policies.OTHER_LIMITS, project):
        raise errors.Forbidden("tenant_id: policy does not let you see the limits of another project")
    return project
