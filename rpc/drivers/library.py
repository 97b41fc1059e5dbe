"""The private parts of oslo.messaging that the drivers are built from, py-amqp's framing, and why each is needed.

They may change in any release: ``setup.cfg`` pins the releases they were tested with, and ``tests/packaging/test_private_parts.py``
says what a newer one has changed. No other file imports them.
"""

from __future__ import annotations

from amqp import spec  # type: ignore[import-untyped]  # numbers of AMQP's methods and error codes
from amqp.method_framing import frame_handler as amqp_frame_handler  # type: ignore[import-untyped]  # parses frames other than deliveries (frames.py)
from amqp.serialization import decode_properties_basic  # type: ignore[import-untyped]  # parses the properties of a delivery, apart from errors of the socket
from oslo_messaging._drivers import (
    amqp as rpc_amqp,  # a pooled connection's context, and ids of messages
)
from oslo_messaging._drivers import (
    amqpdriver,  # listeners, waiters and their messages, which ours derive from
    base,  # base classes of a driver
    common,  # purposes of connections, and the exceptions of drivers
    impl_rabbit,  # the driver and the connection that ours derive from: reconnecting, heartbeats, declarations
    pool,  # the connection pool; ours also checks the age of connections
)
from oslo_messaging._metrics import client as library_metrics  # disabled: it would open a socket
from oslo_messaging._tracing import client as library_tracing  # likewise

__all__ = [
    "amqp_frame_handler",
    "amqpdriver",
    "base",
    "common",
    "decode_properties_basic",
    "impl_rabbit",
    "library_metrics",
    "library_tracing",
    "pool",
    "rpc_amqp",
    "spec",
]
