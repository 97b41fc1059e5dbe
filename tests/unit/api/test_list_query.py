"""Query strings of lists."""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qs, urlsplit

import falcon.testing
import pytest

from api.http.microversions import MAXIMUM, MINIMUM, Version
from api.http.paging import Page, Position, next_link, page_of
from api.servers.query import server_query
from db.api.servers.listing import ServerQuery, Value
from objects import errors
from tests.support.callers import call


def ask(query: str, *, admin: bool = True, version: Version = MAXIMUM) -> ServerQuery | None:
    request = falcon.testing.create_req(path="/v2.1/servers", query_string=query)
    return server_query(request, call(version, admin=admin), page_of(request, 1000))


def asked(query: str, *, admin: bool = True, version: Version = MAXIMUM) -> ServerQuery:
    found = ask(query, admin=admin, version=version)
    assert found is not None
    return found


def packed(keys: tuple[str, ...], values: tuple[Value, ...]) -> str:
    """A place in a list, as links have it."""
    href = next_link(falcon_request(), "servers", "m", Position(keys=keys, values=values))["href"]
    return parse_qs(urlsplit(href).query)["position"][0]


def falcon_request() -> falcon.Request:
    request = falcon.testing.create_req(path="/v2.1/servers")
    request.context.call = call()
    return request


def test_nothing_asked_is_the_own_project_newest_first() -> None:
    """And one more than a page, to know whether it is the last."""
    assert asked("deleted=False") == ServerQuery(
        project_id="p1", skip_soft_deleted=True, sort=(("created_at", "desc"),), limit=1001
    )


@pytest.mark.parametrize("query", ["all_tenants=1", "all_tenants=True", "all_tenants", "all_tenants="])
def test_all_tenants_is_for_administrators(query: str) -> None:
    """In every spelling that clients use."""
    assert asked(query).project_id is None
    with pytest.raises(errors.Forbidden, match=r"^all_tenants: "):
        ask(query, admin=False)


def test_another_project_is_for_administrators() -> None:
    """Who says all_tenants, that is. Without that word everyone gets the own project."""
    assert asked("all_tenants=1&tenant_id=p2").project_id == "p2"
    assert asked("all_tenants=1&project_id=p2").project_id == "p2"
    assert asked("tenant_id=p2").project_id == "p1"
    assert asked("project_id=p2").project_id == "p1"
    assert asked("tenant_id=p2", admin=False).project_id == "p1"
    assert asked("project_id=p2", admin=False).project_id == "p1"
    assert asked("all_tenants=0").project_id == "p1"


@pytest.mark.parametrize(
    ("query", "states"),
    [
        ("status=ACTIVE", ("active",)),
        ("status=build", ("building",)),
        ("status=ACTIVE&status=ERROR", ("active", "error")),
        ("status=ACTIVE&status=SHUTOFF", ("active", "stopped")),
        ("status=VERIFY_RESIZE", ("verifying",)),
    ],
)
def test_statuses_are_states(query: str, states: tuple[str, ...]) -> None:
    """Several may be given."""
    assert asked(query).phases == states


def test_an_unused_status_gives_an_empty_list() -> None:
    """One that does not exist is an error since 2.38 and was an empty list before."""
    assert ask("status=UNKNOWN") is None
    assert ask("status=DOZING", version=MINIMUM) is None
    assert ask("status=DOZING", version=(2, 37)) is None
    with pytest.raises(errors.Invalid, match=r"^status: "):
        ask("status=DOZING", version=(2, 38))


def test_deleted_servers_are_for_administrators() -> None:
    """By status they are refused to others; the word alone is ignored, as clients always send it."""
    assert asked("status=DELETED").only_deleted
    assert asked("deleted=True").only_deleted
    assert not asked("deleted=perhaps").only_deleted
    assert not asked("deleted=True", admin=False).only_deleted
    assert asked("status=DELETED&status=ACTIVE").include_deleted
    assert ask("status=ACTIVE&deleted=True") is None
    assert ask("vm_state=deleted", admin=False) is None
    with pytest.raises(errors.Forbidden, match=r"^status: "):
        ask("status=DELETED", admin=False)


@pytest.mark.parametrize("query", ["soft_deleted=1", "status=soft_deleted", "vm_state=soft-delete&vm_state=active"])
def test_soft_deleted_servers_are_listed_only_on_request(query: str) -> None:
    assert not asked(query, admin=False).skip_soft_deleted
    assert asked("status=ACTIVE&power_state=4").skip_soft_deleted


def test_changes_include_what_was_deleted() -> None:
    """A client that follows changes must see servers go."""
    for query in (
        "changes-since=1970-01-01T00:01:00Z",
        "changes-since=1970-01-01T01:01:00+01:00",
        "changes-since=1970-01-01T00:01:00",
    ):
        found = asked(query, admin=False)
        assert (found.changed_since, found.include_deleted, found.phases) == (60.0, True, ())
    before = asked("changes-before=1970-01-01T00:01:00Z", admin=False)
    assert (before.changed_since, before.changed_before, before.include_deleted) == (None, 60.0, True)
    assert asked("changes-since=1970-01-01T00:01:00Z&deleted=False", admin=False).include_deleted
    assert not asked("changes-since=1970-01-01T00:01:00Z&deleted=False").include_deleted


@pytest.mark.parametrize(
    ("query", "fields"),
    [
        ("flavor=1&image=i", {"flavor_id": "1", "image_id": "i"}),
        ("image_ref=i", {"image_id": "i"}),
        ("display_name=a&display_description=b", {"name": "a", "description": "b"}),
        ("name=a&display_name=b", {"name": "a"}),
        ("user_id=u&key_name=k&config_drive=true&node=n", {"user_id": "u", "key_name": "k", "config_drive": True, "node": "n"}),
        ("tags=a,b&tags-any=c&not-tags=d&not-tags-any=e,,e",
         {"tags": ("a", "b"), "tags_any": ("c",), "not_tags": ("d",), "not_tags_any": ("e",)}),
        ('metadata={"a":"b"}', {"metadata": (("a", "b"),)}),
        ("reservation_id=r-11111111111141118111111111111111", {"batch_id": "11111111-1111-4111-8111-111111111111"}),
        ("launch_index=2&uuid=a&uuid=b", {"launch_index": 2, "uuids": ("a", "b")}),
        ("task_state=scheduling", {"phases": ("building",), "task_states": ("scheduling",)}),
        ("task_state=spawning&status=BUILD", {"phases": ("building",), "task_states": ("spawning",)}),
        ("power_state=4&status=SHUTOFF", {"phases": ("stopped",), "power_states": (4,)}),
        ("vm_state=building", {"phases": ("building",), "vm_states": ("building",)}),
        ("power_state=0&vm_state=error", {"phases": ("error",), "power_states": (0,), "vm_states": ("error",)}),
        ("locked=True", {"locked": True}),
        ("locked=False&ip=&soft_deleted=false", {"locked": False}),
        ("locked_by=admin", {"locked_by": "admin"}),
        ("sort_key=progress&sort_dir=asc", {"sort": (("created_at", "asc"),)}),
        ("sort_key=locked", {"sort": (("locked", "desc"),)}),
        ("marker=m&position=" + packed(("created_at",), (1.5,)), {"marker": "m", "position": (1.5,)}),
        ("position=x", {}),
    ],
)  # fmt: skip
def test_a_filter_is_a_field_of_the_query(query: str, fields: dict[str, Any]) -> None:
    """Empty ones are passed over."""
    values: dict[str, Any] = {"project_id": "p1", "skip_soft_deleted": True, "sort": (("created_at", "desc"),), "limit": 1001}
    assert asked(query) == ServerQuery(**(values | fields))


@pytest.mark.parametrize(
    "query",
    ["kernel_id=k", "launch_index=x", "status=ACTIVE&power_state=0", "status=SHUTOFF&vm_state=building"],
)  # fmt: skip
def test_what_no_server_has_makes_an_empty_list(query: str) -> None:
    """As it would anywhere else where no server has it."""
    assert ask(query) is None


def test_newer_versions_refuse_unknown_parameters_and_sort_keys() -> None:
    """2.75."""
    assert asked("something=else&sort_key=id", version=(2, 74)) == asked("")
    with pytest.raises(errors.Invalid, match=r"^something: "):
        ask("something=else", version=(2, 75))
    assert asked("sort_key=id", version=(2, 75)).sort == (("id", "desc"),), "which the database room does not know"


def test_the_host_is_for_administrators() -> None:
    """Others get the list as if they had not asked."""
    assert asked("host=h1").host == "h1"
    assert asked("host=h1", admin=False).host is None


def test_order_and_page() -> None:
    """Keys and directions in pairs; what has no direction takes the first one, or goes down."""
    found = asked("sort_key=display_name&sort_dir=asc&sort_key=host&limit=5&marker=m")
    assert found.sort == (("display_name", "asc"), ("host", "asc"))
    assert asked("sort_key=host&sort_key=node&sort_key=host").sort == (("host", "desc"), ("node", "desc"))
    assert (found.limit, found.marker) == (6, "m")
    assert asked("sort_dir=asc").sort == (("created_at", "asc"),)
    assert asked("limit=99999999999999999999").limit == 1001
    assert ask("limit=0") is None


@pytest.mark.parametrize(
    ("query", "name"),
    [
        ("limit=-1", "limit"),
        ("limit=many", "limit"),
        ("limit=1.5", "limit"),
        ("limit=", "limit"),
        ("limit=%D9%A3", "limit"),
        ("sort_dir=up", "sort_dir"),
        ("sort_dir=asc&sort_dir=asc", "sort_dir"),
        ("all_tenants=perhaps", "all_tenants"),
        ("name=%28", "name"),
        ("name=" + "x" * 256, "name"),
        ("changes-since=yesterday", "changes-since"),
        ("name=(?=a)", "name"),
        ("description=*", "description"),
        ("ip=*", "ip"),
        ("changes-since=2020-01-02T00:00:00Z&changes-before=2020-01-01T00:00:00Z", "changes-since"),
        ("launched_at=1", "launched_at"),
        ("_secret=1", "_secret"),
        ("config_drive=perhaps", "config_drive"),
        ("locked=perhaps", "locked"),
        ("metadata=role", "metadata"),
        ("metadata=[]", "metadata"),
        ('metadata={"a":1}', "metadata"),
        ("tags=" + ",".join(map(str, range(51))), "tags"),
        ("not-tags-any=" + "x" * 61, "not-tags-any"),
        ("marker=m&position=x", "position"),
        ("marker=m&position=" + packed(("created_at",), (1.0,))[:-4], "position"),
        ("marker=m&position=" + packed(("created_at",), ()), "position"),
        ("marker=m&position=" + packed(("created_at",), ("x",)), "position"),
        ("marker=m&position=" + packed(("created_at",), (1e300,)), "position"),
        ("marker=m&sort_key=uuid&position=" + packed(("created_at",), (1.0,)), "position"),
        ("marker=m&sort_key=display_name&position=" + packed(("display_name",), ("a\0",)), "position"),
    ],
)
def test_a_parameter_that_cannot_be_used_is_named(query: str, name: str) -> None:
    """Whatever is wrong with it."""
    with pytest.raises(errors.Invalid, match=rf"^{name}: "):
        ask(query)


def test_a_tenant_sorts_by_no_host() -> None:
    """The order would tell which servers share one."""
    assert asked("sort_key=host").sort == (("host", "desc"),)
    with pytest.raises(errors.Forbidden, match=r"^sort_key: "):
        ask("sort_key=host", admin=False)


def test_a_page_is_never_longer_than_allowed() -> None:
    """A limit of the service's own."""
    request = falcon.testing.create_req(query_string="limit=50&marker=")
    assert page_of(request, 10) == Page(limit=10, marker=None)
