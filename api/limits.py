"""``/limits``: the quotas of the caller's project, in another format."""

from __future__ import annotations

import falcon

from api import call as calls
from api import policies
from api.call import Call
from api.microversions import Since
from api.opts import ApiSettings
from api.schemas import METADATA_ITEMS_LIMIT
from api.versions import answer
from db.api import quotas
from db.sql.engine import ApiDatabase
from objects import errors
from objects.ids import checked_identifier
from objects.quota import UNLIMITED

UNCOUNTED_LIMITS = (
    "maxPersonality",
    "maxPersonalitySize",
    "maxServerGroupMembers",
    "maxServerGroups",
)
UNCOUNTED_USES = ("totalServerGroupsUsed",)
NETWORK_LIMITS = ("maxSecurityGroupRules", "maxSecurityGroups", "maxTotalFloatingIps")
NETWORK_USES = ("totalFloatingIpsUsed", "totalSecurityGroupsUsed")
IMAGE_LIMITS = ("maxImageMeta",)
"""Further limits of the Compute API, which are not counted here; those of networks and images exist in older versions only."""


class ProjectLimits:
    """Limits of the caller's project. An administrator may name another project in ``tenant_id``."""

    def __init__(self, settings: ApiSettings, database: ApiDatabase) -> None:
        self._settings = settings
        self._database = database

    def on_get(self, req: falcon.Request, resp: falcon.Response) -> None:
        call = calls.of(req)
        quota = self._database.read(quotas.get, _project(req, call))
        limits = quota.own.over(self._settings.quota)
        counted = {
            "maxServerMeta": METADATA_ITEMS_LIMIT,
            "maxTotalKeypairs": self._settings.key_pairs,
            "maxTotalInstances": limits.instances,
            "maxTotalCores": limits.cores,
            "maxTotalRAMSize": limits.ram,
            "totalInstancesUsed": quota.used.instances,
            "totalCoresUsed": quota.used.cores,
            "totalRAMUsed": quota.used.ram,
        }
        answer(resp, {"limits": {"rate": [], "absolute": _uncounted(call) | counted}})


def _project(req: falcon.Request, call: Call) -> str:
    named = req.get_param("tenant_id")
    if named is None or named == call.context.project_id:
        return call.context.project_id
    project = checked_identifier("tenant_id", named)
    if not call.may(policies.OTHER_LIMITS, project):
        raise errors.Forbidden("tenant_id: policy does not let you see the limits of another project")
    return project


def _uncounted(call: Call) -> dict[str, int]:
    limits, uses = [*UNCOUNTED_LIMITS], [*UNCOUNTED_USES]
    if not call.has(Since.NETWORK_LIMITS_GONE):
        limits += NETWORK_LIMITS
        uses += NETWORK_USES
    if not call.has(Since.IMAGE_LIMITS_GONE):
        limits += IMAGE_LIMITS
    return dict.fromkeys(limits, UNLIMITED) | dict.fromkeys(uses, 0)
