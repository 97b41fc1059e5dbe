"""The API behind its own server: real sockets."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest
import requests

from api.main import ApiService
from api.opts import ApiSettings
from objects import errors
from tests.support.api import IMAGE, NEWEST, Front, serve_http
from tests.support.threads import run_threads


@pytest.fixture
def service(front: Front) -> Iterator[ApiService]:
    with serve_http(front, ApiSettings()) as service:
        yield service


def test_it_serves_on_a_free_port(service: ApiService) -> None:
    """Links lead back to it."""
    url = f"http://127.0.0.1:{service.listen_port}"
    links = requests.get(url, timeout=10).json()["versions"][-1]["links"]
    assert links == [{"rel": "self", "href": f"{url}/v2.1/"}]
    assert requests.get(links[0]["href"], timeout=10).status_code == 200


def test_many_clients_boot_at_once(front: Front, service: ApiService) -> None:
    """Every 202 is a server, and no two the same."""
    url = f"http://127.0.0.1:{service.listen_port}/v2.1/servers"
    answers: list[str] = []

    def boot() -> None:
        with requests.Session() as session:
            for _ in range(5):
                body = {"server": {"name": "web", "flavorRef": "1", "imageRef": IMAGE, "networks": "none"}}
                answer = session.post(url, json=body, headers=NEWEST, timeout=30)
                assert answer.status_code == 202
                answers.append(answer.json()["server"]["id"])

    run_threads([threading.Thread(target=boot) for _ in range(8)])
    assert len(set(answers)) == 40
    assert set(answers) == set(front.uuids())


def test_a_large_body_is_refused_with_formatted_error(service: ApiService) -> None:
    """Before anything is done with it."""
    answer = requests.post(f"http://127.0.0.1:{service.listen_port}/v2.1/servers", json={"x": "x" * 2**20}, timeout=10)
    assert (answer.status_code, answer.json()["overLimit"]["code"]) == (413, 413)


def test_stopped_it_lets_go_of_its_port(front: Front) -> None:
    """So that the next one can have it; stopping twice does no harm."""
    service = ApiService(ApiSettings(port=0), front.registry, front.database, front.bus)
    service.start()
    with requests.Session() as session:  # an idle connection must not keep it
        session.get(f"http://127.0.0.1:{service.listen_port}/", timeout=10)
        service.stop()
    service.stop()
    with pytest.raises(requests.ConnectionError):
        requests.get(f"http://127.0.0.1:{service.listen_port}/", timeout=10)
    again = ApiService(ApiSettings(port=service.listen_port), front.registry, front.database, front.bus)
    again.start()
    assert requests.get(f"http://127.0.0.1:{again.listen_port}/", timeout=10).status_code == 200
    again.stop()


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1"])
def test_an_open_api_does_not_listen_publicly(front: Front, host: str) -> None:
    """It authenticates nobody; the message says what to do."""
    service = ApiService(ApiSettings(host=host, port=0), front.registry, front.database, front.bus)
    with pytest.raises(errors.Misconfigured, match="noauth_anywhere"):
        service.start()


def test_it_listens_anywhere_if_told_so_by_name(front: Front) -> None:
    """And serves."""
    service = ApiService(ApiSettings(host="0.0.0.0", port=0, noauth_anywhere=True), front.registry, front.database, front.bus)
    service.start()
    assert requests.get(f"http://127.0.0.1:{service.listen_port}/", timeout=10).status_code == 200
    service.stop()


def test_an_occupied_port_is_one_clear_error(front: Front) -> None:
    """Naming the options."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        service = ApiService(ApiSettings(port=port), front.registry, front.database, front.bus)
        with pytest.raises(errors.Misconfigured, match=rf"\[api\] host, port: .*{port}"):
            service.start()
    service.stop()
