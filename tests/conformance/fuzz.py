"""Send what schemathesis makes of the API's own description: no answer is a server error, and each has a documented status.

    python -m tests.conformance.fuzz --tools .venv-fuzz/bin [--seed N] [--examples N]

Each microversion is tried twice: with made-up identifiers, and with those of servers that exist. 501 is the answer to operations of
the Compute API that are not served.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import requests

from api.http.microversions import MAXIMUM, MINIMUM, Version, format_version
from api.main import ApiService
from tests.support.api import SMALL, Front
from tests.support.deciding import scheduler_of
from tests.support.keys import ED25519

DESCRIPTION = "/v2.1/superconductor/openapi.json"
CHECKS = ("not_a_server_error", "status_code_conformance")
EXPECTED = ["2xx", "3xx", "4xx", 501]
MEMBER = {"X-Project-Id": "admin", "X-Roles": "member"}
"""A member of the project that has the servers."""


@contextmanager
def served(place: Path) -> Iterator[tuple[str, dict[str, str]]]:
    """The API's address, and identifiers of what exists."""
    front = Front(place)
    service = ApiService(front.settings.__replace__(port=0), front.registry, front.database, front.bus)
    try:
        server = front.boot("web", metadata={"role": "web"})
        front.bring_up(server)
        pair = {"keypair": {"name": "mine", "public_key": ED25519}}
        front.client.simulate_post("/v2.1/os-keypairs", json=pair)
        service.start()
        known = {"server_id": server, "flavor_id": SMALL.flavor_id, "project_id": "admin", "key": "role", "name": "mine"}
        with scheduler_of(front):
            yield f"http://127.0.0.1:{service.listen_port}", known
    finally:
        service.stop()
        front.close()


def configuration(known: Mapping[str, str]) -> str:
    """A configuration of schemathesis in TOML."""
    parameters = "".join(f"{json.dumps(f'path.{name}')} = {json.dumps(value)}\n" for name, value in known.items())
    return f"[checks.not_a_server_error]\nexpected-statuses = {json.dumps(EXPECTED)}\n\n[parameters]\n{parameters}"


def _invalid(tools: Path, address: str, version: Version, folder: Path) -> list[str]:
    """Whether the description of this version does not fit the schema of OpenAPI 3.1."""
    headers = {"OpenStack-API-Version": f"compute {format_version(version)}"}
    file = folder / "openapi.json"
    file.write_bytes(requests.get(address, headers=headers, timeout=60).content)
    done = subprocess.run([tools / "openapi-spec-validator", "--schema", "3.1", file], check=False)
    return [f"the description of {format_version(version)}"] if done.returncode else []


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.conformance.fuzz", description=__doc__.splitlines()[0])
    parser.add_argument("--tools", type=Path, required=True, help="the folder of schemathesis and openapi-spec-validator")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--examples", type=int, default=20, help="requests of each kind to each operation")
    options = parser.parse_args(arguments)
    failed = []
    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder, served(Path(folder) / "state") as (address, known):
        for version in (MINIMUM, MAXIMUM):
            failed += _invalid(options.tools, f"{address}{DESCRIPTION}", version, Path(folder))
            for what, values, headers in (("made-up", {}, {}), ("existing", known, {}), ("a member's", known, MEMBER)):
                (Path(folder) / "schemathesis.toml").write_text(configuration(values))
                headers = {**headers, "OpenStack-API-Version": f"compute {format_version(version)}"}
                command = [
                    *(
                        options.tools / "schemathesis",
                        "--config-file",
                        f"{folder}/schemathesis.toml",
                        "run",
                        f"{address}{DESCRIPTION}",
                    ),
                    *(word for name, value in headers.items() for word in ("--header", f"{name}: {value}")),
                    *("--checks", ",".join(CHECKS), "--phases", "coverage,fuzzing", "--seed", str(options.seed), "--no-color"),
                    *("--max-examples", str(options.examples), "--generation-database", "none", "--warnings", "off"),
                ]
                print(f"== {format_version(version)}, {what} identifiers", flush=True)
                if subprocess.run(command, check=False, cwd=folder).returncode:
                    failed.append(f"{format_version(version)}, {what}")
    if failed:
        print("failed:", "; ".join(failed))
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
