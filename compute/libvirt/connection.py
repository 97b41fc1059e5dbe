"""The connection to the host's libvirt: opened in a thread of its own, watched, and opened again when it is lost.

``libvirt.open`` has no timeout: it hangs as long as libvirtd does. So only the keeper thread and threads that others give up wait
for it. A connection that is open fails by itself, by its keep-alive messages. A guest's QEMU may hang too, and with it every call
that asks it something, so such calls go through ``ask_guest``.

The keeper's connection is for events, and tells whether libvirt can be used. Each thread that calls libvirt has one of its own:
- A client of libvirt before 10.3 crashes if its keep-alive fails during calls of several threads (CVE-2024-4418).
- libvirtd carries out five calls of one connection at once (``max_client_requests``). Then it does not read the next one, nor
  keep-alive messages, so five guests that hang would look like a libvirt that hangs.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from compute.libvirt import binding
from objects import errors
from service.worker_pool import PoolTimeout, WorkerPool

LOG = logging.getLogger(__name__)

libvirt = binding.load_libvirt()

T = TypeVar("T")

REOPEN_INTERVAL_S = 1.0
"""Seconds between two tries to open the connection."""

ALIVE_INTERVAL_S = 1.0
"""Seconds between two looks whether the connection is alive; usually libvirt tells at once."""

KEEP_ALIVE_S, KEEP_ALIVE_COUNT = 5, 3
"""A libvirtd that answers none of this many messages, sent at this interval, is down."""

GUEST_CALL_LIMIT_S = 45.0
"""Seconds that a call may take that asks QEMU something. libvirt itself waits 30 s for the end of another call on the guest."""

GUEST_CALL_THREADS = 64
"""Calls of that kind at once."""

_LOST_DOMAINS = (libvirt.VIR_FROM_RPC, libvirt.VIR_FROM_REMOTE)
_LOST_CODES = (
    *(libvirt.VIR_ERR_SYSTEM_ERROR, libvirt.VIR_ERR_INTERNAL_ERROR, libvirt.VIR_ERR_RPC, libvirt.VIR_ERR_NO_CONNECT),
    libvirt.VIR_ERR_INVALID_CONN,
)

_events = threading.Lock()
_events_run = False


def _run_events() -> None:
    """Start libvirt's event loop in a thread, once for the process and before the first connection."""
    global _events_run
    with _events:
        if _events_run:
            return
        libvirt.virEventRegisterDefaultImpl()
        threading.Thread(target=_run_event_loop, name="libvirt-events", daemon=True).start()
        _events_run = True


def _run_event_loop() -> None:
    while True:
        try:
            libvirt.virEventRunDefaultImpl()
        except libvirt.libvirtError as error:
            LOG.warning("The event loop of libvirt: %s", text_of(error))
            time.sleep(ALIVE_INTERVAL_S)


def text_of(error: Any) -> str:
    """What libvirt said, in one line."""
    return " ".join(str(error.get_error_message() or error).split())


def code_of(error: Any) -> int:
    """The code of a libvirtError."""
    return int(error.get_error_code() or 0)


class _Own(threading.local):
    """The connection of each thread."""

    connection: Any = None


class LibvirtConnection:
    """The connections to the libvirt at ``uri``. Thread-safe.

    ``open_connection``: how often the keeper has opened its connection. ``changed`` may be set to a function, which is called from
    libvirt's thread for every event in the life of a domain, and when the connection is open again.
    """

    def __init__(self, uri: str, open_timeout: float) -> None:
        """``open_timeout``: seconds after which a libvirt that does not answer is called down."""
        self.uri = uri
        self.changed: Callable[[], None] = lambda: None
        self.opened = 0
        self._timeout = open_timeout
        self._state = threading.Condition()
        self._current: Any = None  # the keeper's
        self._own = _Own()
        self._failure: str | None = None
        self._opening_since = time.monotonic()
        self._closing = threading.Event()
        self._lost = threading.Event()
        self._asking = WorkerPool("libvirt-guests", GUEST_CALL_THREADS, spare=GUEST_CALL_THREADS)
        _run_events()
        self._keeper = threading.Thread(target=self._keep_open, name="libvirt-connection", daemon=True)
        self._keeper.start()

    # -- use ---------------------------------------------------------------------------------------------------------------------

    def find_trouble(self) -> str | None:
        """Why there is no connection now; None if there is one. Never waits."""
        if self._current is not None:
            return None
        if self._failure is not None:
            return self._failure
        if time.monotonic() - self._opening_since > self._timeout:
            return f"libvirt at {self.uri} does not answer."
        return f"libvirt at {self.uri} has not answered yet."

    def get(self) -> Any:
        """The open connection of this thread. While the first one is being opened, waits for that.

        Raises ``errors.HypervisorDown``, untouched.
        """
        with self._state:
            remaining = self._opening_since + self._timeout - time.monotonic()
            self._state.wait_for(lambda: self._current is not None or self._failure is not None, max(0.0, remaining))
            if self._current is None:
                raise errors.HypervisorDown(self.find_trouble() or "", untouched=True)
            own_connection = self._own
        if own_connection.connection is None or not _is_alive(own_connection.connection):
            own_connection.connection = None  # libvirt closes it when nothing uses it any more
            own_connection.connection = self._open_own()
        return own_connection.connection

    def _open_own(self) -> Any:
        def open_connection() -> Any:
            connection = libvirt.open(self.uri)
            connection.setKeepAlive(KEEP_ALIVE_S, KEEP_ALIVE_COUNT)
            return connection

        try:
            return self._asking.run(open_connection, self._timeout, patience=1.0, check=self._check_connected)
        except PoolTimeout:
            raise errors.HypervisorDown(f"libvirt at {self.uri} does not answer.", untouched=True) from None
        except errors.HypervisorDown as error:
            raise errors.HypervisorDown(str(error), untouched=True) from None
        except libvirt.libvirtError as error:
            raise errors.HypervisorDown(f"libvirt at {self.uri} cannot be used: {text_of(error)}", untouched=True) from error

    @contextmanager
    def errors_as(self, kind: type[errors.SuperconductorError], doing: str) -> Iterator[None]:
        """Raise libvirt's errors as ``kind``, or as ``errors.HypervisorDown`` if the connection is gone."""
        try:
            yield
        except libvirt.libvirtError as error:
            raise self.translate_error(error, kind, doing) from error

    def translate_error(self, error: Any, kind: type[errors.SuperconductorError], doing: str) -> errors.SuperconductorError:
        """The error of ours that stands for an error of libvirt."""
        if self._is_lost(error):
            return errors.HypervisorDown(f"libvirt at {self.uri}: {text_of(error)}")
        return kind(f"libvirt could not {doing}: {text_of(error)}")

    def ask_guest(self, function: Callable[[], T], doing: str, limit: float = GUEST_CALL_LIMIT_S) -> T:
        """Return or raise what ``function`` does, which asks the QEMU of a guest, within ``limit`` seconds.

        Raises ``errors.TaskFailed`` if QEMU does not answer: the call may still take effect.
        """
        try:
            return self._asking.run(function, limit, patience=1.0, check=self._check_connected)
        except PoolTimeout:
            raise errors.TaskFailed(f"libvirt could not {doing}: QEMU has not answered for {limit:g} s.") from None

    def close(self) -> None:
        """Close the connection. Guests keep running."""
        self._closing.set()
        self._lost.set()
        with self._state:
            current, self._current = self._current, None
            self._own = _Own()
            self._failure = f"The connection to libvirt at {self.uri} was closed."
            self._state.notify_all()
        self._asking.stop()
        _close(current)
        self._keeper.join(ALIVE_INTERVAL_S)  # it may hang in libvirt.open, and is then left behind

    # -- keeping it open -----------------------------------------------------------------------------------------------------------

    def _check_connected(self) -> None:
        if (trouble := self.find_trouble()) is not None:
            raise errors.HypervisorDown(trouble)

    def _is_lost(self, error: Any) -> bool:
        current = self._current
        is_rpc = error.get_error_domain() in _LOST_DOMAINS and code_of(error) in _LOST_CODES
        return current is None or is_rpc or not _is_alive(current)

    def _keep_open(self) -> None:
        while not self._closing.is_set():
            opened = self._open()
            if opened is None:
                self._closing.wait(REOPEN_INTERVAL_S)
                continue
            while self._is_usable(opened):
                self._lost.wait(ALIVE_INTERVAL_S)
            self._let_go(opened)

    def _open(self) -> Any:
        """The opened connection, once it can be used; None if that failed."""
        self._opening_since = time.monotonic()
        self._lost.clear()
        opened = None
        try:
            opened = libvirt.open(self.uri)
            opened.registerCloseCallback(lambda *_: self._lost.set(), None)
            opened.setKeepAlive(KEEP_ALIVE_S, KEEP_ALIVE_COUNT)
            opened.domainEventRegisterAny(None, libvirt.VIR_DOMAIN_EVENT_ID_LIFECYCLE, lambda *_: self._report_change(), None)
        except libvirt.libvirtError as error:
            with self._state:
                self._failure = f"libvirt at {self.uri} cannot be used: {text_of(error)}"
                self._state.notify_all()
            _close(opened)
            return None
        with self._state:
            if self._closing.is_set():
                _close(opened)
                return None
            self._current, self._failure = opened, None
            self.opened += 1
            self._state.notify_all()
        self._report_change()
        return opened

    def _is_usable(self, opened: Any) -> bool:
        return not self._closing.is_set() and not self._lost.is_set() and _is_alive(opened)

    def _let_go(self, lost: Any) -> None:
        with self._state:
            if self._current is lost:
                self._current, self._own = None, _Own()
                self._failure = f"libvirt at {self.uri} has closed the connection or does not answer."
        _close(lost)

    def _report_change(self) -> None:
        try:
            self.changed()
        except Exception:  # libvirt's thread must go on
            LOG.exception("An event of libvirt could not be handled")


def _is_alive(connection: Any) -> bool:
    try:
        return bool(connection.isAlive())
    except libvirt.libvirtError:
        return False


def _close(connection: Any) -> None:
    if connection is None:
        return
    try:
        connection.close()
    except libvirt.libvirtError as error:
        LOG.debug("Closing a connection: %s", text_of(error))
