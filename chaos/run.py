"""One run: a region under load and faults, then rest, then the verdict."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from chaos import mixed, plan, report
from chaos.faults import Faults
from chaos.guest_watch import GuestWatch
from chaos.judge import ChaosJudge, overfull_hosts
from chaos.load import Load
from chaos.mixed import Rolls
from chaos.place import Place, define_resources, open_place
from chaos.plan import Boot
from chaos.real_hosts import RealHosts
from chaos.schedule import REAL_ONLY, Kind, plan_faults
from chaos.stalls import StallWatch
from chaos.supervise import Supervisor
from chaos.verify import run_verify
from chaos.watch import Watch
from chaos.weather import Weather
from cli.standalone.demo.boots import group_uuids
from cli.standalone.demo.evidence import Evidence, at_rest, gather_evidence
from cli.standalone.demo.verdict import Case, Violation, format_violations
from deploy.local.shape import Shape
from deploy.local.start import Start
from objects.base import Object

SHAPE = Shape(agents=6)
REAL_SHAPE = Shape(agents=3)
"""With libvirt: this machine emulates the processors of all guests."""
MIXED_SHAPE = Shape(agents=3)
"""With two releases: every process is started again three times."""
START_TIMEOUT_S = 240.0
"""Seconds that the region's first start may take."""
RESTART_TIMEOUT_S = 120.0
"""Seconds until everything that was killed serves again."""
ANSWER_TIMEOUT_S = 120.0
"""Seconds until every request is answered after that."""
CONVERGENCE_TIMEOUT_S = 240.0
"""Seconds until all is at rest after that: a build's own deadline is 120, a dead host is noticed after 30."""
HEALTH_TIMEOUT_S = 60.0
"""Seconds until every process says that it is well after that: a sign of life may take twenty."""
POLL_INTERVAL_S = 3.0
"""Seconds between two looks at everything."""
PROGRESS_INTERVAL_S = 15.0

Say = Callable[[str], None]


class Settings(Object, frozen=True, kw_only=True):
    """``duration``: seconds of load. ``rate``: requests per second. ``every``: seconds from one fault to the next, on average.

    ``real``: hosts with libvirt. ``mixed``: the older release beside this one, a commit or a wheel (see
    ``chaos.mixed.install_release``). ``database``, ``broker``: as in ``Shape``.
    """

    duration: float = 120.0
    rate: float = 4.0
    seed: int = 1
    every: float = 4.0
    kinds: frozenset[Kind] = frozenset(Kind) - REAL_ONLY
    real: bool = False
    mixed: str | None = None
    database: str = SHAPE.database
    broker: str = SHAPE.broker

    @property
    def region_shape(self) -> Shape:
        usual = MIXED_SHAPE if self.mixed is not None else REAL_SHAPE if self.real else SHAPE
        return msgspec.structs.replace(usual, database=self.database, broker=self.broker)


def run(settings: Settings, path: Path, say: Say) -> bool:
    """Whether nothing was violated. Raises what keeps a region from starting; it is stopped in any case."""
    shape = settings.region_shape
    cells = [[host.name for host in shape.list_hosts() if host.cell == cell] for cell in shape.cell_names()]
    planned = plan.plan_boots(settings.seed, settings.rate, settings.duration, cells, real=settings.real)
    hosts = [host.name for host in shape.list_hosts()]
    real = RealHosts(path / "hosts", hosts, path / "capabilities") if settings.real else None
    old = None if settings.mixed is None else mixed.install_release(settings.mixed, path / "old")
    with open_place(path, shape, planned, say, real=real, old=old) as region_place:
        say(f"starting {len(shape.list_members())} commands in {path}")
        Start(region_place.region, START_TIMEOUT_S).run()
        if old is not None:
            mixed.bring_schema(region_place.region, say)
            define_resources(region_place.region, planned)
        return Run(settings, region_place, say, old).run(planned)


class Run:
    """A region that serves, from the first request to the verdict."""

    def __init__(self, settings: Settings, place: Place, say: Say, old: Path | None = None) -> None:
        region = place.region
        self._settings = settings
        self._region = region
        self._hosts = place.hosts
        self._room = place.room
        self._say = say
        self._supervisor = Supervisor(region)
        self._faults = Faults(region, place.proxies, self._supervisor, place.hosts, self._say_timed)
        self._watch = Watch(region.notes)
        self._guests = GuestWatch(place.hosts)
        self._stalls = StallWatch(region.folder.path)
        self._load = Load(region.notes.api_endpoints(), group_uuids(region.folder.database_url("api")), settings.seed)
        self._rolls = None if old is None else Rolls(region, self._faults, old, self._say_timed)
        self._began = time.monotonic()

    def run(self, planned: Sequence[Boot]) -> bool:
        settings = self._settings
        faults = plan_faults(settings.seed, settings.duration, settings.every, settings.kinds, settings.region_shape)
        self._say(f"{len(planned)} boots and {len(faults)} faults in {settings.duration:g} s, seed {settings.seed}")
        self._began = time.monotonic()
        self._supervisor.start()
        self._watch.start()
        self._guests.start()
        self._stalls.start()
        try:
            self._load.start(planned)
            self._faults.start(faults)
            if self._rolls is not None:
                self._rolls.start(mixed.plan_rolls(settings.seed, settings.duration, settings.region_shape))
            self._run_load(settings.duration)
            violations = self._settle_region()
            evidence, more = self._await_convergence()
            if self._rolls is not None:
                self._rolls.finalize_upgrade()
                violations += [Violation(message=text) for text in self._rolls.complaints]
            return self._judge_run(evidence, [*violations, *more, *self._watch.wait_settled(HEALTH_TIMEOUT_S)])
        finally:
            self._watch.stop()
            self._guests.stop()
            self._stalls.stop()
            self._load.stop()
            self._faults.stop()
            self._supervisor.stop()

    def _run_load(self, duration: float) -> None:
        while (remaining := self._began + duration - time.monotonic()) > 0:
            time.sleep(min(PROGRESS_INTERVAL_S, remaining))
            self._say_timed(f"{len(self._load.taken)} boots accepted, {len(self._faults.incidents)} faults are over")

    def _settle_region(self) -> list[Violation]:
        """The faults end, what is down is started, and all that was asked is answered."""
        self._say_timed("no more faults")
        self._faults.stop()
        self._region.backing.start(lambda _: None)
        if self._rolls is not None:
            self._rolls.finish_rolls()
        violations = [Violation(message=f"a fault could not be undone: {text}") for text in self._faults.failed]
        if not self._supervisor.wait_complete(RESTART_TIMEOUT_S):
            late = ", ".join(self._supervisor.missing_members())
            violations.append(Violation(message=f"{RESTART_TIMEOUT_S:g} s after the last fault these do not serve: {late}"))
        self._say_timed("everything serves again" if not violations else format_violations(violations))
        if unanswered := self._load.finish_requests(ANSWER_TIMEOUT_S):
            violations.append(
                Violation(message=f"{unanswered} requests were not answered {ANSWER_TIMEOUT_S:g} s after the last fault")
            )
        return violations

    def _await_convergence(self) -> tuple[Evidence, list[Violation]]:
        """Wait until nothing is on its way and nothing is wrong, or the time is up."""
        began = time.monotonic()
        evidence, violations = self._look_once()
        while (violations or not at_rest(evidence)) and time.monotonic() < began + CONVERGENCE_TIMEOUT_S:
            time.sleep(POLL_INTERVAL_S)
            evidence, violations = self._look_once()
        if not at_rest(evidence):
            violations.append(Violation(message=f"not everything is at rest {CONVERGENCE_TIMEOUT_S:g} s after the last answer"))
        passed = time.monotonic() - began
        self._say_timed(f"{'converged' if not violations else 'NOT converged'} {passed:.0f} s after the last answer")
        return evidence, violations

    def _look_once(self) -> tuple[Evidence, list[Violation]]:
        evidence = gather_evidence(self._region.folder, self._hosts)
        return evidence, self._judge_of(evidence).list_violations()

    def _judge_of(self, evidence: Evidence) -> ChaosJudge:
        case = Case(taken=tuple(self._load.taken), deleted=frozenset(self._load.deleted))
        return ChaosJudge(case, evidence, self._read_weather())

    def _read_weather(self) -> Weather:
        return Weather(self._settings.region_shape, self._faults.incidents, self._stalls.stalls)

    def _judge_run(self, evidence: Evidence, earlier: Sequence[Violation]) -> bool:
        """Say everything, and whether it is good."""
        violations = [
            *(Violation(message=f"an answer that must not come: {text}") for text in self._load.complaints),
            *(Violation(message=text) for text in (*self._supervisor.fell, *self._faults.commands.complaints)),
            *earlier,
            *self._guests.list_doubles(self._read_weather()),
            *self._guests.list_lost_disks(evidence),
            *overfull_hosts(self._hosts.guests_by_host(), self._room),
            *run_verify(self._region.folder),
        ]
        report.show_load(self._say, self._load)
        report.show_faults(self._say, self._faults, self._supervisor)
        report.show_stalls(self._say, self._stalls.stalls)
        if self._rolls is not None:
            report.show_rolls(self._say, self._rolls.done)
        report.show_health(self._say, self._watch.said)
        report.show_retries(self._say, self._region.notes)
        judge = self._judge_of(evidence)
        judge.list_violations()
        report.show_outcomes(self._say, judge.outcomes, evidence)
        report.show_logs(self._say, self._region.folder)
        if violations:
            self._say(f"\n{format_violations(violations)}\n\nVIOLATIONS: {len(violations)}, with seed {self._settings.seed}")
        else:
            self._say("No violation: every accepted server is one ACTIVE instance or one ERROR that is accounted for.")
        return not violations

    def _say_timed(self, text: str) -> None:
        self._say(f"{time.monotonic() - self._began:7.1f}  {text}")
