"""Ask every route that the application serves and Nova has, in every version that changes it, and compare with Nova's schemas.

    python -m tests.conformance --nova .venv-nova/bin/python [--only TEXT]

It also compares request schemas: a body that Nova's schema allows must fit ours, unless ``request_schemas.WANTED`` has the reason.
Prints a line for each misfit: METHOD path version role: what is wrong. The exit status is 1 if there is one.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from api.http.microversions import MAXIMUM, MINIMUM, Microversion
from tests.conformance import examples
from tests.conformance.examples import EXAMPLES, NOT_REACHED, OTHERS, QUERIES, SCHEMA_DEFECTS, Asking, Things
from tests.conformance.exchange import ROLES, Deployment, Exchange, Route, Version
from tests.conformance.request_schemas import allowed_bodies, describe_places, narrower_places
from tests.conformance.world import world

ROOT = Path(__file__).resolve().parents[2]
CONTRACT = ROOT / "ci" / "nova_contract.py"
SLOW = "/servers/{}/action"
"""Examples of this path boot servers, so they run only in the versions that change the action itself."""
OURS = sorted({change.value for change in Microversion})
NOT_SERVED = 501
UNKNOWN_ACTION = "There is no such action"
_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|\\bx-[0-9a-f]{10}\\b")
NOBODY = "00000000-0000-4000-8000-000000000000"


class NovaRoute(NamedTuple):
    """What Nova says of a route: the versions that change it, and those that have it."""

    points: tuple[Version, ...]
    since: Version
    until: Version
    has_schemas: bool

    def has(self, version: Version) -> bool:
        return self.since <= version <= self.until


def contract(python: str) -> dict[Route, NovaRoute]:
    """The routes of the Nova that is installed for this interpreter."""
    done = subprocess.run([python, "-W", "ignore", str(CONTRACT), "routes"], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr.strip() or f"{python} cannot run {CONTRACT}")
    found = {}
    for each in json.loads(done.stdout):
        if not each["removed"]:
            since, until = tuple(each["since"] or MINIMUM), tuple(each["until"] or (2, 999))
            points = tuple(tuple(point) for point in each["points"])
            found[Route(each["method"], each["path"], each["action"])] = NovaRoute(points, since, until, bool(each["kinds"]))
    return found


def misfits(python: str, exchanges: Iterable[Exchange]) -> Iterator[tuple[int, str]]:
    """What Nova refuses of them, each by the number of its exchange."""
    lines = b"\n".join(msgspec.json.encode(exchange) for exchange in exchanges)
    done = subprocess.run([python, "-W", "ignore", str(CONTRACT), "judge"], input=lines, capture_output=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr.decode().strip())
    for line in done.stdout.splitlines():
        found = json.loads(line)
        yield found["number"], found["misfit"]


def served_actions(deployment: Deployment, path: str, names: dict[str, NovaRoute]) -> set[str]:
    """The actions of these that the application knows: it looks at the name of an action before it looks for the resource."""
    found = set()
    for name, known in names.items():
        answer = deployment.ask("admin", min(known.until, MAXIMUM), Route("POST", path, name), (NOBODY,), {name: None})
        deployment.exchanges.pop()
        if answer.status != NOT_SERVED and UNKNOWN_ACTION not in json.dumps(answer.response):
            found.add(name)
    return found


def to_ask(deployment: Deployment, served: set[Route], nova: dict[Route, NovaRoute]) -> set[Route]:
    """Routes of ours that Nova has too, with their actions one by one."""
    found = {route for route in served if route in nova and not route.path.startswith(OTHERS)}
    for path in {route.path for route in served if route.path.endswith("/action")}:
        names = {route.action: known for route, known in nova.items() if route.path == path and route.action}
        found |= {Route("POST", path, name) for name in served_actions(deployment, path, names)}
    return found


def versions(route: Route, known: NovaRoute) -> list[Version]:
    points = {MINIMUM, MAXIMUM, *known.points} | (set() if route.path == SLOW else set(OURS))
    return sorted(point for point in points if point <= MAXIMUM)


def exercise(deployment: Deployment, things: Things, route: Route, known: NovaRoute) -> Iterator[str]:
    """Ask the route in all its versions, as every role. Yields what went wrong on the way."""
    for version in versions(route, known):
        for role in ROLES:
            asking = Asking(deployment, things, role, version, route)
            try:
                if not known.has(version):
                    _ask_in_vain(asking)
                elif route in EXAMPLES:
                    EXAMPLES[route](asking)
                elif route.method == "GET":
                    _read(asking)
            except AssertionError as error:
                yield f"{route} {version[0]}.{version[1]} {role}: the example failed: {str(error)[:600]}"


def _read(asking: Asking) -> None:
    path = asking.route.path
    queries = ["", *(query for since, query in QUERIES.get(path, ()) if since <= asking.version)]
    for values in examples.values(asking, path):
        for query in queries:
            asking.send(*values, query=query)


def _ask_in_vain(asking: Asking) -> None:
    if asking.route.method == "GET" and "{}" not in asking.route.path:
        asking.send(allowed=(404,))


def own_misfits(exchange: Exchange, known: NovaRoute) -> Iterator[str]:
    """What needs no schema: refusals of requests that should succeed, and server errors."""
    status = exchange.status
    if status >= 500 and status != NOT_SERVED:
        yield f"status {status}: {exchange.response}"
    elif not known.has(exchange.version):
        if status != 404:
            yield f"status {status}, but Nova has this route only in {known.since} to {known.until}"
    elif status >= 400:
        if not _is_refusal(exchange):
            yield f"a refusal in another form: {exchange.response}"
        is_told = (exchange.role != "admin" and status == 403) or (status == NOT_SERVED and exchange.route in NOT_REACHED)
        if status not in exchange.allowed and not is_told:
            yield f"status {status}: {json.dumps(exchange.response)[:400]} for {exchange.url} {json.dumps(exchange.request)[:300]}"


def _is_refusal(exchange: Exchange) -> bool:
    document = exchange.response
    if not isinstance(document, dict) or len(document) != 1:
        return False
    [inner] = document.values()
    return isinstance(inner, dict) and inner.get("code") == exchange.status and isinstance(inner.get("message"), str)


def unexercised(routes: Iterable[Route], exchanges: Iterable[Exchange], nova: dict[Route, NovaRoute]) -> Iterator[str]:
    done = Counter(exchange.route for exchange in exchanges if 200 <= exchange.status < 300)
    for route in sorted(routes):
        known = nova[route]
        if done[route] or route in NOT_REACHED or known.since > MAXIMUM:
            continue
        if known.has_schemas:
            yield f"{route}: no request of it succeeded; give an example in tests/conformance/examples.py"


def _grouped(found: Iterable[tuple[Exchange, str]]) -> Iterator[str]:
    """A line for each route, role and misfit; versions that have it are named together, and identifiers count as equal."""
    by_line = defaultdict[tuple[Route, str, str], set[Version]](set)
    for exchange, misfit in found:
        by_line[exchange.route, exchange.role, _ID.sub("ID", misfit)].add(exchange.version)
    for (route, role, misfit), having in by_line.items():
        low, high = (f"{version[0]}.{version[1]}" for version in (min(having), max(having)))
        yield f"{route} {low if low == high else f'{low} to {high} ({len(having)} versions)'} {role}: {misfit}"


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.conformance", description=__doc__.splitlines()[0])
    parser.add_argument("--nova", required=True, help="the interpreter of an environment with nova")
    parser.add_argument("--only", default="", help="only routes with this text in them")
    parser.add_argument("--slowest", type=int, default=5, help="routes to name that took longest")
    options = parser.parse_args(arguments)
    nova = contract(options.nova)
    found: list[str] = []
    took: dict[Route, float] = {}
    with tempfile.TemporaryDirectory(prefix="conformance-") as folder, world(Path(folder)) as (region, deployment, things):
        served = region.routes()
        routes = {route for route in to_ask(deployment, served, nova) if options.only in str(route)}
        for route in sorted(routes):
            began = time.monotonic()
            found += exercise(deployment, things, route, nova[route])
            took[route] = round(time.monotonic() - began, 1)
        exchanges = deployment.exchanges
        bodies = (each for each in allowed_bodies(options.nova, str(CONTRACT)) if options.only in str(each[0]))
        narrower = narrower_places(bodies, deployment.description)
    stubs = {each.route for each in exchanges} - {each.route for each in exchanges if each.status != NOT_SERVED}
    routes -= stubs
    exchanges = [each for each in exchanges if each.route not in stubs]
    by_number = {each.number: each for each in exchanges}
    told = misfits(options.nova, exchanges)
    every = [(number, misfit) for number, misfit in told if not any(re.search(defect, misfit) for defect in SCHEMA_DEFECTS)]
    every += [(each.number, misfit) for each in exchanges for misfit in own_misfits(each, nova[each.route])]
    found += _grouped([(by_number[number], misfit) for number, misfit in sorted(every)])
    found += unexercised(routes, exchanges, nova)
    found += describe_places(narrower, complete=not options.only)
    _say(found, exchanges, routes, sorted(took.items(), key=lambda item: -item[1])[: options.slowest])
    return int(bool(found))


def _say(found: list[str], exchanges: list[Exchange], routes: set[Route], slow: list[Any]) -> None:
    for line in found:
        print(line)
    answered = sum(200 <= each.status < 300 for each in exchanges)
    tried = len({(each.route, each.version) for each in exchanges})
    print(f"{len(routes)} routes and actions, {tried} of their versions up to {MAXIMUM[0]}.{MAXIMUM[1]}: ", end="")
    print(f"{len(exchanges)} exchanges, {answered} of them successes; {len(found)} misfits")
    for route in sorted(routes & NOT_REACHED.keys()):
        print(f"  refused only: {route}: {NOT_REACHED[route]}")
    print("  slowest:", ", ".join(f"{route} {seconds} s" for route, seconds in slow))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
