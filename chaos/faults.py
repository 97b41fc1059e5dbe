"""Carry the schedule of faults out, and undo every fault."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from chaos import links
from chaos.operator_commands import OperatorCommands
from chaos.proxy import Proxies
from chaos.real_hosts import RealHosts
from chaos.schedule import REAL_ONLY, Fault, Kind
from chaos.supervise import Supervisor
from chaos.weather import Incident, hypervisor_of
from cli.standalone.demo.hosts import HostFindings
from deploy import processes
from deploy.cluster import NODES, Cluster
from deploy.local.processes import is_master
from deploy.local.region import Region
from deploy.local.stop import TERM_TIMEOUT_S
from deploy.postgresql_replicated import PostgreSQLReplicated
from deploy.server import KILL_TIMEOUT_S
from deploy.servers import Server, Unavailable
from objects import errors

LEADER_TIMEOUT_S = 60.0
"""Seconds in which a killed member must have a master, and a worker, again: what counts as the fault's end."""


class Faults:
    """The schedule, from ``start`` to ``stop``; each fault has a thread. What is hit already is not hit a second time."""

    def __init__(
        self, region: Region, proxies: Proxies, supervisor: Supervisor, hosts: HostFindings, say: Callable[[str], None]
    ) -> None:
        self._region = region
        self._members = {member.name: member for member in region.notes.shape.list_members()}
        self._hosts = hosts
        self._proxies = proxies
        self._supervisor = supervisor
        self._say = say
        self._over = threading.Event()
        self.commands = OperatorCommands(region.folder, self._over, say)
        self._lock = threading.Lock()
        self._held_parts: set[str] = set()
        self._threads: list[threading.Thread] = []
        self.incidents: list[Incident] = []
        self.skipped = 0
        self.failed: list[str] = []
        """Faults that could not be undone, with the reason."""

    def start(self, faults: Sequence[Fault]) -> None:
        """Return at once; each fault comes at its time from now on."""
        self._spawn_thread(self._follow_schedule, faults, time.monotonic())

    def stop(self) -> None:
        """No fault begins any more, and what is under way is undone now; return when it is."""
        self._over.set()
        while threads := [thread for thread in self._threads if thread.is_alive()]:
            for thread in threads:
                thread.join()

    @contextlib.contextmanager
    def hold_member(self, member: str) -> Iterator[None]:
        """While inside, no fault hits this member. One that does is waited for."""
        while not self._hold_parts({member}):
            self._over.wait(0.2)
        try:
            yield
        finally:
            with self._lock:
                self._held_parts.discard(member)

    def replace_member(self, member: str, *, kills: bool) -> None:
        """End a member, and wait until it serves again from the environment that is its own now."""
        began = time.time()
        self._say(f"{member} {'is killed' if kills else 'ends'}")
        with self._supervisor.hold_member(member):
            if kills:
                _send_signal(self._pids_of(member), signal.SIGKILL)
            self._region.table.stop([self._members[member]], 0.0 if kills else TERM_TIMEOUT_S)
        processes.wait_until(lambda: self._supervisor.is_serving(member), LEADER_TIMEOUT_S)
        with self._lock:
            self.incidents.append(Incident(kind=Kind.KILL, target=f"roll {member}", began=began, ended=time.time()))

    def _spawn_thread(self, act: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=act, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _follow_schedule(self, faults: Sequence[Fault], began: float) -> None:
        for fault in faults:
            if self._over.wait(max(0.0, began + fault.at - time.monotonic())):
                return
            held = self._take_parts(fault)
            if held:
                self._spawn_thread(self._carry_out, fault, held)
            else:
                self.skipped += 1

    def _take_parts(self, fault: Fault) -> set[str]:
        """What of the region this fault has for itself; empty if another one has part of it."""
        if fault.kind in (Kind.BROKER, Kind.DATABASE):
            parts = {str(fault.kind)}
        elif fault.kind in (Kind.KILL, Kind.STOP):
            parts = {fault.target.rpartition(" ")[2]}
        elif fault.kind is Kind.HOST:  # one of a cell at a time: the others must have room for its servers
            cells = {host.name: host.cell for host in self._region.notes.shape.list_hosts()}
            parts = {fault.target, hypervisor_of(fault.target), f"host of {cells[fault.target]}"}
        elif fault.kind in REAL_ONLY:
            parts = {hypervisor_of(fault.target.rpartition(" ")[2])}
        elif fault.kind is Kind.DRAIN:  # whatever else happens to that host
            parts = {str(fault)}
        else:
            parts = set(links.links_hit(self._region.notes.shape, fault.target))
        return parts if self._hold_parts(parts) else set()

    def _hold_parts(self, parts: set[str]) -> bool:
        """Whether nobody else has any of it."""
        with self._lock:
            if parts & self._held_parts:
                return False
            self._held_parts |= parts
        return True

    def _carry_out(self, fault: Fault, held: set[str]) -> None:
        began = time.time()
        self._say(str(fault))
        try:
            self._inject_fault(fault)
        except (errors.SuperconductorError, Unavailable, OSError) as error:
            self.failed.append(f"{fault}: {error}")
        incident = Incident(kind=fault.kind, target=fault.target, began=began, ended=time.time())
        with self._lock:
            self.incidents.append(incident)
            self._held_parts -= held

    def _inject_fault(self, fault: Fault) -> None:
        how, _, name = fault.target.rpartition(" ")
        if fault.kind is Kind.KILL:
            self._kill_member(how, name, fault.seconds)
        elif fault.kind is Kind.STOP:
            self._stop(name, fault.seconds)
        elif fault.kind is Kind.HOST:
            self._cut_power(name, fault.seconds)
        elif isinstance(self._hosts, RealHosts) and fault.kind in REAL_ONLY:
            hit = self._hosts.hit_daemon if fault.kind is Kind.LIBVIRT else self._hosts.hit_guest
            hit(name, how, lambda: self._over.wait(fault.seconds))
        elif fault.kind is Kind.DRAIN:
            self._drain_host(name, fault.seconds)
        elif fault.kind in (Kind.BROKER, Kind.DATABASE):
            broker, database = self._region.backing.servers
            server = broker if fault.kind is Kind.BROKER else database
            if isinstance(server, Server):
                self._restart_server(server, fault.target, fault.seconds)
            else:
                self._hit_nodes(server, fault.target, fault.seconds)
        else:
            self._hit_links(fault)

    def _kill_member(self, how: str, name: str, seconds: float) -> None:
        if how == "worker":
            _send_signal((pid for pid in self._pids_of(name) if not is_master(pid)), signal.SIGKILL)
        else:
            with self._supervisor.hold_member(name):
                _send_signal((pid for pid in self._pids_of(name) if how == "all" or is_master(pid)), signal.SIGKILL)
                self._over.wait(seconds)
        processes.wait_until(lambda: any(not is_master(pid) for pid in self._pids_of(name)), LEADER_TIMEOUT_S)

    def _stop(self, name: str, seconds: float) -> None:
        stopped = self._pids_of(name)
        _send_signal(stopped, signal.SIGSTOP)
        try:
            self._over.wait(seconds)
        finally:
            _send_signal(set(stopped) & set(self._pids_of(name)), signal.SIGCONT)

    def _cut_power(self, name: str, seconds: float) -> None:
        """What the operator says is true: no guest of the host runs until its agent has come back."""
        with self._supervisor.hold_member(name):
            for pid in self._pids_of(name):
                processes.end_process(pid, signal.SIGKILL, KILL_TIMEOUT_S)
            self._hosts.cut_power(name)
            try:
                self.commands.attempt_command(seconds, "host", "evacuate", name, "--dead")
            finally:
                self._hosts.restore_power(name)
                self.commands.repeat_until_done("host", "set", name, "--up")
        processes.wait_until(lambda: any(not is_master(pid) for pid in self._pids_of(name)), LEADER_TIMEOUT_S)

    def _drain_host(self, name: str, seconds: float) -> None:
        try:
            self.commands.attempt_command(seconds, "host", "drain", name)
        finally:
            self.commands.repeat_until_done("host", "enable", name)

    def _restart_server(self, server: Server, how: str, seconds: float) -> None:
        if how == "kill":
            processes.end_process(server.pid, signal.SIGKILL, KILL_TIMEOUT_S)
        else:
            server.stop()
        self._over.wait(seconds)
        server.start()

    def _hit_nodes(self, cluster: Cluster, target: str, seconds: float) -> None:
        how, _, name = target.partition(" ")
        if how == "freeze":
            frozen = (1, 2) if name == "majority" else (int(name[-1]),)
            for number in frozen:
                cluster.freeze_node(number)
            try:
                self._over.wait(seconds)
            finally:
                for number in frozen:
                    cluster.thaw_node(number)
            return
        number = self._end_node(cluster, how, name)
        self._over.wait(seconds)
        cluster.revive_node(number)

    def _end_node(self, cluster: Cluster, how: str, name: str) -> int:
        if not isinstance(cluster, PostgreSQLReplicated):
            number = int(name[-1])
            cluster.end_node(number, kill=how == "kill")
        elif how == "fail-over":
            number = cluster.fail_over()
        else:
            number = next(n for n in range(NODES) if n != cluster.primary_number())
            cluster.end_node(number, kill=True)
        return number

    def _hit_links(self, fault: Fault) -> None:
        names = links.links_hit(self._region.notes.shape, fault.target)
        acts: Mapping[Kind, Callable[[Iterable[str]], None]] = {
            Kind.CUT: self._proxies.cut_links,
            Kind.FREEZE: self._proxies.freeze_links,
            Kind.MUTE: self._proxies.mute_links,
        }
        try:
            acts[fault.kind](names)
            self._over.wait(fault.seconds)
        finally:
            self._proxies.restore_links(names)

    def _pids_of(self, name: str) -> Sequence[int]:
        return self._region.table.pids_by_member().get(name, ())


def _send_signal(pids: Iterable[int], number: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
