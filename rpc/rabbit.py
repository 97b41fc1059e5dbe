"""What RabbitMQ needs beyond its driver: our defaults in the URL, and callers that a dead broker cannot hold.

Found by running it: with the broker down, the driver's first call waits for ever for its reply queue whatever time-out it was
given, and with the broker frozen a cast blocks for the socket's time-out, which is most of a minute. Hence ``Link``.
"""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Callable
from typing import Any, TypeVar

import amqp  # type: ignore[import-untyped]  # the library ships no types
import oslo_messaging as om
from amqp.exceptions import AMQPError  # type: ignore[import-untyped]  # likewise
from kombu.exceptions import KombuError

from objects import errors
from rpc.blocking import TEXT, Blocking
from rpc.drivers.library import amqpdriver, base
from rpc.errors import Unreachable
from service.worker_pool import PoolTimeout, WorkerPool

T = TypeVar("T")

LOG = logging.getLogger(__name__)

DEFAULTS = {
    "amqp_durable_queues": "true",  # a restarted broker keeps its queues and their messages
    "kombu_reconnect_delay": "0.2",  # seconds slept before each reconnect
    "rabbit_retry_interval": "1",  # seconds to the second attempt, then 1 more each, up to
    "rabbit_retry_backoff": "1",
    "rabbit_interval_max": "3",  # seconds: short, so that a broker that is back is found soon
    "heartbeat_timeout_threshold": "15",  # seconds until a silent broker counts as dead; also the socket's time-out
    "rabbit_qos_prefetch_count": "64",  # messages sent ahead to a listener; servers take fewer, see rpc.server
    "kombu_missing_consumer_retry_timeout": "15",  # seconds a server tries to send an answer whose caller is gone
}
"""Options of the driver that a URL without them gets. Any option of the driver may be given in the URL's query."""

SEND_RETRIES = 2
"""Attempts after the first to send one message. A pooled connection may have died unnoticed since its last use."""

LISTENER_PAUSE_S = 0.25
"""Seconds that a listener for notifications first waits for another one before it looks round; doubled with each look, up to 5.

The driver's own first pause is 1 ms: thirteen turns of a costly loop for each that comes alone. (For RPC: ``drivers/rabbit.py``.)
"""

PROBE_TIMEOUT_S = 1.0
LOGIN_TIMEOUT_S = 5.0
"""Seconds for a login to a broker that has answered the probe. RabbitMQ refuses a wrong login after one second."""
PROBE_INTERVAL_S = 3.0
SENDERS_LIMIT = 64
NOWHERE = "superconductor-check"
"""A queue that does not exist: the broker drops what is sent to it."""
_HEADER = b"AMQP\x00\x00\x09\x01"
UNDELIVERED = (om.MessageDeliveryFailure, om.MessageUndeliverable, base.TransportDriverError, KombuError, AMQPError, OSError)
"""Errors of a send if the broker is away, or refuses our login."""

amqpdriver.ACK_REQUEUE_EVERY_SECONDS_MIN = LISTENER_PAUSE_S  # there is no option for it


def fill_in(url: Any) -> None:
    """Add our defaults to the query of a parsed transport URL, where it does not say otherwise."""
    for option, value in DEFAULTS.items():
        url.query.setdefault(option, value)
    # Classic queues of answers and fan-outs stay on one node. While it is down nobody may declare them, and calls get no answer.
    url.query.setdefault("rabbit_transient_quorum_queue", url.query.get("rabbit_quorum_queue", "false"))


def check_options(url: Any) -> None:
    """Raise ValueError for an option of the driver that cannot be had here."""
    if url.query.get("kombu_compression"):
        raise ValueError("kombu_compression: bodies are not compressed, as a small one may hold gigabytes; leave it out")


class Link:
    """Sends through one transport, in bounded time.

    Each send runs in a guarded thread with a deadline. The broker is probed before the first send, after a send that failed or was
    late, and every ``PROBE_INTERVAL_S`` while a call waits for its answer. So senders learn within ``PROBE_INTERVAL_S`` that it is
    down, and from then on within ``PROBE_TIMEOUT_S`` for each of its hosts, and no thread gets stuck.
    """

    def __init__(self, url: Any, label: str, blocking: Blocking) -> None:
        """``blocking``: what the connections of this transport are told."""
        self._blocking = blocking
        self._hosts = [(host.hostname or "localhost", host.port or 5672) for host in url.hosts] or [("localhost", 5672)]
        self._logins = [(host.username or "guest", host.password or "guest") for host in url.hosts] or [("guest", "guest")]
        self._vhost = url.virtual_host or "/"
        self._tls = str(url.query.get("ssl", "")).lower() in ("true", "1", "yes", "on")
        self._label = label
        self._senders = WorkerPool("rabbit-send", SENDERS_LIMIT)
        self._trusted = False

    def run(self, send: Callable[[], T], timeout: float) -> T:
        """Return or raise what ``send`` does. Raises Unreachable if the broker is not there, or busy for ``timeout`` seconds."""
        if not self._trusted:
            self.probe_hosts()
        try:
            result = self._senders.run(send, timeout, patience=PROBE_INTERVAL_S, check=self._check_waiting)
        except Unreachable:
            self._trusted = False
            raise
        except PoolTimeout:
            self._trusted = False
            raise Unreachable(f"The bus {self._label} did not take a message within {timeout:g} s.") from None
        except (om.MessagingTimeout, om.RemoteError, errors.SuperconductorError):
            self._trusted = True  # a message was sent
            raise
        except UNDELIVERED as error:
            self._trusted = False
            raise Unreachable(f"The bus {self._label} cannot be reached: {error}.") from None
        self._trusted = True
        return result

    def probe_hosts(self) -> None:
        """Raise Unreachable unless one of the hosts speaks AMQP."""
        trouble = ""
        for address in self._hosts:
            try:
                _greet_broker(address, self._tls)
            except OSError as error:
                trouble = str(error)
            else:
                return
        raise Unreachable(f"The bus {self._label} cannot be reached: {trouble}.")

    def _check_waiting(self) -> None:
        """While a message waits: raise Unreachable if no host speaks AMQP, or the broker takes no messages."""
        self.probe_hosts()
        self.check_blocked()

    def check_blocked(self) -> None:
        """Raise Unreachable if a connection was told that the broker takes no messages, and that still holds."""
        if not self._blocking.is_told or (self._tls and not self._blocking.is_fresh):
            return
        if self._tls:
            raise self._blocked_error()
        self.check_login()
        self._blocking.note_unblocked()

    def _blocked_error(self) -> Unreachable:
        return Unreachable(f"The bus {self._label} is blocked: {TEXT}.")

    def check_login(self) -> None:
        """Raise Unreachable unless one of the hosts lets us in, to the virtual host, and takes a message.

        With TLS only that it is there is tried.
        """
        self.probe_hosts()
        if self._tls:
            return
        trouble = ""
        for (host, port), (user, password) in zip(self._hosts, self._logins, strict=True):
            times = {"connect_timeout": PROBE_TIMEOUT_S, "read_timeout": LOGIN_TIMEOUT_S, "write_timeout": LOGIN_TIMEOUT_S}
            place = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
            reasons_told: list[str] = []
            connection = amqp.Connection(
                place, userid=user, password=password, virtual_host=self._vhost, on_blocked=reasons_told.append, **times
            )
            try:
                connection.connect()
            except (AMQPError, OSError) as error:
                trouble = str(error)
                continue
            if _takes_messages(connection, reasons_told):
                connection.close()
                return
            connection.collect()  # a close would wait for the broker, which reads nothing
            if reasons_told:
                raise self._blocked_error()
            trouble = f"no message was confirmed within {LOGIN_TIMEOUT_S:g} s"
        raise Unreachable(f"The bus {self._label} refuses the login: {trouble}.")

    def is_alive(self) -> bool:
        """Whether one of the hosts speaks AMQP."""
        try:
            self.probe_hosts()
        except Unreachable as error:
            LOG.debug("%s", error)
            return False
        return True

    def close(self) -> None:
        self._senders.close()


def _takes_messages(connection: Any, reasons_told: list[str]) -> bool:
    """Publish a message that no queue takes. RabbitMQ tells only who publishes that it is blocked. ``reasons_told``: when it
    has.
    """
    end = time.monotonic() + LOGIN_TIMEOUT_S
    confirmed: list[object] = []
    try:
        channel = connection.channel()
        channel.confirm_select()
        channel.events["basic_ack"].add(lambda *arguments: confirmed.append(arguments))
        channel.basic_publish(amqp.Message(b"", expiration="0"), routing_key=NOWHERE)
        while not reasons_told and not confirmed and (remaining := end - time.monotonic()) > 0:
            connection.drain_events(timeout=remaining)
    except TimeoutError:
        return False
    except (AMQPError, OSError) as error:
        LOG.debug("A message for nobody was refused: %s", error)  # the user may send elsewhere only, and the broker has read it
    return not reasons_told


def _greet_broker(address: tuple[str, int], tls: bool) -> None:
    """Say hello to a broker and wait for its first word. A frozen one accepts connections (its kernel does) but says nothing."""
    with socket.create_connection(address, timeout=PROBE_TIMEOUT_S) as connection:
        if tls:
            return  # the greeting follows a TLS handshake, for which only the driver has the keys
        connection.sendall(_HEADER)
        if not connection.recv(1):
            raise ConnectionError(f"{address[0]}:{address[1]} closed the connection at once")
