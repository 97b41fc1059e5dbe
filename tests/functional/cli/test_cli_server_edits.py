"""``server set|unset|lock|unlock`` against an API that really listens."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.api import TENANT, Front, endpoint_of, serve_http
from tests.support.commands import Operator, Shell
from tests.support.fronts import front_fixture

front = front_fixture()


@pytest.fixture
def operator(front: Front, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[Operator]:
    with serve_http(front) as service:
        yield Operator(Shell(tmp_path, capsys), endpoint_of(service))


@pytest.fixture
def server(front: Front) -> str:
    return front.boot("web", TENANT, metadata={"role": "web"})


def shown(operator: Operator, server: str) -> dict[str, Any]:
    found: dict[str, Any] = operator.json(f"server show {server}")
    return found


def test_set_changes_and_unset_removes_named_values(front: Front, operator: Operator, server: str) -> None:
    line = "server set web --name db --description D --property tier=1 --property a=b=c --tag blue --tag 'a b%' --project p1"
    assert operator.done(line) == ""
    found = shown(operator, server)
    assert (found["name"], found["description"]) == ("db", "D")
    assert (found["metadata"], found["tags"]) == ({"role": "web", "tier": "1", "a": "b=c"}, ["blue", "a b%"])
    operator.done(f"server unset {server} --description --property tier --property a --tag 'a b%' --project p1")
    found = shown(operator, server)
    assert (found["name"], found["description"], found["metadata"], found["tags"]) == ("db", None, {"role": "web"}, ["blue"])


def test_unset_goes_on_after_what_is_not_there(front: Front, operator: Operator, server: str) -> None:
    outcome = operator(f"server unset {server} --property nothing --property role --tag none")
    assert (outcome.status, outcome.out, outcome.err.count("\n")) == (1, "", 2)
    assert shown(operator, server)["metadata"] == {}


def test_lock_and_unlock_go_on_after_a_refusal(front: Front, operator: Operator, server: str) -> None:
    other = front.boot("other", TENANT)
    outcome = operator(f"server lock nobody {server} {other}")
    assert (outcome.status, "no server 'nobody'" in outcome.err) == (1, True)
    assert [shown(operator, uuid)["locked"] for uuid in (server, other)] == [True, True]
    assert front.delete(server, TENANT).status_code == 409
    assert operator.done(f"server unlock {server} {other}") == ""
    assert [shown(operator, uuid)["locked"] for uuid in (server, other)] == [False, False]
    assert front.delete(server, TENANT).status_code == 204


@pytest.mark.parametrize("line", ["server set", "server set web --name ''", "server set web --property x", "server lock"])
def test_bad_arguments_are_usage_errors(operator: Operator, line: str) -> None:
    operator.refused(line, status=2)
