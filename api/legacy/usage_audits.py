"""``/os-instance_usage_audit_log``: audits of usage by agents. There are none: usage is summed up when it is asked for."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import falcon

from api.http.versions import answer
from api.lookup.hosts import HostWatch
from objects import errors

_FORMATS = ("%Y-%m-%d %H:%M:%S.%f", "%Y-%m-%d %H:%M:%S")


class UsageAudits:
    """The last whole month before now, or with the suffix ``before`` the last one before a time. No host has run an audit."""

    def __init__(self, watch: HostWatch) -> None:
        self._watch = watch

    def on_get(self, req: falcon.Request, resp: falcon.Response) -> None:
        del req
        answer(resp, {"instance_usage_audit_logs": self._log(datetime.now(UTC))})

    def on_get_before(self, req: falcon.Request, resp: falcon.Response, before: str) -> None:
        del req
        answer(resp, {"instance_usage_audit_log": self._log(_time(before))})

    def _log(self, before: datetime) -> dict[str, Any]:
        ending = datetime(before.year, before.month, 1)
        previous = (ending.year - 1, 12) if ending.month == 1 else (ending.year, ending.month - 1)
        hosts = sorted({host for view in self._watch.views() for host in view.agents})
        return {
            "period_beginning": str(datetime(*previous, 1)),
            "period_ending": str(ending),
            "num_hosts": len(hosts),
            "num_hosts_done": 0,
            "num_hosts_running": 0,
            "num_hosts_not_run": len(hosts),
            "hosts_not_run": hosts,
            "total_instances": 0,
            "total_errors": 0,
            "overall_status": f"{f'0 of {len(hosts)}' if hosts else 'ALL'} hosts done. 0 errors.",
            "log": {},
        }


def _time(text: str) -> datetime:
    for form in _FORMATS:
        try:
            found = datetime.strptime(text, form).replace(tzinfo=UTC)
        except ValueError:
            continue
        if found.year > 1:
            return found
    raise errors.Invalid(f"Invalid timestamp for date {text[:40]}")
