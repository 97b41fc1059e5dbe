"""Start a region, or what of it does not run, and return when a boot would work."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from cli.standalone.discovery import HostDiscovery
from db.audit import snapshot
from db.sql.engine import Database
from deploy.local import templates
from deploy.local.backing import is_running
from deploy.local.make import make_region
from deploy.local.processes import Started
from deploy.local.region import Region
from deploy.local.shape import Member
from deploy.local.stop import TERM_TIMEOUT_S, stop
from objects import errors

START_TIMEOUT_S = 120.0
"""Seconds that the processes may take until they serve and all hosts are known."""
POLL_INTERVAL_S = 0.2
POLL_PAUSE_RATIO = 4.0
"""A pause between two looks is at least so many times as long as a look, which takes a second where there are many cells."""


class Failed(errors.SuperconductorError):
    """A process that ended at its start, or was not ready in time. The text has more lines than one: the last of its log."""


class Start:
    """One start of a region, or of processes of it."""

    def __init__(self, region: Region, patience: float = START_TIMEOUT_S) -> None:
        self._region = region
        self._folder = region.folder
        self._table = region.table
        self._patience = patience

    def run(self) -> None:
        """Make the region if it is new, start all of it that does not run, and wait.

        Where that fails, or is interrupted, the region is stopped and the error goes on.
        """
        try:
            if not self._region.notes.made:
                make_region(self._region)
            elif self._is_running():
                self._region.say(f"The region in {self._folder.path} runs already.")
                return
            else:
                self._folder.make_folders()
                self._region.backing.start(self._region.say)
            self._start()
        except BaseException:
            stop(self._region)
            raise

    def restart_members(self, names: Sequence[str]) -> None:
        """Stop and start single processes, one after the other; wait for each. Raises errors.NotFound for an unknown name."""
        members = {member.name: member for member in self._region.notes.shape.list_members()}
        if unknown := [name for name in names if name not in members]:
            raise errors.NotFound(f"No process of the region is called {', '.join(unknown)}: there are {', '.join(members)}.")
        for name in names:
            killed = self._table.stop([members[name]], TERM_TIMEOUT_S)
            self._region.say(f"{name} was {'killed' if killed else 'stopped'} and is started")
            self._wait_ready([self._table.start(members[name])], lambda: True)

    def _is_running(self) -> bool:
        return not self._missing_members() and all(is_running(server) for server in self._region.backing.servers)

    def _missing_members(self) -> list[Member]:
        """The members without a master."""
        led = self._table.members_with_master()
        return [member for member in self._region.notes.shape.list_members() if member.name not in led]

    def _start(self) -> None:
        shape, commands = self._region.notes.shape, self._region.commands
        templates.write_others(self._folder, self._region.notes)
        commands.run("db", "sync")
        missing = self._missing_members()
        self._table.stop(missing, TERM_TIMEOUT_S)  # workers whose master is gone
        self._region.say(f"starting {len(missing)} of {len(shape.list_members())} processes")
        hosts = {host.name for host in shape.list_hosts()}
        newcomers = HostDiscovery(self._folder.database_url("api"), hosts, commands)
        database = Database(self._folder.database_url("api"), name="api")
        try:
            forked = [member for member in missing if member.forks]
            # One command after the other: while hundreds of processes start, those who ask them would only time out.
            for member in forked:
                self._wait_ready([self._table.start(member)], lambda: True)
            self._wait_ready(
                [self._table.start(member) for member in missing if not member.forks],
                lambda: not newcomers.discover_hosts() and hosts <= {node.host for node in database.read(snapshot.list_usage)},
            )
        finally:
            newcomers.close()
            database.dispose_connections()

    def _wait_ready(self, started: Sequence[Started], known: Callable[[], bool]) -> None:
        """Until all of ``started`` have said that they are ready, and ``known`` holds. Raises Failed."""
        give_up = time.monotonic() + self._patience
        waiting = list(started)
        while True:
            for one in started:
                if one.exit_status is not None:
                    text = f"{one.member.name} ended with status {one.exit_status}. The end of {self._folder.log_of(one.member)}:"
                    raise Failed(f"{text}\n{one.last_words()}")
            waiting = [one for one in waiting if not one.is_ready]
            # What is known of hosts is asked once all are ready: it costs those a part of their time who still have to start.
            asked_at = time.monotonic()
            if not waiting and known():
                return
            if time.monotonic() > give_up:
                self._give_up(waiting)
            time.sleep(max(POLL_INTERVAL_S, POLL_PAUSE_RATIO * (time.monotonic() - asked_at)))

    def _give_up(self, waiting: Sequence[Started]) -> None:
        if not waiting:
            raise Failed(f"After {self._patience:g} s not every host is known to the API level; see {self._folder.log}.")
        names = ", ".join(one.member.name for one in waiting)
        first = waiting[0]
        text = f"After {self._patience:g} s these are not ready: {names}. The end of {self._folder.log_of(first.member)}:"
        raise Failed(f"{text}\n{first.last_words()}")
