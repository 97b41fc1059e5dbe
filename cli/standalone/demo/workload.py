"""Post the plan over HTTP, as several tenants' scripts would, and delete what is not wanted while it builds."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import requests

from cli.standalone.demo.plan import PROJECT, Item
from objects import errors

CLIENT_THREADS = 8
REQUEST_TIMEOUT_S = 30.0


class Workload:
    """Sends every item once: a repeated POST, in this run or in a resumed one, answers with the same servers.

    Each request goes to the next of ``endpoints``, so that no two steps of one client need meet the same API.
    """

    def __init__(self, endpoints: Sequence[str], group_uuids: dict[str, str], stopped: threading.Event) -> None:
        self._endpoints = itertools.cycle(endpoints)
        self._groups = group_uuids
        self._stopped = stopped
        self._local = threading.local()

    def post_items(self, items: Sequence[Item], done: Callable[[Item], None]) -> None:
        """Post all items from several clients at once. Raises ``errors.Invalid`` on a refusal."""

        def post_item(item: Item) -> None:
            if self._stopped.is_set():
                return
            self._create(item)
            if item.deletes:
                self._stopped.wait(item.delete_after)
                for uuid in self._list_members(item)[: item.deletes]:
                    self._delete(uuid)
            done(item)

        with ThreadPoolExecutor(CLIENT_THREADS, thread_name_prefix="client") as pool:
            for future in [pool.submit(post_item, item) for item in items]:
                future.result()

    def read_explanation(self, uuid: str) -> dict[str, object]:
        """The stored decision about a server."""
        answer = self._thread_session().get(f"{self._next_endpoint()}/servers/{uuid}/explanation", timeout=REQUEST_TIMEOUT_S)
        answer.raise_for_status()
        explanation: dict[str, object] = answer.json()["explanation"]
        return explanation

    def _create(self, item: Item) -> None:
        headers = {"Idempotency-Key": f"demo-{item.name}"}
        answer = self._thread_session().post(
            f"{self._next_endpoint()}/servers", json=item.boot_body(self._groups), headers=headers, timeout=REQUEST_TIMEOUT_S
        )
        if answer.status_code != 202:
            raise errors.Invalid(f"POST of {item.name!r} was refused: {answer.status_code} {answer.text}")

    def _list_members(self, item: Item) -> list[str]:
        """The servers of an item that are not deleted, by their names."""
        params = {"name": f"^{item.name}(-[0-9]+)?$", "limit": "1000"}
        answer = self._thread_session().get(f"{self._next_endpoint()}/servers", params=params, timeout=REQUEST_TIMEOUT_S)
        answer.raise_for_status()
        return [server["id"] for server in answer.json()["servers"]]

    def _delete(self, uuid: str) -> None:
        answer = self._thread_session().delete(f"{self._next_endpoint()}/servers/{uuid}", timeout=REQUEST_TIMEOUT_S)
        if answer.status_code not in (204, 404):
            raise errors.Invalid(f"DELETE of {uuid} was refused: {answer.status_code} {answer.text}")

    def _next_endpoint(self) -> str:
        return next(self._endpoints)  # one step of the interpreter, so threads may share it

    def _thread_session(self) -> requests.Session:
        """One connection of each client thread to each API."""
        session: requests.Session | None = getattr(self._local, "session", None)
        if session is None:
            session = self._local.session = requests.Session()
            session.headers["X-Project-Id"] = PROJECT
            session.trust_env = False  # a proxy of the user's must not stand between the demo and its own API
        return session
