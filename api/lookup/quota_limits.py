"""The limits in force: configured, replaced by the default class, by those of a project, and lowered by those of a user."""

from __future__ import annotations

from typing import Any

import msgspec

from api.http.call import Call
from api.http.microversions import Microversion
from api.http.schemas import INJECTED_QUOTAS, METADATA_ITEMS_LIMIT, NETWORK_QUOTAS
from api.opts import ApiSettings
from db.api.projects import quota_limits
from db.api.rows.cache import EpochCache, EpochReader
from db.api.rows.epochs import Epoch
from objects import errors
from objects.base import INT32_MAX, Object
from objects.quota import RESOURCES, UNLIMITED, QuotaLimits, lower_limit

INJECTED_DEFAULTS = {"injected_files": 5, "injected_file_content_bytes": 10240, "injected_file_path_bytes": 255}
"""As in the Compute API: a config drive is small. The default class changes them."""


class LimitLayers(Object, frozen=True, kw_only=True):
    """Limits by name, without a project's or user's own limits of servers.

    ``defaults``: of projects without limits of their own. ``of_project``: of this project. ``of_user``: only those that were set
    for the user in the project. ``in_force``: for the user; the lower one where project and user have a limit.
    """

    defaults: dict[str, int]
    of_project: dict[str, int]
    of_user: dict[str, int]
    in_force: dict[str, int]


class LimitsInForce:
    """Answers from a cache, as of ``Call.since``, like the catalog. Thread-safe."""

    def __init__(self, settings: ApiSettings, reader: EpochReader) -> None:
        self.cache = EpochCache(reader, (Epoch.QUOTAS,), quota_limits.read)
        self._configured = configured_limits(settings)

    def read_layers(self, call: Call, project_id: str | None = None, user_id: str | None = None) -> LimitLayers:
        """The limits of a user in a project. None: the caller's project, and the caller."""
        project_id = call.context.project_id if project_id is None else project_id
        user_id = call.context.user_id if user_id is None else user_id
        overridden = self.cache.refresh_value(call.since)
        defaults = self._configured | overridden.defaults
        of_project = defaults | overridden.projects.get(project_id, {})
        of_user = overridden.users.get((project_id, user_id), {})
        lowered = {name: lower_limit(of_project[name], limit) for name, limit in of_user.items() if name in of_project}
        return LimitLayers(defaults=defaults, of_project=of_project, of_user=of_user, in_force=of_project | lowered)


def configured_limits(settings: ApiSettings) -> dict[str, int]:
    """The limits of the configuration, by the Compute API's names; what does not exist here is unlimited."""
    known = {
        "metadata_items": METADATA_ITEMS_LIMIT,
        "key_pairs": settings.key_pairs,
        "server_groups": settings.server_groups,
        "server_group_members": settings.server_group_members,
    }
    return dict.fromkeys(NETWORK_QUOTAS, UNLIMITED) | INJECTED_DEFAULTS | known | msgspec.structs.asdict(settings.quota)


def of_servers(limits: dict[str, int]) -> QuotaLimits:
    return QuotaLimits(**{name: limits[name] for name in RESOURCES})


def names_in(call: Call, network_gone: Microversion) -> tuple[str, ...]:
    """The names of quotas in the call's version. ``network_gone``: the version without those of networks."""
    gone: tuple[str, ...] = NETWORK_QUOTAS if call.has_feature(network_gone) else ()
    gone += INJECTED_QUOTAS if call.has_feature(Microversion.INJECTED_FILES_GONE) else ()
    every = (*RESOURCES, "key_pairs", "metadata_items", "server_groups", "server_group_members", *INJECTED_QUOTAS, *NETWORK_QUOTAS)
    return tuple(name for name in every if name not in gone)


def parse_limits(body: dict[str, Any], field: str) -> dict[str, int]:
    """The limits in a body. Raises errors.Invalid: a JSON schema does not compare numbers given as text."""
    limits = {name: int(value) for name, value in body.items() if name != "force"}
    for name, limit in limits.items():
        if limit > INT32_MAX:
            raise errors.Invalid(f"{field}.{name}: {limit} is more than the maximum, {INT32_MAX}")
    return limits
