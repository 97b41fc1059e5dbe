"""Run the stages of the check one after another in the environment of this interpreter, and say what each took.

``make test`` runs all of them in one virtual environment; each is also a tox environment of the same name. A failed stage does not
keep the later ones from running; the exit status says whether any failed. A server that a stage wants and cannot have is named at
the end, and fails the run unless that is accepted.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from ci import lock, side_environment, wheels
from ci.commands import run as run_patiently

# Stages start thousands of processes: without kept bytecode, each compiles all modules that it imports.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

ROOT = Path(__file__).resolve().parent.parent
BIN = Path(sys.executable).parent

PARALLEL = ("-n", os.environ.get("TEST_PROCESSES", "6"), "--dist", "worksteal")
"""Tests run in this many processes, which wait for servers and clocks most of the time; set TEST_PROCESSES=0 to debug one."""

PYTEST = (sys.executable, "-m", "pytest", "-q", "-rfE", *PARALLEL)
"""Tests that want a server which this run does without skip: they are counted, and the server is named at the end."""

RETRIED_FILES_LIMIT = 10
"""Failed tests of at most so many files are run a second time, by themselves; more of them are no accident of a busy machine.

Files count, not tests: a fixture that fails once, such as a region that does not start, fails all tests of its file.
"""

unsteady: list[str] = []
"""Tests that failed in company and passed by themselves, and runs of chaos that failed once: named last of all, to be mended."""

MIXED = ("--seed", "1", "--duration", "45", "--rate", "2", "--faults", "kill,stop,cut")
"""A run with two releases starts every process three times. The faults that need operators' commands are left to longer runs."""

ACCEPT = ("SC_TEST_ACCEPT_MISSING", "ACCEPT_MISSING")
"""Variables of which any but an empty one accepts that a server cannot be had; ``make`` passes the second on."""


def is_missing_accepted() -> bool:
    """Whether a run is good that does without what this machine cannot have."""
    return any(os.environ.get(variable) for variable in ACCEPT)


class StageFailed(Exception):
    """A command of a stage ended with an error; its output has said why."""


def run(*command: str | Path, cwd: Path = ROOT, environment: Mapping[str, str] | None = None) -> None:
    """Run one command, its output on ours, with ``environment`` added to our own. Raises ``StageFailed``."""
    print("  $", " ".join(str(part) for part in command), flush=True)
    if run_patiently([str(part) for part in command], cwd, {**os.environ, **(environment or {})}):
        tool = command[2] if command[1] == "-m" else command[0]
        raise StageFailed(Path(tool).name)


def run_aside(command: Sequence[str | Path]) -> int:
    """Run one command beside others, and print what it said when it has ended; its status."""
    words = [str(part) for part in command]
    with tempfile.TemporaryFile("w+") as output:
        status = run_patiently(words, ROOT, dict(os.environ), output)
        output.seek(0)
        print("  $", *words, f"\n{output.read()}", flush=True)
    return status


def run_all(*parts: Callable[[], None]) -> None:
    """Run every part even when an earlier one fails, so that one run shows all there is to mend. Raises ``StageFailed``."""
    failed = []
    for part in parts:
        try:
            part()
        except StageFailed as error:
            failed.append(str(error))
    if failed:
        raise StageFailed(", ".join(failed))


def run_tests(*arguments: str | Path, cwd: Path = ROOT, environment: Mapping[str, str] | None = None) -> None:
    """Run tests; the few that failed once more, one after the other and with nothing beside them. Raises ``StageFailed``.

    The tests share two cores with each other and wait for processes, brokers and clocks: one in thousands meets a pause longer than
    it allows for. A mistake of ours fails both times.
    """
    with tempfile.TemporaryDirectory(prefix="tests-") as cache:
        command = (*PYTEST, "-o", f"cache_dir={cache}")
        try:
            run(*command, *arguments, cwd=cwd, environment=environment)
        except StageFailed:
            failed = last_failed(Path(cache))
            if not 0 < len({name.partition("::")[0] for name in failed}) <= RETRIED_FILES_LIMIT:
                raise
            print(f"  once more, by themselves: {', '.join(failed)}", flush=True)
            options = [argument for argument in arguments if str(argument).startswith("--import-mode")]
            run(*command, "-n", "0", *options, *failed, cwd=cwd, environment=environment)
            unsteady.extend(failed)


def run_chaos(*arguments: str) -> None:
    """Load and faults on a region, and the strict verdict; where that is bad, all of it once more. Raises ``StageFailed``.

    A seed determines faults and load, and not what meets what. A mistake that shows once in many runs is named at the end.
    """
    command = (sys.executable, "-m", "chaos", *arguments)
    try:
        run(*command)
    except StageFailed:
        print("  once more", flush=True)
        run(*command)
        unsteady.append(" ".join(command[1:]))


def last_failed(cache: Path) -> list[str]:
    """The tests that failed in the run which kept its cache here; none where it did not come so far as to keep one."""
    try:
        failures: dict[str, bool] = json.loads((cache / "v" / "cache" / "lastfailed").read_text())
    except FileNotFoundError:
        return []
    return sorted(failures)


def check_style() -> None:
    run_all(
        partial(run, BIN / "ruff", "check", "."),
        partial(run, BIN / "ruff", "format", "--check", "."),
        partial(run, BIN / "lint-imports", "--no-logo"),
    )


def run_audit() -> None:
    run(sys.executable, ROOT / "ci" / "audit.py")


def check_types() -> None:
    run(sys.executable, "-m", "mypy")


def run_unit_tests() -> None:
    # They wait less than the others, so more processes than these cost more than they save.
    run_tests("-n", os.environ.get("TEST_PROCESSES", "4"), "tests/unit", "tests/packaging")


def run_property_tests() -> None:
    """The unit tests with all examples of their properties, of which the usual run tries a tenth."""
    run_tests("tests/unit", environment={"TEST_EXAMPLES": "all"})


ALONE = (
    *("test_crash_broker", "test_killed_demo", "test_notifications_killed", "test_process_killed"),
    *("test_region_health", "test_region_local", "test_region_stopped"),
)
"""Fault tests that start many processes and kill some: they want most of the machine."""


def run_functional_tests() -> None:
    """Rooms and crashes together; then the tests that kill processes, a file of them at a time in each process of tests."""
    alone = [f"tests/faults/{name}.py" for name in ALONE]
    together = ("tests/functional", "tests/faults", *(f"--ignore={name}" for name in alone))
    run_all(partial(run_tests, "--durations=15", *together), partial(run_tests, "--durations=15", "--dist", "loadfile", *alone))


def run_libvirt_tests() -> None:
    """Real guests without KVM, each test with a libvirtd of its own."""
    run_tests("-n", os.environ.get("TEST_PROCESSES", "3"), "--durations=10", "tests/libvirt")


def check_install() -> None:
    """Build the image that an operator builds; run every role in it, and in a machine with systemd; render the Helm chart."""
    from deploy import packages  # only here: some stages run where not all that this needs is installed
    from deploy.unavailable import Unavailable
    from tests.support.install_site import PROGRAMS

    if missing := [package for program, package in PROGRAMS.items() if shutil.which(program) is None]:
        try:
            packages.install_packages(*missing)
        except Unavailable as why:
            raise StageFailed(str(why)) from None
    helm = {side_environment.HELM.variable: str(_provide_tools(side_environment.HELM))}
    run_tests("-n", "0", "--durations=5", "tests/install", environment=helm)


def check_wheel() -> None:
    """Build the wheel from a copy of what belongs in it, install it into an environment of its own, and test that."""
    with tempfile.TemporaryDirectory(prefix="venv-") as name:
        try:
            python = wheels.install_into(Path(name))
        except wheels.NotBuilt as error:
            raise StageFailed(Path(str(error)).name) from error
        run(python, ROOT / "ci" / "stages.py", "installed")


def check_installed() -> None:
    """Test the package that is installed for this interpreter from a folder without our sources, which could hide what it lacks.

    Not with all unit tests again: with those that import every module, start the commands and load the plug-ins.
    """
    with tempfile.TemporaryDirectory(prefix="installed-") as name:
        place = Path(name)
        for item in ("tests", "etc", "docs"):
            shutil.copytree(ROOT / item, place / item, ignore=shutil.ignore_patterns("__pycache__"))
        for item in ("setup.cfg", "pyproject.toml", "requirements.lock", "requirements-libvirt.txt"):
            shutil.copy(ROOT / item, place / item)
        run_tests(
            "--import-mode=importlib",
            "tests/packaging",
            "tests/unit/cli",
            cwd=place,
            environment={"SUPERCONDUCTOR_CHECKOUT": str(ROOT)},
        )


def run_matrix() -> None:
    """All functional and fault tests on every server that they name, with all examples of their properties."""
    run_tests("tests/functional", "tests/faults", environment={"TEST_MATRIX": "all", "TEST_EXAMPLES": "all"})


def check_newest() -> None:
    """Unit and functional tests with the newest release of every dependency, also where ``setup.cfg`` does not allow it yet."""
    with tempfile.TemporaryDirectory(prefix="newest-") as name:
        place, source = Path(name), Path(name) / "source"
        shutil.copytree(ROOT, source, ignore=_not_copied)
        python = place / "venv" / "bin" / "python"
        run(sys.executable, "-m", "venv", place / "venv")
        run(python, "-m", "pip", "install", "--quiet", "--upgrade", "--only-binary", ":all:", *lock.required_names())
        run(python, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--editable", source)
        run(python, "-m", "pip", "list", "--format", "freeze")
        run(python, source / "ci" / "stages.py", "unit", "functional", cwd=source)


def _not_copied(folder: str, names: list[str]) -> set[str]:
    """What a copy of the checkout leaves out. Folders further down have programs that are called build."""
    ignored = shutil.ignore_patterns(".*", "*.egg-info", "__pycache__")(folder, names)
    return ignored | {"build", "dist"} if Path(folder) == ROOT else ignored


def nova_schemas() -> None:
    """Ask every route that Nova has too, in all versions that change it, and compare with the schemas of an installed Nova."""
    run(sys.executable, "-m", "tests.conformance", "--nova", _provide_tools(side_environment.NOVA))


def nova_filters() -> None:
    """Ask filters and weighers about random hosts and requests, and compare with those of an installed Nova."""
    run(sys.executable, "-m", "tests.conformance.scheduler", "--nova", _provide_tools(side_environment.NOVA))


def nova_beside() -> None:
    """Let an installed Nova and Placement make the databases of a cloud, and compare what is read of them beside Nova."""
    from tests.support.servers import MYSQL  # only here: some stages run where not all that this needs is installed

    if (url := os.environ.get(MYSQL, "")) in ("", "none"):
        print("  there is no MariaDB: left out")
        return
    run(sys.executable, "-m", "tests.conformance.beside", "--nova", _provide_tools(side_environment.NOVA_CLOUD), "--server", url)


def fuzz_api() -> None:
    """Send the API what schemathesis makes of its own description, which another tool has found valid."""
    run(sys.executable, "-m", "tests.conformance.fuzz", "--tools", _provide_tools(side_environment.SCHEMATHESIS).parent)


def _provide_tools(environment: side_environment.SideEnvironment) -> Path:
    try:
        return environment.provide_python()
    except side_environment.NotInstalled as error:
        raise StageFailed(str(error)) from error


def run_client_tests() -> None:
    """Real clients against an all-in-one and a region with a real Keystone; each command works on what those before it made."""
    from ci import clients as programs  # only here: some stages run where not all that this needs is installed
    from deploy.unavailable import Unavailable

    try:
        programs.provide_environments()
    except Unavailable as why:
        raise StageFailed(str(why)) from None
    # Not repeated where they fail: a test by itself would lack what those before it made.
    run(*PYTEST, "-n", "2", "--dist", "loadfile", "--durations=10", "tests/clients")


def bench_smoke() -> None:
    """Run every benchmark for a moment, three at a time: not for their figures, but to see that they still work."""
    paths = sorted(ROOT.glob("bench/[!_]*.py"))
    with ThreadPoolExecutor(3) as pool:
        runs = list(pool.map(run_aside, [(sys.executable, path, "--smoke") for path in paths]))
    if failed := [path.name for path, status in zip(paths, runs, strict=True) if status]:
        raise StageFailed(", ".join(failed))


def run_short_chaos() -> None:
    """Load and faults on a region of real processes for 40 seconds, and the strict verdict."""
    run_chaos("--seed", "1", "--duration", "40")


def chaos_libvirt() -> None:
    """Half a minute of that with real guests."""
    run_chaos("--driver", "libvirt", "--seed", "1", "--duration", "30")


def run_mixed_releases() -> None:
    """45 seconds with two releases: every process changes from the older one to this one, back, and to this one again."""
    older = older_release()
    command = ("git", "-C", str(ROOT), "cat-file", "-e", f"{older}^{{commit}}")
    if subprocess.run(command, check=False, capture_output=True).returncode:
        print("  this is no git checkout that has an older release: left out")
        return
    run_chaos("--mixed", older, *MIXED)


def older_release() -> str:
    """The newest release before this commit: its tag, or in a clone without tags its commit; empty if there is none."""
    git = ("git", "-C", str(ROOT))
    for question in (
        ("describe", "--tags", "--abbrev=0", "--match", "[0-9]*", "HEAD^"),
        ("log", "-1", "--format=%H", "--grep", "^release: [0-9]", "HEAD^"),
    ):
        if answer := subprocess.run((*git, *question), check=False, capture_output=True, text=True).stdout.strip():
            return answer
    return ""


CLUSTERS = (
    ("--database", "galera", "--faults", "database", "--seed", "7"),
    ("--database", "galera", "--writers", "2", "--faults", "database", "--seed", "3"),
    ("--database", "postgresql-replicated", "--faults", "database", "--seed", "9"),
    ("--broker", "rabbitmq-cluster", "--faults", "broker", "--seed", "2"),
)
"""Arguments of chaos, each with one kind of cluster, and a seed by which each node has its turn."""


def run_clusters() -> None:
    """Tests of databases and brokers with several nodes, and load and faults on each kind."""
    usual = ("--duration", "90", "--every", "18")
    run_all(
        partial(run_tests, "-n", "0", "--durations=10", "tests/clusters"),
        *(partial(run_chaos, *usual, *kind) for kind in CLUSTERS),
    )


def lacks_region(stage: Stage) -> bool:
    """Whether the stage runs a region, and this machine has not all that it needs."""
    # Only here: some stages run where not all that this needs is installed.
    from deploy import packages
    from deploy.servers import MariaDB, RabbitMQ
    from tests.support import libvirt_host

    lacks_guests = stage.guests and libvirt_host.why_missing()
    return bool(lacks_guests or not all(packages.find_program(server.PROGRAM, server.PLACES) for server in (RabbitMQ, MariaDB)))


def build_site() -> None:
    """The documentation as a site; a link that leads nowhere fails."""
    run(sys.executable, ROOT / "ci" / "site.py")


class Stage(NamedTuple):
    """One stage of the check. This list is the only one: tox and the jobs of CI read it.

    ``job``: the job of CI that runs it; empty: it runs only where it is named, as what it checks is built on request, is more of
    what the others do, or is part of another stage. ``servers``: it is given a RabbitMQ, a MariaDB and a PostgreSQL (see
    ``ci/servers.py``). ``guests``: it is given a hypervisor (see ``ci/hypervisor.py``).
    ``region``: it runs a region, and is left out where that cannot be had and this is accepted.
    """

    run: Callable[[], None]
    job: str = ""
    servers: bool = False
    guests: bool = False
    region: bool = False


STAGES = {
    "lint": Stage(check_style, job="quick"),
    "audit": Stage(run_audit, job="quick"),
    "typing": Stage(check_types, job="quick"),
    "site": Stage(build_site, job="quick"),
    "unit": Stage(run_unit_tests, job="quick"),
    "functional": Stage(run_functional_tests, job="functional", servers=True),
    "libvirt": Stage(run_libvirt_tests, job="guests", guests=True),
    "wheel": Stage(check_wheel, job="regions"),
    "bench-smoke": Stage(bench_smoke, job="regions", guests=True),
    "chaos": Stage(run_short_chaos, job="regions", region=True),
    "mixed": Stage(run_mixed_releases, job="regions", region=True),
    "chaos-libvirt": Stage(chaos_libvirt, job="guests", guests=True, region=True),
    "properties": Stage(run_property_tests),
    "matrix": Stage(run_matrix, servers=True),
    "newest": Stage(check_newest),
    "nova-schemas": Stage(nova_schemas),
    "nova-filters": Stage(nova_filters),
    "nova-beside": Stage(nova_beside, servers=True),
    "fuzz": Stage(fuzz_api),
    "clients": Stage(run_client_tests),
    "install": Stage(check_install, servers=True),
    "clusters": Stage(run_clusters),
    "installed": Stage(check_installed),
}
USUAL = tuple(name for name, stage in STAGES.items() if stage.job)
"""What runs where no stage is named."""


def list_jobs() -> dict[str, list[str]]:
    """The stages of each job of CI."""
    return {job: [name for name in USUAL if STAGES[name].job == job] for job in dict.fromkeys(STAGES[name].job for name in USUAL)}


def main(arguments: Sequence[str]) -> int:
    by_name = ", ".join(name for name in STAGES if name not in USUAL)
    parser = argparse.ArgumentParser(
        description=f"Run stages of the check: {', '.join(USUAL)}; only where they are named: {by_name}."
    )
    parser.add_argument("stages", nargs="*", metavar="stage", help="the first ones, if none is named")
    parser.add_argument("--jobs", action="store_true", help="run nothing, and print the stages of each job of CI as JSON")
    options = parser.parse_args(arguments)
    if options.jobs:
        print(json.dumps([" ".join(names) for names in list_jobs().values()]))
        return 0
    names = options.stages or list(USUAL)
    if unknown := [name for name in names if name not in STAGES]:
        parser.error(f"no stage is called {', '.join(unknown)}; there are {', '.join(STAGES)}")

    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # through everything that cleans up
    results: list[tuple[str, float, str]] = []
    missing: list[str] = []
    for name in names:
        print(f"== {name}", flush=True)
        began = time.monotonic()
        try:
            with given_servers(STAGES[name], missing):
                if STAGES[name].region and is_missing_accepted() and lacks_region(STAGES[name]):
                    print("  RabbitMQ, MariaDB or a hypervisor is not installed: left out")
                else:
                    STAGES[name].run()
        except StageFailed as error:
            result = f"FAILED ({error})"
        else:
            result = "ok"
        results.append((name, time.monotonic() - began, result))
        print(f"== {name}: {result}, {results[-1][1]:.1f} s\n", flush=True)

    if names != ["installed"]:
        for name, seconds, result in results:
            print(f"{name:<12} {seconds:7.1f} s  {result}")
        print(f"{'all':<12} {sum(seconds for _, seconds, _ in results):7.1f} s")
    if unsteady:
        print("\nFailed once, passed when repeated; to be mended:", *unsteady, sep="\n  ")
    accepted = say_missing(missing)
    return int(any(result != "ok" for _, _, result in results) or not accepted)


@contextlib.contextmanager
def given_servers(stage: Stage, missing: list[str]) -> Iterator[None]:
    """The servers a stage wants, in the environment of its commands; what cannot be had is added to ``missing``."""
    if stage.guests:
        _provide_hypervisor(missing)
    if not stage.servers:
        yield
        return
    # Only here: some stages run where not all that this needs is installed.
    from ci.servers import provided_servers, server_environment

    with provided_servers() as outcomes:
        for outcome in outcomes:
            print(" ", outcome, flush=True)
        missing += [str(outcome) for outcome in outcomes if not outcome.url]
        before = dict(os.environ)
        os.environ.update(server_environment(outcomes))
        try:
            yield
        finally:
            os.environ.clear()
            os.environ.update(before)


def _provide_hypervisor(missing: list[str]) -> None:
    from ci import hypervisor
    from deploy.unavailable import Unavailable

    try:
        hypervisor.provide_hypervisor()
    except Unavailable as why:
        missing.append(f"The hypervisor could not be had: {why}")
        print(" ", missing[-1], flush=True)


def say_missing(missing: Sequence[str]) -> bool:
    """Name the servers this run did without, last of all. Whether that is accepted."""
    if not missing:
        return True
    accepted = is_missing_accepted()
    print()
    for line in missing:
        print(line)
    if accepted:
        print("Accepted: the tests that need it were skipped.")
    else:
        print("The tests that need it were skipped, so this run fails; accept that with: make test ACCEPT_MISSING=1")
    return accepted


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
