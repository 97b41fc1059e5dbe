"""The private parts of oslo.messaging that the drivers are built from, py-amqp's framing, and why each is needed.

They may change in any release: ``setup.cfg`` pins the releases they were tested with, and ``tests/packaging/test_private_parts.py``
says what a newer one has changed. No other file imports them.
"""

from __future__ import annotations

from amqp import spec  # type: ignore[import-untyped]  # numbers of AMQP's methods and error codes
from amqp.method_framing import frame_handler as amqp_frame_handler  # type: ignore[import-untyped]  # takes apart what is no delivery (frames.py)
from amqp.serialization import decode_properties_basic  # type: ignore[import-untyped]  # of a delivery, with its errors kept apart from those of the socket
from oslo_messaging._drivers import (
    amqp as rpc_amqp,  # the pool's context of a connection, and ids of messages
)
from oslo_messaging._drivers import (
    amqpdriver,  # listeners, waiters and their messages, which ours derive from
    base,  # what oslo.messaging asks of a driver
    common,  # purposes of connections, and the exceptions of drivers
    impl_rabbit,  # the driver and the connection that ours derive from: reconnecting, heartbeats, declarations
    pool,  # the pool of connections, which ours replaces by one that looks at their age
)
from oslo_messaging._metrics import client as library_metrics  # set to nothing: it would open a socket
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
