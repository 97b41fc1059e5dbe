"""Every route, parameter, header and body field of the API, given hostile values: no answer is a server error."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote, urlencode

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from api.opts import ApiSettings
from api.scheduling.capacity import PARAMETERS as CAPACITY
from api.servers.filters import KNOWN
from api.servers.sorting import kind_of
from db.api.servers.listing import SORT_KEYS
from tests.support import fleet
from tests.support.api import IMAGE, NEWEST, TENANT, Front
from tests.support.databases import SERVERS
from tests.support.deciding import add_hosts, scheduler_of
from tests.support.fronts import databases_of
from tests.support.keys import ED25519

pytestmark = pytest.mark.one_in(6)

EXAMPLES = int(os.environ.get("SC_TEST_FUZZ_EXAMPLES", "100"))
"""Requests of each kind that are tried on each database."""

MANY_DIGITS = "9" * 5000
DEEP = "[" * 2000
TEXTS = (
    "", "0", "-1", "1", "007", str(2**31), str(2**53), str(2**63), "1e999", "NaN", MANY_DIGITS, "٣", "²", " ", "a ", "é",
    "\x00", "a\x00b", "\x1b[31m", "\ud800", "😀", "%", "%00", "'", "\"", "\\", "' OR 1=1 --", "..", "../..", "/", "a/b", ",",
    ",,", "(", "[", "(a+)+$", "\\C", "(?=a)", "x" * 300, DEEP, '{"a":' * 2000, "{}", '{"k": 1}', '{"k": "v"}',
    '{"k": "\\u0000"}', '{"\\ud800": "v"}', "true", "none", "None", "ACTIVE", "DELETED", "building", "0001-01-01T00:00:00Z",
    "9999-12-31T23:59:59-23:59", "2026-01-31T12:00:00Z", "99999-01-01", "9999-12-31T23:59:59", "0001-01-01T00:00:00", IMAGE,
    "r-" + "0" * 32, "req-" + IMAGE,
)  # fmt: skip
"""What parsers, converters and databases are known to trip over."""

PATHS = [
    "/",
    "/v2.1",
    "/v2.1/",
    "/v2.1//",
    "/identity/v3",
    "/v2",
    "/v2.0",
    "/v2/{}/{}",
    "/v2.1/versions/{}",
    "/v2.1/extensions",
    "/v2.1/extensions/{}",
    "/v2.1/images",
    "/v2.1/images/detail",
    "/v2.1/images/{}",
    "/v2.1/images/{}/metadata",
    "/v2.1/images/{}/metadata/{}",
    "/image",
    "/image/v2",
    "/image/v2/images",
    "/image/v2/images/{}",
    "/image/v2/images/{}/file",
    "/image/v2/images/{}/tasks",
    "/image/v2/schemas/image",
    "/image/v2/schemas/images",
    "/network",
    "/network/v2.0",
    "/network/v2.0/networks",
    "/network/v2.0/networks/{}",
    "/network/v2.0/subnets",
    "/network/v2.0/subnets/{}",
    "/network/v2.0/ports",
    "/network/v2.0/ports/{}",
    "/network/v2.0/ports/{}/tags",
    "/network/v2.0/security-groups",
    "/network/v2.0/security-groups/{}",
    "/network/v2.0/security-group-rules",
    "/network/v2.0/security-group-rules/{}",
    "/network/v2.0/{}",
    "/network/v2.0/{}/{}",
    "/v2.1/servers",
    "/v2.1/servers/detail",
    "/v2.1/servers/{}",
    "/v2.1/servers/{}/action",
    "/v2.1/servers/{}/remote-consoles",
    "/v2.1/servers/{}/diagnostics",
    "/v2.1/os-console-auth-tokens/{}",
    "/v2.1/servers/{}/explanation",
    "/v2.1/servers/{}/os-security-groups",
    "/v2.1/servers/{}/os-interface",
    "/v2.1/servers/{}/os-interface/{}",
    "/v2.1/servers/{}/os-volume_attachments",
    "/v2.1/servers/{}/os-volume_attachments/{}",
    "/v2.1/servers/{}/os-server-password",
    "/v2.1/servers/{}/migrations",
    "/v2.1/servers/{}/migrations/{}",
    "/v2.1/servers/{}/migrations/{}/action",
    "/v2.1/os-migrations",
    "/v2.1/os-hosts",
    "/v2.1/os-hosts/{}",
    "/v2.1/os-hosts/{}/reboot",
    "/v2.1/os-hosts/{}/shutdown",
    "/v2.1/os-hosts/{}/startup",
    "/v2.1/os-server-external-events",
    "/v2.1/servers/{}/metadata",
    "/v2.1/servers/{}/metadata/{}",
    "/v2.1/servers/{}/tags",
    "/v2.1/servers/{}/tags/{}",
    "/v2.1/servers/{}/topology",
    "/v2.1/servers/{}/os-instance-actions",
    "/v2.1/servers/{}/os-instance-actions/{}",
    "/v2.1/flavors",
    "/v2.1/flavors/detail",
    "/v2.1/flavors/{}",
    "/v2.1/flavors/{}/action",
    "/v2.1/flavors/{}/os-flavor-access",
    "/v2.1/flavors/{}/os-extra_specs",
    "/v2.1/flavors/{}/os-extra_specs/{}",
    "/v2.1/limits",
    "/v2.1/os-aggregates",
    "/v2.1/os-aggregates/{}",
    "/v2.1/os-aggregates/{}/action",
    "/v2.1/os-availability-zone",
    "/v2.1/os-availability-zone/detail",
    "/v2.1/os-hypervisors",
    "/v2.1/os-hypervisors/detail",
    "/v2.1/os-hypervisors/statistics",
    "/v2.1/os-hypervisors/{}",
    "/v2.1/os-hypervisors/{}/search",
    "/v2.1/os-hypervisors/{}/servers",
    "/v2.1/os-hypervisors/{}/uptime",
    "/v2.1/os-keypairs",
    "/v2.1/os-keypairs/{}",
    "/v2.1/os-server-groups",
    "/v2.1/os-server-groups/{}",
    "/v2.1/os-services",
    "/v2.1/os-services/{}",
    "/v2.1/os-simple-tenant-usage",
    "/v2.1/os-simple-tenant-usage/{}",
    "/v2.1/os-quota-class-sets/{}",
    "/v2.1/os-quota-sets/{}",
    "/v2.1/os-quota-sets/{}/detail",
    "/v2.1/os-quota-sets/{}/defaults",
    "/v2.1/superconductor/requests/{}/explanation",
    "/v2.1/superconductor/openapi.json",
    "/v2.1/superconductor/status",
    "/v2.1/superconductor/dry-run",
    "/v2.1/superconductor/holds",
    "/v2.1/superconductor/holds/{}",
    "/v2.1/superconductor/holds/{}/boot",
    "/v2.1/superconductor/hosts/{}/accept",
    "/v2.1/superconductor/capacity",
    "/v2.1/superconductor/rebalance",
    "/v2.1/{}/servers",
    "/v2.1/{}/limits",
    "/v2.1/{}",
    "/v2.1/{}/{}",
    "/v2.1/os-volumes/{}",
    "/{}",
]
USAGES = "/v2.1/os-simple-tenant-usage"
LISTS = (USAGES, "/v2.1/servers", "/v2.1/servers/detail", "/v2.1/flavors", "/v2.1/flavors/detail")
PARAMETERS = sorted(
    KNOWN
    | {"minRam", "minDisk", "is_public", "reserved", "sort_key", "sort_dir", "user_id", "tenant_id", "start", "end", "detailed"}
)
HEADERS = [
    "X-Project-Id",
    "X-User-Id",
    "X-Roles",
    "OpenStack-API-Version",
    "X-OpenStack-Nova-API-Version",
    "Idempotency-Key",
    "Host",
    "Origin",
    "Content-Type",
    "Accept",
    "X-Auth-Token",
    "X-Identity-Status",
]

text = st.one_of(st.sampled_from(TEXTS), st.text(max_size=20))
value = st.recursive(
    st.one_of(
        text,
        st.none(),
        st.booleans(),
        st.integers(),
        st.floats(allow_nan=False, allow_infinity=False),
        st.sampled_from([10**30, -(10**30), 2**63, 2**64, 2**31]),
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(text, inner, max_size=3)),
    max_leaves=6,
)
FIELDS = [
    "name",
    "flavorRef",
    "imageRef",
    "block_device_mapping_v2",
    "networks",
    "availability_zone",
    "min_count",
    "max_count",
    "return_reservation_id",
    "metadata",
    "tags",
    "description",
    "user_data",
    "adminPass",
    "config_drive",
    "key_name",
    "security_groups",
    "OS-DCF:diskConfig",
]
bodies = st.builds(
    lambda server, hints: {"server": {"name": "w", "flavorRef": "1", "imageRef": IMAGE, "networks": "none"} | server} | hints,
    st.dictionaries(st.sampled_from(FIELDS), value, max_size=3),
    st.one_of(st.just({}), st.fixed_dictionaries({"os:scheduler_hints": value})),
)
quotas = st.fixed_dictionaries(
    {
        "quota_set": st.dictionaries(
            st.sampled_from(["instances", "cores", "ram", "key_pairs", "fixed_ips", "force", "x"]), value, max_size=3
        )
    }
)

edits = st.one_of(
    st.tuples(
        st.just(""), st.fixed_dictionaries({"server": st.dictionaries(st.sampled_from(["name", "description", "x"]), value)})
    ),
    st.tuples(st.sampled_from(["/metadata", "/metadata/{}"]), st.dictionaries(st.sampled_from(["metadata", "meta"]), value)),
    st.tuples(st.just("/metadata"), st.fixed_dictionaries({"metadata": st.dictionaries(text, text, max_size=3)})),
    st.tuples(st.just("/tags"), st.fixed_dictionaries({"tags": st.one_of(value, st.lists(text, max_size=3))})),
    st.tuples(st.just("/tags/{}"), st.none()),
    st.tuples(st.just("/action"), st.dictionaries(st.one_of(st.sampled_from(["lock", "unlock"]), text), value, max_size=2)),
)
"""The end of a server's path, and a body."""


FLAVOR_FIELDS = ["name", "id", "ram", "vcpus", "disk", "swap", "rxtx_factor", "OS-FLV-EXT-DATA:ephemeral", "description", "x"]
sizes = st.one_of(
    st.builds(
        lambda more: ("POST", "", {"flavor": {"name": "f", "ram": 1, "vcpus": 1, "disk": 1} | more}),
        st.dictionaries(st.sampled_from(FLAVOR_FIELDS), value, max_size=3),
    ),
    st.tuples(st.just("PUT"), st.just("/1"), st.fixed_dictionaries({"flavor": st.fixed_dictionaries({"description": value})})),
    st.tuples(
        st.just("POST"),
        st.just("/2/action"),
        st.dictionaries(
            st.sampled_from(["addTenantAccess", "removeTenantAccess", "x"]), st.dictionaries(st.just("tenant"), value), max_size=2
        ),
    ),
    st.tuples(st.just("POST"), st.just("/2/os-extra_specs"), st.fixed_dictionaries({"extra_specs": st.dictionaries(text, value)})),
    st.tuples(st.just("PUT"), st.just("/2/os-extra_specs/k"), st.dictionaries(st.one_of(st.just("k"), text), value)),
)
"""A method, the end of a path, and a body."""


pairs = st.fixed_dictionaries(
    {
        "keypair": st.dictionaries(
            st.sampled_from(["name", "public_key", "type", "user_id", "x"]), st.one_of(value, st.just(ED25519))
        )
    }
)


def position(keys: list[str], values: list[Any]) -> str:
    return base64.urlsafe_b64encode(json.dumps({"keys": keys, "values": values}).encode()).decode().rstrip("=")


@pytest.fixture(scope="module", params=SERVERS)
def front(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Front]:
    with databases_of(request.param, tmp_path_factory.mktemp("fuzz")) as ground:
        made = Front(ground, ApiSettings(max_servers_per_request=5))
        made.boot("web", TENANT, max_count=3, metadata={"role": "web"})
        made.hand_over()
        made.boot("queued")
        add_hosts(made, [fleet.node("h9")])
        with scheduler_of(made):
            yield made
        made.close()


def tried(function: Any) -> Any:
    slow = (HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much)
    return settings(max_examples=EXAMPLES, deadline=None, database=None, derandomize=True, suppress_health_check=slow)(function)


def ask(front: Front, method: str, path: str, query: str = "", headers: dict[str, str] | None = None, body: Any = None) -> int:
    """The status of the answer, which is no server error. 501 is none: the Compute API has operations that are not served."""
    raw = None if body is None else json.dumps(body).encode()
    sent = {"Content-Type": "application/json"} | (headers or {}) if raw is not None else headers
    answer = front.client.simulate_request(method, path, query_string=query, headers=sent, body=raw)
    assert answer.status_code < 500 or answer.status_code == 501, (
        f"{method} {path}?{query} {headers} {body!r:.300}: {answer.status_code} {answer.text}"
    )
    return answer.status_code


def encoded(pairs: list[tuple[str, str]]) -> str:
    return urlencode(pairs, errors="surrogatepass")


@tried
@given(st.sampled_from(LISTS), st.lists(st.tuples(st.sampled_from(PARAMETERS), text), min_size=1, max_size=4), st.booleans())
@example("/v2.1/flavors", [("minRam", MANY_DIGITS), ("minDisk", MANY_DIGITS)], True)
@example("/v2.1/servers", [("limit", MANY_DIGITS), ("launch_index", MANY_DIGITS)], True)
@example("/v2.1/servers", [("launch_index", str(2**31))], True)
def test_lists(front: Front, path: str, pairs: list[tuple[str, str]], administrator: bool) -> None:
    query = encoded([*pairs, ("all_tenants", "1")] if administrator and path.startswith("/v2.1/servers") else pairs)
    ask(front, "GET", path, query, None if administrator else TENANT)


@pytest.mark.parametrize("name", PARAMETERS)
def test_every_parameter_with_every_known_value(front: Front, name: str) -> None:
    for path in ("/v2.1/servers/detail", "/v2.1/flavors", "/v2.1/limits", "/v2.1/os-keypairs", "/v2.1/os-quota-sets/p1", USAGES):
        for each in TEXTS:
            ask(front, "GET", path, encoded([(name, each)]))


@pytest.mark.parametrize("name", CAPACITY)
def test_every_parameter_of_capacity_with_every_known_value(front: Front, name: str) -> None:
    for each in TEXTS:
        ask(front, "GET", "/v2.1/superconductor/capacity", encoded([("flavor", "1"), (name, each)]))
    assert ask(front, "GET", "/v2.1/superconductor/capacity", "flavor=1&lost_host=h9") == 200


@pytest.mark.parametrize("key", sorted(SORT_KEYS))
def test_every_position(front: Front, key: str) -> None:
    """A link's place may be made up: any number, also one that no column holds."""
    marker = front.uuids()[0]
    numbers = (0, 1, 0.5, 2**31 - 1, 2**31, 2**53 - 1, -(2**53) + 1, 2**63, 10**30, 1e300, -1e300, None, True)
    for at in (*numbers, "x", "", "a\0", "\ud800", [1], {"a": 1}):
        for direction in ("asc", "desc"):
            query = encoded(
                [
                    ("sort_key", key),
                    ("sort_dir", direction),
                    ("marker", marker),
                    ("position", position([key], [at])),
                    ("all_tenants", "1"),
                ]
            )
            status = ask(front, "GET", "/v2.1/servers", query)
            fits = at is None or (isinstance(at, str) if kind_of(key) is str else isinstance(at, int) and abs(at) < 2**31)
            assert status in ((200, 400) if fits else (400,)) or (kind_of(key) is float and isinstance(at, int | float)), (
                at,
                status,
            )


def test_a_position_that_is_nested_deeply(front: Front) -> None:
    raw = '{"keys": ["created_at"], "values": [1], "more": ' + "[" * 20000
    packed = base64.urlsafe_b64encode(raw.encode()).decode()
    query = encoded([("marker", front.uuids()[0]), ("position", packed)])
    assert ask(front, "GET", "/v2.1/servers", query) == 400


@tried
@given(st.sampled_from(PATHS), st.sampled_from(["GET", "HEAD", "PUT", "DELETE", "POST", "PATCH", "OPTIONS"]), text, text)
def test_paths(front: Front, path: str, method: str, one: str, two: str) -> None:
    filled = path.replace("{}", quote(one, errors="surrogatepass"), 1).replace("{}", quote(two, errors="surrogatepass"), 1)
    ask(front, method, filled)


@tried
@given(st.sampled_from(PATHS[:-6]), st.dictionaries(st.sampled_from(HEADERS), text, max_size=3))
def test_headers(front: Front, path: str, headers: dict[str, str]) -> None:
    sent = {name: "".join(c for c in given if c >= " " and ord(c) < 256) for name, given in headers.items()}
    ask(front, "GET", path.replace("{}", IMAGE), headers=sent)


@tried
@given(bodies, st.sampled_from(["2.1", "2.37", "2.52", "2.96"]))
@example({"server": {"name": "w", "flavorRef": 10**30, "imageRef": IMAGE}}, "2.1")
@example(
    {"server": {"name": "w", "flavorRef": "1", "imageRef": "", "block_device_mapping_v2": [
        {"source_type": "image", "uuid": IMAGE, "destination_type": "local", "boot_index": "0"},
        {"source_type": "blank", "destination_type": "local", "boot_index": -(10**30)}]}}, "2.1",
)  # fmt: skip
def test_boots(front: Front, body: dict[str, Any], version: str) -> None:
    for path in ("/v2.1/superconductor/dry-run", "/v2.1/superconductor/holds?seconds=60", "/v2.1/servers"):
        ask(front, "POST", path, headers={"OpenStack-API-Version": f"compute {version}"}, body=body)


@tried
@given(pairs, st.sampled_from(["2.1", "2.2", "2.53"]))
def test_key_pairs(front: Front, body: dict[str, Any], version: str) -> None:
    headers = {"OpenStack-API-Version": f"compute {version}"}
    if "public_key" in body["keypair"]:  # to generate pairs takes long
        ask(front, "POST", "/v2.1/os-keypairs", headers=headers, body=body)


@tried
@given(sizes)
@example(("POST", "", {"flavor": {"name": "f", "ram": 10**30, "vcpus": 1, "disk": 1}}))
def test_flavors(front: Front, change: tuple[str, str, Any]) -> None:
    """Nor is the next list one."""
    method, path, body = change
    ask(front, method, f"/v2.1/flavors{path}", headers=NEWEST, body=body)
    ask(front, "GET", "/v2.1/flavors/detail", "is_public=None", NEWEST)


@tried
@given(edits, text)
def test_edits(front: Front, edit: tuple[str, Any], item: str) -> None:
    """Nor is the server's next list one."""
    path, body = edit
    ended = f"/v2.1/servers/{front.uuids()[0]}{path.replace('{}', quote(item, errors='surrogatepass'))}"
    for method in ("POST", "PUT", "DELETE") if path else ("PUT",):
        ask(front, method, ended, headers=NEWEST, body=body)
    ask(front, "GET", ended, headers=NEWEST)
    ask(front, "GET", "/v2.1/servers/detail", "all_tenants=1", NEWEST)


@tried
@given(quotas, text)
def test_quotas(front: Front, body: dict[str, Any], project: str) -> None:
    ask(front, "PUT", f"/v2.1/os-quota-sets/{quote(project, errors='surrogatepass')}", body=body)
    ask(front, "PUT", "/v2.1/os-quota-sets/p1", body=body)
    ask(front, "PUT", f"/v2.1/os-quota-sets/p1?user_id={quote(project, errors='surrogatepass')}", body=body)
    ask(front, "PUT", "/v2.1/os-quota-sets/p1?user_id=u1", body=body)
    limits = {name: limit for name, limit in body["quota_set"].items() if name not in ("force", "instances", "cores", "ram")}
    ask(front, "PUT", "/v2.1/os-quota-class-sets/default", body={"quota_class_set": limits})


@pytest.mark.parametrize(
    "raw",
    [
        b"[" * 100_000,
        b'{"server": ' + b"9" * 5000 + b"}",
        b"\xff",
        b"",
        b"null",
        b'{"a": 1e999999}',
        b'{"server": {"name": ' + b"9" * 5000 + b"}}",
    ],
)
def test_bodies_that_are_no_json(front: Front, raw: bytes) -> None:
    for method, path in (("POST", "/v2.1/servers"), ("POST", "/v2.1/superconductor/dry-run"), ("PUT", "/v2.1/os-quota-sets/p1")):
        answer = front.client.simulate_request(method, path, headers={"Content-Type": "application/json"}, body=raw)
        assert answer.status_code == 400, answer.text
