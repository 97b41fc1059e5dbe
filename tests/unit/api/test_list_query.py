"""Query strings of lists."""

from __future__ import annotations

import falcon.testing
import pytest

from api.call import Call
from api.microversions import MAXIMUM, MINIMUM, Version
from api.paging import Page, page_of
from api.query import server_query
from db.mappings import ServerQuery
from objects import errors
from objects.context import RequestContext


def ask(query: str, *, admin: bool = True, version: Version = MAXIMUM) -> ServerQuery | None:
    request = falcon.testing.create_req(path="/v2.1/servers", query_string=query)
    context = RequestContext(request_id="r", project_id="p1", is_admin=admin)
    return server_query(request, Call(context=context, version=version, prefix="http://api"), page_of(request, 1000))


def asked(query: str, *, admin: bool = True, version: Version = MAXIMUM) -> ServerQuery:
    found = ask(query, admin=admin, version=version)
    assert found is not None
    return found


def test_nothing_asked_is_the_own_project_newest_first() -> None:
    """And one more than a page, to know whether it is the last."""
    assert asked("deleted=False") == ServerQuery(project_id="p1", sort=(("created_at", "desc"),), limit=1001)


@pytest.mark.parametrize("query", ["all_tenants=1", "all_tenants=True", "all_tenants", "all_tenants="])
def test_all_tenants_is_for_administrators(query: str) -> None:
    """In every spelling that clients use."""
    assert asked(query).project_id is None
    with pytest.raises(errors.Forbidden, match=r"^all_tenants: "):
        ask(query, admin=False)


def test_another_project_is_for_administrators() -> None:
    """Others get their own, whatever they ask for."""
    assert asked("tenant_id=p2").project_id == "p2"
    assert asked("all_tenants=1&project_id=p2").project_id == "p2"
    assert asked("project_id=p2", admin=False).project_id == "p1"
    assert asked("all_tenants=0").project_id == "p1"


@pytest.mark.parametrize(
    ("query", "states"),
    [
        ("status=ACTIVE", ("active",)),
        ("status=build", ("building",)),
        ("status=ACTIVE&status=ERROR", ("active", "error")),
        ("status=ACTIVE&status=SHUTOFF", ("active",)),
    ],
)
def test_statuses_are_states(query: str, states: tuple[str, ...]) -> None:
    """Several may be given."""
    assert asked(query).states == states


def test_a_status_that_no_server_has_makes_an_empty_list() -> None:
    """One that does not exist is an error since 2.38 and was an empty list before."""
    assert ask("status=SHUTOFF") is None
    assert ask("status=DOZING", version=MINIMUM) is None
    assert ask("status=DOZING", version=(2, 37)) is None
    with pytest.raises(errors.Invalid, match=r"^status: "):
        ask("status=DOZING", version=(2, 38))


def test_deleted_servers_are_for_administrators() -> None:
    """By status they are refused to others; the word alone is ignored, as clients always send it."""
    assert asked("status=DELETED") == asked("deleted=True")
    assert asked("deleted=True").include_deleted
    assert not asked("deleted=True", admin=False).include_deleted
    with pytest.raises(errors.Forbidden, match=r"^status: "):
        ask("status=DELETED", admin=False)


def test_changes_include_what_was_deleted() -> None:
    """A client that follows changes must see servers go."""
    for query in (
        "changes-since=1970-01-01T00:01:00Z",
        "changes-since=1970-01-01T01:01:00+01:00",
        "changes-since=1970-01-01T00:01:00",
    ):
        found = asked(query, admin=False)
        assert (found.changed_since, found.include_deleted, found.states) == (60.0, True, ())


def test_the_host_is_for_administrators() -> None:
    """Others get the list as if they had not asked."""
    assert asked("host=h1").host == "h1"
    assert asked("host=h1", admin=False).host is None


def test_order_and_page() -> None:
    """Keys and directions in pairs; what has no direction goes down."""
    found = asked("sort_key=display_name&sort_dir=asc&sort_key=host&limit=5&marker=m")
    assert found.sort == (("display_name", "asc"), ("host", "desc"))
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
        ("deleted=perhaps", "deleted"),
        ("name=%28", "name"),
        ("name=" + "x" * 256, "name"),
        ("changes-since=yesterday", "changes-since"),
        ("flavor=1", "flavor"),
        ("ip=10.0.0.1", "ip"),
        ("tags=a", "tags"),
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
