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
from objects.base import INT32_MAX
from objects.quota import RESOURCES, UNLIMITED, QuotaLimits, lower_limit

INJECTED_DEFAULTS = {"injected_files": 5, "injected_file_content_bytes": 10240, "injected_file_path_bytes": 255}
"""As in the Compute API: a config drive is small. The default class changes them."""


class LimitsInForce:
    """Answers from a cache, as of ``Call.since``, like the catalog. Thread-safe."""

    def __init__(self, settings: ApiSettings, reader: EpochReader) -> None:
        self.cache = EpochCache(reader, (Epoch.QUOTAS,), quota_limits.read)
        self._configured = configured_limits(settings)

    def default_limits(self, call: Call) -> dict[str, int]:
        """By name, of a project without limits of its own."""
        return self._configured | self.cache.refresh_value(call.since).defaults

    def project_limits(self, project_id: str, call: Call) -> dict[str, int]:
        """By name, without a project's own limits of servers."""
        return self.default_limits(call) | self.cache.refresh_value(call.since).projects.get(project_id, {})

    def of_user(self, project_id: str, user_id: str, call: Call) -> dict[str, int]:
        """Only those that were set for the user in the project, by name, without the limits of servers."""
        return self.cache.refresh_value(call.since).users.get((project_id, user_id), {})

    def in_force(self, call: Call, user_id: str | None = None) -> dict[str, int]:
        """By name, for a user in the caller's project: the lower one where both have a limit. Without those of servers.

        ``user_id`` None: the caller.
        """
        project_id = call.context.project_id
        user_limits = self.of_user(project_id, call.context.user_id if user_id is None else user_id, call)
        limits = self.project_limits(project_id, call)
        return limits | {name: lower_limit(limits[name], limit) for name, limit in user_limits.items() if name in limits}


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
