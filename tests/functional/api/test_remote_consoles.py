"""Remote consoles: a URL from the API, a real proxy, a real agent, and a client of its own library's."""

from __future__ import annotations

import contextlib
import datetime
import ipaddress
import logging
import socket
import ssl
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
import sqlalchemy as sa
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from websockets.exceptions import ConnectionClosed, InvalidStatus, WebSocketException
from websockets.sync.client import ClientConnection

from compute import console_relay
from db.api.rows.tables import console_tokens as tokens
from db.api.rows.tables import instance_mappings
from db.api.servers import console_tokens
from db.cell.tables import services
from objects.build import DeleteOrder
from objects.console import ConsoleKind, ConsoleListener, access_path, digest_of
from objects.task import Power
from rpc.compute import CONNECTING_VERSION
from service import metrics
from service.periodic import wait_until
from tests.support.api import NEWEST, OTHER_TENANT, TENANT, Front, refusal
from tests.support.cell_conductor import PATIENCE
from tests.support.closing import closing_fixture
from tests.support.console_site import MEMBER, SERIAL, ConsoleSite
from tests.support.websocket_client import open_websocket, read_until

ADMIN = NEWEST | {"X-Project-Id": "operators", "X-Roles": "admin"}
READER = MEMBER | {"X-Roles": "reader"}
UNKNOWN = "3d4f8c5e-0000-4000-8000-000000000000"


site = closing_fixture(ConsoleSite)


def token_in(url: str) -> str:
    (token,) = parse_qs(urlsplit(url).query)["token"]
    return token


def refused(url: str, **options: Any) -> str:
    """What the proxy says to a connection that it does not take."""
    with pytest.raises(InvalidStatus) as caught:
        open_websocket(url, **options)
    assert caught.value.response.status_code == 403
    return caught.value.response.body.decode() if caught.value.response.body else ""


def ended(console: ClientConnection) -> bytes:
    """What it writes until its end. Fails if that does not come within the patience of a test."""
    seen = b""
    with contextlib.suppress(ConnectionClosed):
        while True:
            message = console.recv(PATIENCE)
            assert isinstance(message, bytes)
            seen += message
    return seen


def certificate(folder: Path) -> tuple[Path, Path]:
    """The files of a certificate of 127.0.0.1 by itself, and of its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .sign(key, hashes.SHA256())
    )
    files = folder / "cert.pem", folder / "key.pem"
    files[0].write_bytes(made.public_bytes(serialization.Encoding.PEM))
    private = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    files[1].write_bytes(key.private_bytes(*private))
    return files


def relayed(site: ConsoleSite, request: bytes) -> tuple[bytes, socket.socket]:
    """The agent's answer to what a proxy sends, and the connection."""
    port = site.agents.services["h1"]._agent._relay._open_listener()
    connection = socket.create_connection(("127.0.0.1", port), PATIENCE)
    connection.sendall(request)
    return connection.recv(1000), connection


# -- a console -------------------------------------------------------------------------------------------------------------------


def test_a_serial_console_is_read_and_written(site: ConsoleSite) -> None:
    site.host()
    url = site.url(site.guest())
    assert url.startswith(f"ws://{site.address}/?token=")
    with open_websocket(url, subprotocols=["binary"]) as console:
        assert console.subprotocol == "binary"
        read_until(console, b"web: serial console of a simulated guest\r\n")
        assert metrics.REGISTRY.get_sample_value("superconductor_console_sessions", {"type": "serial"}) == 1
        console.send(b"one\rtw")
        assert read_until(console, b"\n") == b"web: one\r\n"
        console.send("o\n")
        assert read_until(console, b"\n") == b"web: two\r\n"
    with open_websocket(url) as again:  # as long as the token is good
        read_until(again, b"serial console")


def test_the_newest_session_has_the_serial_port(site: ConsoleSite) -> None:
    site.host()
    server = site.guest()
    with open_websocket(site.url(server)) as first:
        read_until(first, b"serial console")
        with open_websocket(site.url(server)) as second:
            read_until(second, b"serial console")
            ended(first)
            second.send(b"still here\n")
            read_until(second, b"web: still here")


def test_a_token_opens_only_its_servers_console(site: ConsoleSite) -> None:
    site.host()
    one, other = site.guest("one"), site.guest("other")
    with open_websocket(site.url(one)) as first, open_websocket(site.url(other)) as second:
        read_until(first, b"one: serial console")
        read_until(second, b"other: serial console")


def test_a_vanished_guest_ends_its_sessions_and_tokens(site: ConsoleSite) -> None:
    site.host()
    server = site.guest()
    url = site.url(server)
    with open_websocket(url) as console:
        read_until(console, b"serial console")
        site.agents.services["h1"]._agent._relay.forget_guest(server)  # as before each destroy
        ended(console)
    answer, connection = relayed(site, f"CONNECT {access_path(token_in(url))} HTTP/1.1\r\n\r\n".encode())
    connection.close()
    assert answer.startswith(b"HTTP/1.1 404")


def test_a_destroy_forgets_the_guest(site: ConsoleSite) -> None:
    site.host()
    server = site.guest()
    agent = site.agents.services["h1"]._agent
    with open_websocket(site.url(server)) as console:
        read_until(console, b"serial console")
        agent.report_found(site.agents.drivers["h1"].guests())
        agent.delete([DeleteOrder(instance_uuid=server, attempt=1, fence=1)])
        ended(console)


def test_a_proxy_that_stops_ends_its_sessions(site: ConsoleSite) -> None:
    site.host()
    with open_websocket(site.url(site.guest())) as console:
        read_until(console, b"serial console")
        site.proxy.stop()
        ended(console)


# -- who may ---------------------------------------------------------------------------------------------------------------------


def test_members_open_consoles_of_their_own_servers(site: ConsoleSite) -> None:
    site.host()
    server = site.guest()
    assert site.ask(server, ADMIN).status_code == 200
    assert "os-remote-consoles" in refusal(site.ask(server, READER), 403)
    for uuid, headers in ((server, OTHER_TENANT | NEWEST), (UNKNOWN, MEMBER), ("no-uuid", MEMBER)):
        assert "could not be found" in refusal(site.ask(uuid, headers), 404)


def test_a_token_that_is_none_opens_nothing(site: ConsoleSite) -> None:
    for path in ("", "?token=", "?token=guess", "?token=%00%ff", "?token=a&token=b", "?other=a", "//[?token=a"):
        assert "not known" in refused(f"ws://{site.address}/{path}")
    assert "not known" in refused(f"ws://{site.address}/", additional_headers={"Cookie": 'a=b; token="x'})


def test_the_novnc_page_sends_its_token_by_cookie(site: ConsoleSite) -> None:
    site.host()
    url = site.url(site.guest())
    cookies = {"Cookie": f"a=b; bad[=c; token={token_in(url)}"}
    with open_websocket(f"ws://{site.address}/websockify", additional_headers=cookies) as console:
        read_until(console, b"serial console")


def test_a_token_ends_by_expiry_or_server_deletion(site: ConsoleSite) -> None:
    site.host()
    expired, moved, deleted = (site.guest(name) for name in ("expired", "moved", "deleted"))
    urls = {server: site.url(server) for server in (expired, moved, deleted)}
    write = site.front.database.write
    write(lambda tx: tx.execute(sa.update(tokens).where(tokens.c.server_uuid == expired).values(expires_at=1.0)))
    body = sa.update(instance_mappings).where(instance_mappings.c.instance_uuid == moved).values(body_uuid=expired)
    write(lambda tx: tx.execute(body))
    assert site.front.delete(deleted, TENANT).status_code == 204
    for server in (expired, moved, deleted):
        assert "not known" in refused(urls[server])
    assert write(console_tokens.forget_expired) == 1


@pytest.mark.parametrize(
    ("headers", "reason"),
    [
        ({"Origin": "http://evil.example.org"}, "another host"),
        ({"Origin": "http://127.0.0.1.evil.example.org"}, "another host"),
        ({"Origin": "https://127.0.0.1"}, "another protocol"),
        ({"Origin": "null"}, "cannot be used"),
        ({"Origin": "http://["}, "cannot be used"),
        ({"Origin": ""}, "cannot be used"),
        ({"Origin": "http://127.0.0.1", "X-Forwarded-Proto": "https"}, "another protocol"),
    ],
)
def test_a_page_of_another_host_opens_no_console(site: ConsoleSite, headers: dict[str, str], reason: str) -> None:
    site.host()
    assert reason in refused(site.url(site.guest()), additional_headers=headers)


@pytest.mark.parametrize(
    "headers",
    [{"Origin": "http://127.0.0.1:8000"}, {"Origin": "ws://friend.example.org"}, {"Origin": "http://Friend.example.org"}],
)
def test_pages_of_this_or_allowed_hosts_are_accepted(tmp_path: Path, headers: dict[str, str]) -> None:
    site = ConsoleSite(tmp_path, allowed_origins=("friend.example.org",))
    site.host()
    with open_websocket(site.url(site.guest()), additional_headers=headers) as console:
        read_until(console, b"serial console")
    site.close()


def test_tokens_are_neither_stored_nor_logged(site: ConsoleSite, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    logging.getLogger("websockets.client").setLevel(logging.INFO)  # the test's own side
    site.host()
    url = site.url(site.guest())
    with open_websocket(url) as console:
        read_until(console, b"serial console")
    assert site.front.get(f"/v2.1/os-console-auth-tokens/{token_in(url)}", ADMIN).status_code == 200
    refused(url, additional_headers={"Origin": "http://evil.example.org"})
    secrets = (token_in(url), access_path(token_in(url)))
    rows = str(site.front.database.read(lambda tx: tx.execute(sa.select(tokens)).all()))
    assert digest_of(secrets[0]) in rows
    for secret in secrets:
        assert secret not in rows
        assert secret not in caplog.text


def test_a_proxy_takes_so_many_connections(tmp_path: Path) -> None:
    site = ConsoleSite(tmp_path, max_connections=1)
    site.host()
    url = site.url(site.guest())
    with open_websocket(url) as console:
        read_until(console, b"serial console")
        with pytest.raises((OSError, WebSocketException)):
            open_websocket(url)

    def opens() -> bool:
        try:
            open_websocket(url).close()
        except (OSError, WebSocketException):
            return False
        return True

    assert wait_until(opens, PATIENCE)
    site.close()


# -- the API ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("protocol", "kind"),
    [
        ("spice", "spice-html5"),
        ("rdp", "rdp-html5"),
        ("mks", "webmks"),
        ("vnc", "xvpvnc"),
        ("vnc", "serial"),
        ("serial", "novnc"),
    ],
)
def test_a_console_of_another_kind_is_unavailable(site: ConsoleSite, protocol: str, kind: str) -> None:
    site.host()
    server = site.guest()
    assert refusal(site.ask(server, protocol=protocol, type=kind), 400) == f"Unavailable console type {kind}."
    assert "could not be found" in refusal(site.ask(UNKNOWN, protocol=protocol, type=kind), 404)


def test_a_driver_without_this_console(site: ConsoleSite) -> None:
    site.host()
    server = site.guest()
    assert refusal(site.ask(server, protocol="vnc", type="novnc"), 400) == "Unavailable console type novnc."
    assert "serial console only" in refusal(site.ask(server, ADMIN, protocol="vnc", type="novnc"), 400)


def test_a_host_that_is_to_connect_nobody(site: ConsoleSite) -> None:
    site.host(console_host="")
    assert "console_host is empty" in refusal(site.ask(site.guest(), ADMIN), 400)


def test_a_type_without_a_url(tmp_path: Path) -> None:
    front = Front(tmp_path)
    server = front.boot("web", TENANT)
    answer = front.client.simulate_post(f"/v2.1/servers/{server}/remote-consoles", headers=ADMIN, json={"remote_console": SERIAL})
    assert "serial_url is not set" in refusal(answer, 400)
    front.close()


@pytest.mark.parametrize(
    "body",
    [{}, {"remote_console": {}}, {"remote_console": SERIAL | {"more": 1}}, {"remote_console": SERIAL | {"type": "x"}}, []],
)
def test_a_body_that_is_none_is_refused(site: ConsoleSite, body: Any) -> None:
    path = f"/v2.1/servers/{UNKNOWN}/remote-consoles"
    assert site.front.client.simulate_post(path, headers=MEMBER, json=body).status_code == 400


def test_before_version_6_there_were_actions(site: ConsoleSite) -> None:
    site.host()
    server = site.guest()
    for version in ("2.1", "2.5"):
        console = site.act(server, "os-getSerialConsole", "serial", version).json["console"]
        assert console.keys() == {"type", "url"}
        with open_websocket(console["url"]) as opened:
            read_until(opened, b"serial console")
        for action, kind in (("os-getVNCConsole", "novnc"), ("os-getSPICEConsole", "spice-html5")):
            assert "Unavailable console type" in refusal(site.act(server, action, kind, version), 400)
        assert "os-getSerialConsole.type" in refusal(site.act(server, "os-getSerialConsole", "novnc", version), 400)
        assert refusal(site.ask(server, TENANT | {"OpenStack-API-Version": f"compute {version}"}), 404)
    for action in ("os-getSerialConsole", "os-getVNCConsole"):
        assert "does not exist in version 2.6" in refusal(site.act(server, action, "serial", "2.6"), 404)
    old = TENANT | {"OpenStack-API-Version": "compute 2.7"}
    assert "remote_console.protocol" in refusal(site.ask(server, old, protocol="mks", type="webmks"), 400)
    assert site.ask(server, old).status_code == 200


def test_proxies_ask_where_a_console_is(site: ConsoleSite) -> None:
    site.host()
    server = site.guest()
    token = token_in(site.url(server))
    path = f"/v2.1/os-console-auth-tokens/{token}"
    console = site.front.get(path, ADMIN).json["console"]
    assert console | {"port": 0} == {
        "instance_uuid": server,
        "host": "127.0.0.1",
        "port": 0,
        "internal_access_path": access_path(token),
    }
    with socket.create_connection((console["host"], console["port"]), PATIENCE) as connection:
        connection.sendall(f"CONNECT {console['internal_access_path']} HTTP/1.1\r\n\r\nhello\n".encode())
        seen = b""
        while not seen.endswith(b"web: hello\r\n"):
            seen += connection.recv(1000)
    assert seen.startswith(b"HTTP/1.1 200 ")
    assert "os-console-auth-tokens" in refusal(site.front.get(path, MEMBER), 403)
    assert refusal(site.front.get("/v2.1/os-console-auth-tokens/guess", ADMIN), 404) == "Token not found"
    refusal(site.front.get(path, ADMIN | {"OpenStack-API-Version": "compute 2.30"}), 400)


def test_an_unbuilt_or_stopped_server_has_no_console(site: ConsoleSite) -> None:
    driver = site.host()
    queued = site.front.boot("web", TENANT)
    assert "has no guest" in refusal(site.ask(queued), 409)
    off = site.guest()
    driver.set_power(off, Power.OFF, hard=True)
    assert "does not run" in refusal(site.ask(off, ADMIN), 409)
    assert "h1" not in refusal(site.ask(off), 409)
    site.front.cell.write(lambda tx: tx.execute(sa.update(services).values(version=CONNECTING_VERSION - 1)))
    assert "older release" in refusal(site.ask(off, ADMIN), 409)


def test_a_host_that_is_gone_ends_the_connection(site: ConsoleSite) -> None:
    site.host()
    url = site.url(site.guest())
    site.agents.stop()
    with open_websocket(url) as console:
        ended(console)
        assert console.close_code == 1011


@pytest.mark.parametrize("address", ["", "a b", "h1\n", "h" * 300, "[::1]"])
def test_an_agent_must_name_a_machine(site: ConsoleSite, address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    site.host()
    server = site.guest()
    relay = site.agents.services["h1"]._agent._relay
    monkeypatch.setattr(relay, "open", lambda *_: ConsoleListener(address=address, port=1))
    assert "cannot answer" in refusal(site.ask(server, ADMIN), 409)


def test_a_machine_that_is_no_agent_stays_hidden(site: ConsoleSite, monkeypatch: pytest.MonkeyPatch) -> None:
    """An agent could name any machine that the proxy reaches."""
    site.host()
    server = site.guest()
    with socket.create_server(("127.0.0.1", 0)) as other:
        relay = site.agents.services["h1"]._agent._relay
        monkeypatch.setattr(relay, "open", lambda *_: ConsoleListener(address="127.0.0.1", port=other.getsockname()[1]))
        url = site.url(server)
        with open_websocket(url) as console:
            connection, _ = other.accept()
            connection.sendall(b"SSH-2.0-secret\r\n\r\n")
            assert ended(console) == b""
            connection.close()


def test_with_a_certificate_it_speaks_tls(tmp_path: Path) -> None:
    cert, key = certificate(tmp_path)
    site = ConsoleSite(tmp_path, cert=str(cert), key=str(key))
    site.host()
    url = site.url(site.guest()).replace("ws://", "wss://")
    with open_websocket(url, ssl=ssl.create_default_context(cafile=str(cert))) as console:
        read_until(console, b"serial console")
    site.close()


def test_a_server_has_so_many_tokens(site: ConsoleSite, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console_tokens, "SERVER_LIMIT", 2)
    monkeypatch.setattr(console_relay, "GUEST_LIMIT", 2)
    site.host()
    server = site.guest()
    first, *others = (site.url(server) for _ in range(3))
    assert "not known" in refused(first)
    for url in others:
        with open_websocket(url) as console:
            read_until(console, b"serial console")
    assert len(site.agents.services["h1"]._agent._relay._grants) == 2


# -- the agent -------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", b"400"),
        (b"CONNECT a b HTTP/1.1\r\n\r\n", b"400"),
        (b"\xff" * 2000, b"400"),
        (b"CONNECT guess HTTP/1.1\r\n\r\n", b"404"),
        (b"CONNECT /guess HTTP/1.0\r\nHost: x\r\n\r\n", b"404"),
    ],
)
def test_the_agent_refuses_callers_without_access_path(site: ConsoleSite, request_: bytes, status: bytes) -> None:
    site.host()
    answer, connection = relayed(site, request_)
    connection.close()
    assert answer.split(b" ")[1] == status


def test_an_access_path_expires(site: ConsoleSite) -> None:
    site.host()
    agent = site.agents.services["h1"]._agent
    agent.open_console(site.guest(), ConsoleKind.SERIAL, digest_of("path"), 1e-6)
    answer, connection = relayed(site, b"CONNECT path HTTP/1.1\r\n\r\n")
    connection.close()
    assert answer.split(b" ")[1] == b"404"


def test_an_occupied_fixed_port_is_reported_at_start(site: ConsoleSite) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        agent = site.agents.make("h1", console_port=other.getsockname()[1])
        with pytest.raises(Exception, match=r"\[compute\] console_host, console_port: cannot listen"):
            agent.start()
