"""Ask for what is planned over HTTP, from several clients, and repeat what was not answered until it is."""

from __future__ import annotations

import heapq
import itertools
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import requests

from chaos.plan import PROJECT, Boot
from cli.standalone.demo.boots import Act
from cli.standalone.demo.verdict import AcceptedBoot

CLIENT_THREADS = 16
REQUEST_TIMEOUT_S = 40.0
"""Seconds that one request may take. The API gives up a frozen database after half of it."""
MAX_PAUSE_S = 2.0

Job = Callable[[], None]


class Load:
    """Every boot of the plan is sent with an Idempotency-Key, to one API after the other, until one of them answers."""

    def __init__(self, endpoints: Sequence[str], group_uuids: Mapping[str, str], seed: int) -> None:
        self._endpoints = itertools.cycle(endpoints)
        self._groups = group_uuids
        self._seed = seed
        self._local = threading.local()
        self._turn = threading.Condition()
        self._jobs: list[tuple[float, int, Job]] = []
        self._numbers = itertools.count()
        self._working = 0
        self._over = False
        self._hurry = False
        self.taken: list[AcceptedBoot] = []
        self.deleted: set[str] = set()
        self.complaints: list[str] = []
        """Answers that must never come."""
        self.answers: Counter[str] = Counter()
        self.tries: Counter[int] = Counter()
        """How many requests had to be sent so many times."""
        self.waits: list[float] = []
        """Seconds from the first sending of each request to the answer that counts."""

    def start(self, boots: Sequence[Boot]) -> None:
        began = time.monotonic()
        for boot in boots:
            self._put_job(began + boot.at, partial(self._send_boot, boot))
        for number in range(CLIENT_THREADS):
            threading.Thread(target=self._work_jobs, name=f"client-{number}", daemon=True).start()

    def finish_requests(self, patience: float) -> int:
        """Send what is left at once, and wait until all is answered. How many requests were not."""
        with self._turn:
            self._hurry = True
            self._turn.notify_all()
            self._turn.wait_for(lambda: not self._jobs and not self._working, patience)
            return len(self._jobs) + self._working

    def stop(self) -> None:
        """Nothing more is sent, nor repeated."""
        with self._turn:
            self._over = True
            self._turn.notify_all()

    # -- clients ---------------------------------------------------------------------------------------------------------------

    def _put_job(self, due: float, job: Job) -> None:
        with self._turn:
            heapq.heappush(self._jobs, (due, next(self._numbers), job))
            self._turn.notify()

    def _work_jobs(self) -> None:
        while (job := self._next_job()) is not None:
            try:
                job()
            except Stopped:
                pass
            finally:
                with self._turn:
                    self._working -= 1
                    self._turn.notify_all()

    def _next_job(self) -> Job | None:
        with self._turn:
            while not self._over:
                wait = self._jobs[0][0] - time.monotonic() if self._jobs else None
                if wait is not None and (wait <= 0 or self._hurry):
                    self._working += 1
                    return heapq.heappop(self._jobs)[2]
                self._turn.wait(wait)
        return None

    def _send_boot(self, boot: Boot) -> None:
        key = {"Idempotency-Key": f"chaos-{self._seed}-{boot.number}"}
        body = boot.boot_body(self._groups)
        answer = self._ask_until_answered("POST", "servers", 202, json=body, headers=key)
        first = answer["server"]["id"]
        at = time.time()
        if (
            boot.repeats
            and (again := self._ask_until_answered("POST", "servers", 202, json=body, headers=key)["server"]["id"]) != first
        ):
            self._add_complaint(f"{boot.request_name}: its POST was answered with {first}, and repeated with {again}")
        listed = self._ask_until_answered(
            "GET", "servers", 200, params={"name": f"^{boot.request_name}(-[0-9]+)?$", "limit": "1000"}
        )["servers"]
        uuids = tuple(server["id"] for server in listed)
        if first not in uuids or len(uuids) != boot.count:
            self._add_complaint(
                f"{boot.request_name}: {boot.count} servers were accepted, {first} first, and {len(uuids)} are listed: {uuids}"
            )
        with self._turn:
            self.taken.append(AcceptedBoot(boot=boot, uuids=uuids, at=at))
        for uuid in uuids[: boot.deletes]:
            self._put_job(time.monotonic() + boot.delete_after, partial(self._delete, uuid))
        for act in boot.acts:
            self._put_job(time.monotonic() + act.after, partial(self._send_action, uuids[-1], act))

    def _delete(self, uuid: str) -> None:
        self._ask_until_answered("GET", f"servers/{uuid}", 200)
        self._ask_until_answered("DELETE", f"servers/{uuid}", 204)
        with self._turn:
            self.deleted.add(uuid)

    def _send_action(self, uuid: str, act: Act) -> None:
        """Ask until it is accepted, or refused: the server is at something else (409), has the flavor (400) or is deleted (404)."""
        for number in itertools.count(1):
            status, document = self._ask_once("POST", f"servers/{uuid}/action", json={act.name: act.value})
            self.answers[f"{act.name} {status}"] += 1
            if status in ("202", "204", "409", "404") or (status == "400" and act.name == "resize"):
                return
            if status.startswith("4"):
                self._add_complaint(f"{act.name} of {uuid}: {status} {document}")
                return
            with self._turn:
                if self._turn.wait_for(lambda: self._over, min(MAX_PAUSE_S, 0.2 * number)):
                    raise Stopped

    # -- one request -----------------------------------------------------------------------------------------------------------

    def _ask_until_answered(self, method: str, path: str, expected: int, **arguments: Any) -> Any:
        """The answer with the status expected, asked for until it comes. Any other from 400 to 499 is final, and a complaint.

        Except 404 for a delete that is repeated: it was carried out, and its answer lost.
        """
        began = time.monotonic()
        for number in itertools.count(1):
            status, document = self._ask_once(method, path, **arguments)
            self.answers[f"{method} {status}"] += 1
            if status == str(expected) or (status == "404" and method == "DELETE" and number > 1):
                self.tries[number] += 1
                self.waits.append(time.monotonic() - began)
                return document
            if status.startswith("4"):
                self._add_complaint(f"{method} {path} {arguments.get('json', '')}: {status} {document}")
                raise Stopped
            with self._turn:
                if self._turn.wait_for(lambda: self._over, min(MAX_PAUSE_S, 0.2 * number)):
                    raise Stopped
        raise AssertionError("unreachable")

    def _ask_once(self, method: str, path: str, **arguments: Any) -> tuple[str, Any]:
        try:
            answer = self._thread_session().request(
                method, f"{next(self._endpoints)}/{path}", timeout=REQUEST_TIMEOUT_S, **arguments
            )
            return str(answer.status_code), answer.json() if answer.content else None
        except requests.Timeout:
            return "late", None
        except (requests.RequestException, ValueError):
            return "lost", None

    def _add_complaint(self, text: str) -> None:
        with self._turn:
            self.complaints.append(text)

    def _thread_session(self) -> requests.Session:
        session: requests.Session | None = getattr(self._local, "session", None)
        if session is None:
            session = self._local.session = requests.Session()
            session.headers["X-Project-Id"] = PROJECT
            session.trust_env = False
        return session


class Stopped(Exception):
    """No answer is waited for any more."""
