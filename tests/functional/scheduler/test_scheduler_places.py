"""Hints that name other servers: where those are is read from the ledger."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from objects import errors
from scheduler.framework.settings import DEFAULT_FILTERS
from tests.support import fleet
from tests.support.fleet import Site

WITH = msgspec.structs.replace(fleet.QUICK, enabled_filters=(*DEFAULT_FILTERS, "SameHostFilter", "DifferentHostFilter"))


def test_a_server_goes_near_or_away_from_another(tmp_path: Path) -> None:
    site = Site.on_sqlite(tmp_path, [fleet.node(f"h{n}") for n in range(3)])
    scheduler = site.scheduler(WITH)
    [[first, *_]] = site.boot(scheduler)
    [uuid] = site.claimed()
    for _ in range(3):
        [[same, *_]] = site.boot(scheduler, fleet.spec(scheduler_hints={"same_host": (uuid,)}))
        [[other, *alternates]] = site.boot(scheduler, fleet.spec(scheduler_hints={"different_host": (uuid,)}))
        assert same.host == first.host
        assert first.host not in {other.host, *(alternate.host for alternate in alternates)}


def test_servers_of_other_projects_are_nowhere(tmp_path: Path) -> None:
    site = Site.on_sqlite(tmp_path, [fleet.node("h1")])
    scheduler = site.scheduler(WITH)
    site.boot(scheduler)
    [uuid] = site.claimed()
    with pytest.raises(errors.NoValidHost, match="not with the servers of the hint same_host"):
        site.boot(scheduler, fleet.spec(project_id="other", scheduler_hints={"same_host": (uuid,)}))
    site.boot(scheduler, fleet.spec(project_id="other", scheduler_hints={"different_host": (uuid,)}))
