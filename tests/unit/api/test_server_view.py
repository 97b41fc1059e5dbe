"""A server as it is shown to different callers, in different versions."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import pytest

from api.http.call import Call
from api.http.microversions import MINIMUM
from api.lookup import server_view
from objects.flavor import Flavor
from objects.instance import Server
from objects.spec import Image, RequestSpec, ServerProperties
from tests.support.callers import call

FLAVOR = Flavor(flavor_id="f1", name="small", vcpus=1, memory_mb=2048, root_gb=20, swap_mb=512, extra_specs={"a": "b"})
SPEC = RequestSpec(
    batch_id="0b1e6df5-6ea8-4f4c-a1e6-2f9f0f6f9b9a",
    request_id="req-1",
    project_id="p1",
    user_id="u1",
    name="web",
    flavor=FLAVOR,
    image=Image(id="i1"),
    properties=ServerProperties(tags=("t",), description="d", key_name="k"),
)
FAULT = "Exceeded maximum number of attempts (2). Attempt 1 on h1: Boom: no. Attempt 2 on h2: Boom: no."


def server(state: str = "active", **fields: str | float | None) -> Server:
    known = {"host": "h1", "node": "n1", "cell_uuid": "c1", "availability_zone": "z1", "launched_at": 100.5}
    return Server(
        uuid="3f0a2b5e-1111-4222-8333-444455556666",
        batch_id=SPEC.batch_id,
        project_id="p1",
        user_id="u1",
        name="Web Server",
        state=state,
        created_at=0.0,
        updated_at=60.0,
        **(known | fields),  # type: ignore[arg-type]  # a dictionary of fields of several types
    )


def detail(shown: Server, asked: Call) -> server_view.Document:
    return server_view.detail_document(shown, SPEC, asked, "UP")


@pytest.mark.parametrize(
    ("state", "cell", "status", "vm_state", "task", "power"),
    [
        ("building", None, "BUILD", "building", "scheduling", 0),
        ("building", "c1", "BUILD", "building", "spawning", 0),
        ("active", "c1", "ACTIVE", "active", None, 1),
        ("error", "c1", "ERROR", "error", None, 0),
        ("deleting", "c1", "ACTIVE", "active", "deleting", 1),
        ("deleted", "c1", "DELETED", "deleted", None, 0),
    ],
)
def test_states_use_the_words_of_the_compute_api(
    state: str, cell: str | None, status: str, vm_state: str, task: str | None, power: int
) -> None:
    """Status, vm_state, task_state and power_state."""
    shown = detail(server(state, cell_uuid=cell), call())
    assert shown["status"] == status
    assert shown["OS-EXT-STS:vm_state"] == vm_state
    assert shown["OS-EXT-STS:task_state"] == task
    assert shown["OS-EXT-STS:power_state"] == power


def test_only_an_error_has_a_fault() -> None:
    """With the time at which it was noted."""
    assert "fault" not in detail(server(), call())
    assert detail(server("error", fault=FAULT), call())["fault"] == {
        "code": 500,
        "created": "1970-01-01T00:01:00Z",
        "message": FAULT,
    }


def test_a_tenant_reads_no_host_names() -> None:
    """Not in the fault, not in the attributes, not anywhere."""
    shown = detail(
        server("error", host="secret-host", node="secret-node", fault=FAULT.replace("h1", "secret-host")), call(admin=False)
    )
    assert "secret" not in repr(shown)
    assert shown["fault"]["message"] == "Exceeded maximum number of attempts (2)."
    assert [name for name in shown if name.startswith("OS-EXT-SRV-ATTR")] == ["OS-EXT-SRV-ATTR:hostname"]
    assert "host_status" not in shown


def test_the_host_id_shows_equality_but_no_name() -> None:
    """Per project: another project sees another id for the same host."""
    one, two = detail(server(host="h1"), call()), detail(server(host="h2"), call())
    assert re.fullmatch("[0-9a-f]{56}", one["hostId"])
    assert one["hostId"] == detail(server(host="h1"), call())["hostId"]
    assert one["hostId"] != two["hostId"]
    assert detail(server(host=None), call())["hostId"] == ""


def test_the_oldest_version_lacks_the_newer_fields() -> None:
    """And links to its flavor rather than holding it."""
    shown = detail(server(), call(MINIMUM))
    newer = {"locked", "description", "tags", "host_status", "OS-EXT-SRV-ATTR:hostname", "OS-EXT-SRV-ATTR:user_data"}
    assert not newer & set(shown)
    assert shown["OS-EXT-SRV-ATTR:host"] == "h1"
    assert shown["flavor"] == {"id": "f1", "links": [{"rel": "bookmark", "href": "http://api/flavors/f1"}]}


def test_the_newest_version_holds_the_flavor() -> None:
    """Without its id."""
    assert detail(server(), call())["flavor"] == {
        "original_name": "small",
        "vcpus": 1,
        "ram": 2048,
        "disk": 20,
        "ephemeral": 0,
        "swap": 512,
        "extra_specs": {"a": "b"},
    }


@pytest.mark.parametrize(
    ("field", "since"),
    [
        ("OS-EXT-SRV-ATTR:reservation_id", 3),
        ("locked", 9),
        ("host_status", 16),
        ("description", 19),
        ("tags", 26),
    ],
)
def test_a_field_appears_with_its_version(field: str, since: int) -> None:
    """And not one earlier."""
    assert field not in detail(server(), call((2, since - 1)))
    assert field in detail(server(), call((2, since)))


def test_times_are_utc() -> None:
    """Whole seconds for created, microseconds for launched."""
    shown = detail(server(), call())
    assert shown["created"] == "1970-01-01T00:00:00Z"
    assert shown["OS-SRV-USG:launched_at"] == "1970-01-01T00:01:40.500000"
    assert shown["OS-SRV-USG:terminated_at"] is None


def test_links_keep_the_project_of_the_path() -> None:
    """So that following one stays in the project."""
    asked = call(project_path="/p1")
    assert [link["href"] for link in server_view.summary_document(server(), asked)["links"]] == [
        f"http://api/v2.1/p1/servers/{server().uuid}",
        f"http://api/p1/servers/{server().uuid}",
    ]


def test_a_hostname_is_a_dns_label() -> None:
    """Whatever the name."""
    assert detail(server(), call())["OS-EXT-SRV-ATTR:hostname"] == "web-server"


def test_the_tenants_changes_replace_what_was_asked_for() -> None:
    """An empty text, list or object, too: what was removed does not come back from the request."""
    asked = call((2, 73))
    unchanged = detail(server(), asked)
    assert (unchanged["description"], unchanged["tags"], unchanged["locked"], unchanged["locked_reason"]) == (
        "d",
        ["t"],
        False,
        None,
    )
    edits: dict[str, Any] = {
        "description": "new",
        "tags": ("a",),
        "metadata": {"k": "v"},
        "locked_by": "owner",
        "locked_reason": "r",
    }
    shown = detail(msgspec.structs.replace(server(), **edits), asked)
    assert {name: shown[name] for name in ("description", "tags", "metadata")} == {
        "description": "new",
        "tags": ["a"],
        "metadata": {"k": "v"},
    }
    assert (shown["locked"], shown["locked_reason"]) == (True, "r")
    removed = detail(msgspec.structs.replace(server(), description="", tags=(), metadata={}), asked)
    assert (removed["description"], removed["tags"], removed["metadata"]) == (None, [], {})
    assert "locked_reason" not in detail(server(), call((2, 72)))
