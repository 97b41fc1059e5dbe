"""Callers whose tokens an identity service checks."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import msgspec
import pytest
import requests
from oslo_config import cfg

from api import opts
from api.http import keystone
from api.http.identity import PUBLIC_PATHS
from api.main import ApiService
from api.opts import ApiSettings
from api.process import check_callers
from objects import errors
from service import config
from tests.support.api import IMAGE, Front
from tests.support.keystone import PASSWORD, Keystone

TOKENS: dict[str, tuple[str | None, tuple[str, ...]]] = {
    "member": ("p1", ("member", "reader")),
    "reader": ("p1", ("reader",)),
    "other": ("p2", ("member", "reader")),
    "admin": ("ops", ("admin", "member", "reader")),
    "unscoped": (None, ()),
    "expired": ("p1", ("member", "reader")),
}


def configured(folder: Path, url: str, **more: str) -> cfg.ConfigOpts:
    """As a person would write it; ``more`` replaces or, where it is empty, leaves out."""
    given = {
        "www_authenticate_uri": url,
        "auth_url": url,
        "auth_type": "password",
        "username": "superconductor",
        "password": PASSWORD,
        "user_domain_id": "default",
        "project_name": "service",
        "project_domain_id": "default",
        "http_connect_timeout": "2",
        "http_request_max_retries": "0",
    } | more
    lines = ["[api]", "auth_strategy = keystone", f"[{keystone.GROUP}]", *(f"{k} = {v}" for k, v in given.items() if v)]
    (folder / "api.conf").write_text("\n".join(lines))
    return config.load_options([], opts.list_opts(), files=[folder / "api.conf"])


class Region:
    """An API that asks ``identity``."""

    def __init__(self, folder: Path, front: Front, identity: Keystone) -> None:
        self.identity = identity
        conf = configured(folder, identity.url)
        keystone.check_options(conf)
        self._service = ApiService(
            msgspec.structs.replace(ApiSettings(), auth_strategy="keystone", port=0),
            front.registry,
            front.database,
            front.bus,
            guard=partial(keystone.guard_application, conf=conf, public=PUBLIC_PATHS),
        )
        self._service.start()
        self._session = requests.Session()
        self._session.trust_env = False

    def ask(
        self,
        method: str,
        path: str,
        token: str | None = None,
        headers: dict[str, str] | None = None,
        body: dict[str, dict[str, str]] | None = None,
    ) -> requests.Response:
        sent = (headers or {}) | ({"X-Auth-Token": token} if token else {})
        return self._session.request(
            method, f"http://127.0.0.1:{self._service.listen_port}{path}", headers=sent, timeout=60, json=body
        )

    @property
    def port(self) -> int:
        return self._service.listen_port

    def raw(self, path: str, headers: dict[str, str]) -> bytes:
        """The whole answer to a path that is sent as it is."""
        lines = [
            f"GET {path} HTTP/1.1",
            "Host: localhost",
            "Connection: close",
            *(f"{name}: {said}" for name, said in headers.items()),
        ]
        with socket.create_connection(("127.0.0.1", self.port), timeout=60) as connection, connection.makefile("rb") as answer:
            connection.sendall("\r\n".join([*lines, "", ""]).encode())
            return answer.read()

    def boot(self, token: str) -> requests.Response:
        return self.ask("POST", "/v2.1/servers", token, body={"server": {"name": "web", "flavorRef": "1", "imageRef": IMAGE}})

    def close(self) -> None:
        self._service.stop()
        self._session.close()


@pytest.fixture
def region(tmp_path: Path) -> Iterator[Region]:
    front, identity = Front(tmp_path), Keystone(TOKENS)
    made = Region(tmp_path, front, identity)
    yield made
    made.close()
    identity.close()
    front.close()


def test_who_has_no_token_reads_version_documents_only(region: Region) -> None:
    """And is told where tokens are to be had."""
    for path in PUBLIC_PATHS:
        assert region.ask("GET", path).status_code in (200, 300), path
    for token in (None, "made-up", "expired"):
        refused = region.ask("GET", "/v2.1/servers", token)
        assert refused.status_code == 401
        assert region.identity.url in refused.headers["WWW-Authenticate"]


def test_headers_alone_do_not_authenticate(region: Region) -> None:
    """They are the identity service's to write."""
    forged = {"X-Identity-Status": "Confirmed", "X-Project-Id": "p1", "X-User-Id": "u", "X-Roles": "admin"}
    assert region.ask("GET", "/v2.1/servers", headers=forged).status_code == 401
    assert region.ask("GET", "/v2.1/superconductor/status", "member", headers=forged).status_code == 403


FORGED = {"X-Identity-Status": "Confirmed", "X-Project-Id": "p1", "X-User-Id": "u", "X-Roles": "admin"}
PATHS = (
    "/", "//", "///", "/v2.1", "/v2.1/", "/v2.1//", "/v2.1///", "//v2.1/", "/identity/v3//", "/v2.1/%2f", "/v2.1%2f",
    "/v2.1%2f%2f", "/v2.1/.", "/v2.1/./servers", "/v2.1/x/../servers", "/identity/v3/../../v2.1/servers",
    "/v2.1//servers", "//v2.1/servers", "/v2.1/servers//", "/V2.1/", "/v2.1;x", "/v2.1/p1/servers", "/v2.1/%00",
    "/%76%32.1/servers", "http://x/v2.1//", "*",
)  # fmt: skip


@pytest.mark.parametrize("path", PATHS)
def test_no_path_spelling_is_served_by_headers_alone(region: Region, path: str) -> None:
    """Without a token only the version documents are, and they are the same for everybody."""
    answer = region.raw(path, FORGED)
    assert answer.partition(b" ")[2][:3] in (b"200", b"300", b"400", b"401")
    if answer.partition(b" ")[2][:3] in (b"200", b"300"):
        assert b'"version' in answer
        assert answer.partition(b"\r\n\r\n")[2] == region.raw(path, {}).partition(b"\r\n\r\n")[2]


def test_the_application_trusts_its_guard_only(region: Region, tmp_path: Path) -> None:
    """Where the guard has not said that a token was checked, headers make nobody anybody."""
    front = Front(tmp_path / "bare", msgspec.structs.replace(ApiSettings(), auth_strategy="keystone"))
    assert front.get("/v2.1/servers", FORGED).status_code == 401
    assert front.get("/", FORGED).status_code == 401
    front.close()


@pytest.mark.parametrize("named", ["evil.example.org", "6.6.6.6", "localhost@evil", "localhost:1@evil", "[::1", "a b"])
def test_links_repeat_no_foreign_name(region: Region, named: str) -> None:
    served = f"http://127.0.0.1:{region.port}"
    for host, prefix in ((named, served), (f"localhost:{region.port}", f"http://localhost:{region.port}")):
        answer = region.ask("GET", "/", headers={"Host": host})
        assert [link["href"] for link in answer.json()["versions"][-1]["links"]] == [f"{prefix}/v2.1/"]


def test_project_user_and_roles_are_the_tokens(region: Region) -> None:
    accepted = region.boot("member")
    assert accepted.status_code == 202, accepted.text
    path = f"/v2.1/servers/{accepted.json()['server']['id']}"
    shown = region.ask("GET", path, "reader").json()["server"]
    assert (shown["tenant_id"], shown["user_id"]) == ("p1", "user-member")
    assert region.ask("GET", path, "other").status_code == 404
    assert region.ask("GET", path, "admin").status_code == 200
    assert region.ask("GET", "/v2.1/superconductor/status", "admin").status_code == 200
    assert region.boot("reader").status_code == 403
    assert region.boot("unscoped").status_code == 403
    assert region.ask("GET", "/v2.1/p2/servers", "member").status_code == 400, "a path of another project"


def test_a_token_is_asked_about_once(region: Region) -> None:
    """In a while: what it said is kept."""
    for _ in range(3):
        assert region.ask("GET", "/v2.1/servers", "member").status_code == 200
    assert region.identity.asked.count("member") == 1


def test_without_its_identity_service_it_says_so(region: Region) -> None:
    """And nobody is let through meanwhile."""
    region.identity.close()
    assert region.ask("GET", "/v2.1/servers", "member").status_code == 503
    assert region.ask("GET", "/").status_code == 200


@pytest.mark.parametrize("missing", ["www_authenticate_uri", "auth_type"])
def test_an_api_must_check_tokens_to_start(tmp_path: Path, missing: str) -> None:
    check_callers(configured(tmp_path, "http://127.0.0.1:1/v3"))
    with pytest.raises(errors.Misconfigured, match=missing):
        check_callers(configured(tmp_path, "http://127.0.0.1:1/v3", **{missing: ""}))


def test_an_authenticating_api_may_be_reached_from_elsewhere() -> None:
    """One that does not may not."""
    from api.main import bind_socket

    everywhere = msgspec.structs.replace(ApiSettings(), host="0.0.0.0", port=0)
    with pytest.raises(errors.Misconfigured, match="auth_strategy"):
        bind_socket(everywhere)
    bind_socket(msgspec.structs.replace(everywhere, auth_strategy="keystone")).close()
