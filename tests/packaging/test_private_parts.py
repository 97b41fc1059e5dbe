"""The private parts of libraries that we build on are as we know them, in the releases that are allowed.

Each stands behind one file of ours. Where a test here fails, look into the library's new release, mend that file, raise the pin.
"""

from __future__ import annotations

import ast
import configparser
import importlib
import inspect
import re
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
ROOMS = (
    "api",
    "beside_nova",
    "cells",
    "cli",
    "compute",
    "conductor",
    "db",
    "images",
    "lab",
    "objects",
    "rpc",
    "scheduler",
    "service",
)


class Part(NamedTuple):
    """What one file of ours (``behind``) needs of a library: ``module``, a dotted ``name`` in it, the parameters it takes if it is
    called or overridden, and attributes that its code sets or reads on the instance."""

    library: str
    behind: str
    module: str
    name: str
    takes: tuple[str, ...] | None = None
    has: tuple[str, ...] = ()


DRIVERS = "oslo_messaging._drivers"
PARTS = (
    Part("oslo.messaging", "rpc/drivers/rabbit.py", f"{DRIVERS}.amqpdriver", "ReplyWaiter", has=("_thread_exit_event", "waiters")),
    Part("oslo.messaging", "rpc/drivers/rabbit.py", f"{DRIVERS}.amqpdriver", "ReplyWaiter.poll", ()),
    Part("oslo.messaging", "rpc/drivers/rabbit.py", f"{DRIVERS}.amqpdriver", "ReplyWaiters.get", ("msg_id", "timeout")),
    Part(
        "oslo.messaging",
        "rpc/drivers/rabbit.py",
        f"{DRIVERS}.amqpdriver",
        "AMQPIncomingMessage",
        (
            *("listener", "ctxt", "message", "unique_id", "msg_id", "reply_q", "client_timeout"),
            *("obsolete_reply_queues", "message_operations_handler"),
        ),
    ),
    Part(
        "oslo.messaging",
        "rpc/drivers/rabbit.py",
        f"{DRIVERS}.impl_rabbit",
        "RabbitDriver",
        has=("_connection_pool", "_reply_q_lock", "_get_connection", "_default_exchange", "_url", "_allowed_remote_exmods"),
    ),
    Part("oslo.messaging", "rpc/drivers/rabbit.py", f"{DRIVERS}.impl_rabbit", "RabbitDriver._get_reply_queue_name", ()),
    Part("oslo.messaging", "rpc/drivers/embedded.py", f"{DRIVERS}.base", "BaseDriver", has=("_default_exchange",)),
    Part("oslo.messaging", "rpc/drivers/embedded.py", f"{DRIVERS}.base", "RpcIncomingMessage", ("ctxt", "message", "msg_id")),
    Part(
        "oslo.messaging",
        "rpc/drivers/rabbit_connection.py",
        f"{DRIVERS}.impl_rabbit",
        "Connection",
        has=(
            *("_connection_lock", "_declared_exchanges", "_producer", "_set_qos", "_consumers", "_heartbeat_check"),
            *("_heartbeat_supported_and_enabled", "_poll_timeout", "_consume_loop_stopped", "_new_tags", "_initial_pid"),
        ),
    ),
    Part(
        "oslo.messaging",
        "rpc/drivers/rabbit_connection.py",
        f"{DRIVERS}.impl_rabbit",
        "Connection.ensure",
        ("method", "retry", "recoverable_error_callback", "error_callback", "timeout_is_error"),
    ),
    Part(
        "oslo.messaging",
        "rpc/drivers/rabbit_connection.py",
        f"{DRIVERS}.pool",
        "ConnectionPool",
        has=("_cond", "_items", "_max_size", "_min_size", "_item_ttl"),
    ),
    Part("oslo.messaging", "rpc/rabbit.py", f"{DRIVERS}.amqpdriver", "ACK_REQUEUE_EVERY_SECONDS_MIN"),
    Part("oslo.messaging", "rpc/rabbit.py", f"{DRIVERS}.base", "TransportDriverError"),
    Part("oslo.messaging", "rpc/transport.py", "oslo_messaging._metrics.client", "oslo_messaging_metrics"),
    Part("oslo.messaging", "rpc/transport.py", "oslo_messaging._tracing.client", "oslo_messaging_tracing"),
    Part("oslo.messaging", "rpc/transport.py", "oslo_messaging.transport", "Transport", has=("_driver",)),
    Part(
        "oslo.messaging",
        "rpc/transport.py",
        "oslo_messaging.transport",
        "Transport._send",
        ("target", "ctxt", "message", "wait_for_reply", "timeout", "call_monitor_timeout", "retry", "transport_options"),
    ),
    Part(
        "oslo.messaging",
        "rpc/server.py",
        "oslo_messaging.server",
        "MessageHandlingServer",
        has=("_executor_cls", "_work_executor", "_create_listener", "_on_incoming"),
    ),
    Part("oslo.messaging", "rpc/server.py", "oslo_messaging.rpc.server", "RPCServer._process_incoming", ("incoming",)),
    Part("oslo.messaging", "rpc/notifier.py", "oslo_messaging.notify.notifier", "Notifier", has=("_driver_mgr",)),
    Part(
        "oslo.messaging",
        "rpc/notifier.py",
        "oslo_messaging.transport",
        "Transport._send_notification",
        ("target", "ctxt", "message", "version", "retry"),
    ),
    Part(
        "amqp",
        "rpc/drivers/frames.py",
        "amqp.method_framing",
        "frame_handler",
        ("connection", "callback", "unpack_from", "content_methods"),
    ),
    Part("amqp", "rpc/drivers/frames.py", "amqp.serialization", "decode_properties_basic", ("buf", "offset")),
    Part("amqp", "rpc/drivers/rabbit_connection.py", "amqp.abstract_channel", "AbstractChannel.send_method"),
    Part("kombu", "rpc/rabbit.py", "kombu.exceptions", "KombuError"),
    Part("PyMySQL", "db/sql/pymysql_connection.py", "pymysql.connections", "Connection._read_packet", ("packet_type",)),
    Part("PyMySQL", "db/sql/pymysql_connection.py", "pymysql.connections", "Connection._escape_string", ("s",)),
    Part("PyMySQL", "db/sql/pymysql_connection.py", "pymysql.connections", "Connection.query", ("sql", "unbuffered")),
    Part("PyMySQL", "db/sql/pymysql_connection.py", "pymysql.connections", "Connection.ping", ("reconnect",)),
    Part("PyMySQL", "db/sql/pymysql_connection.py", "pymysql.connections", "Connection._read_query_result", ("unbuffered",)),
    Part(
        "PyMySQL",
        "db/sql/pymysql_connection.py",
        "pymysql.connections",
        "Connection",
        has=("_read_timeout", "server_status", "_result"),
    ),
    Part("PyMySQL", "db/sql/pymysql_connection.py", "pymysql.connections", "MySQLResult", ("connection",), ("converters",)),
    Part("PyMySQL", "db/sql/pymysql_connection.py", "pymysql.connections", "MySQLResult.read", ()),
    Part("PyMySQL", "db/sql/pymysql_connection.py", "pymysql.connections", "MySQLResult._read_row_from_packet", ("packet",)),
    Part("PyMySQL", "db/sql/pymysql_connection.py", "pymysql.protocol", "MysqlPacket.get_all_data", ()),
    Part("PyMySQL", "db/sql/pymysql_connection.py", "pymysql.protocol", "FieldDescriptorPacket", ("data", "encoding")),
    Part("psycopg", "db/sql/psycopg_connection.py", "psycopg.errors", "_WaitTimeout"),
    Part("psycopg", "db/sql/psycopg_connection.py", "psycopg", "Connection.wait", ("gen", "interval", "timeout")),
    Part("oslo.db", "db/sql/facade.py", "sqlalchemy.pool", "Pool", has=("_creator",)),
    Part("oslo.db", "db/sql/facade.py", "oslo_db.sqlalchemy.enginefacade", "_TransactionContextManager.append_on_engine_create"),
    Part(
        "oslo.policy",
        "api/http/policy.py",
        "oslo_policy._checks",
        "BaseCheck.__call__",
        ("target", "creds", "enforcer", "current_rule"),
    ),
    Part("oslo.policy", "api/http/policy.py", "oslo_policy._checks", "FalseCheck"),
    Part("oslo.policy", "api/http/policy.py", "oslo_policy._parser", "parse_rule", ("rule",)),
    Part("cliff", "cli/shared/parser.py", "cliff._argparse", "ArgumentParser"),
    Part("cliff", "cli/shared/parser.py", "cliff._argparse", "SmartHelpFormatter"),
)
PINNED = ("PyMySQL", "amqp", "cliff", "kombu", "oslo.db", "oslo.messaging", "oslo.policy", "psycopg")
PRIVATE_MODULES = {
    "rpc/drivers/library.py": {"oslo_messaging._drivers", "oslo_messaging._metrics", "oslo_messaging._tracing"},
    "cli/shared/parser.py": {"cliff._argparse"},
    "api/http/policy.py": {"oslo_policy._checks", "oslo_policy._parser"},
    "scheduler/table/arrays.py": {"numpy._core.multiarray"},  # with the public function where it is not there
}
"""The only files that import modules with a private name."""


@pytest.mark.parametrize("part", PARTS, ids=lambda part: f"{part.behind}: {part.name}")
def test_it_is_as_we_know_it(part: Part) -> None:
    try:
        where = f"{part.library} {metadata.version(part.library)}"
    except metadata.PackageNotFoundError:
        pytest.skip(f"{part.library} is an extra, and is not installed")
    importlib.import_module(part.behind.removesuffix(".py").replace("/", "."))  # as our processes come to it
    what = f"; {part.behind} needs it: look at what the release does now, mend the file, and raise the pin in setup.cfg"
    assert (ROOT / part.behind).is_file() or not (ROOT / "Makefile").is_file()
    try:
        found: object = importlib.import_module(part.module)
        for step in part.name.split("."):
            found = getattr(found, step)
    except (ImportError, AttributeError) as error:
        pytest.fail(f"{where}: {part.module} has no {part.name} ({error}){what}")
    if part.takes is not None:
        assert callable(found)
        names = [name for name in inspect.signature(found).parameters if name not in ("self", "args", "kwargs")]
        assert tuple(names) == part.takes, f"{where}: {part.module}.{part.name} takes {names}{what}"
    if part.has:
        assert isinstance(found, type)
        source = "".join(inspect.getsource(one) for one in found.__mro__ if one is not object)
        missing = [name for name in part.has if not re.search(rf"\b{name}\b", source)]
        assert not missing, f"{where}: {part.module}.{part.name} has no {', '.join(missing)}{what}"


def test_private_modules_are_imported_by_one_file_each() -> None:
    found: dict[str, set[str]] = {}
    for room in ROOMS:
        for path in (ROOT / room).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                modules = [node.module or ""] if isinstance(node, ast.ImportFrom) and not node.level else []
                modules += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
                private = {name for name in modules if any(step.startswith("_") for step in name.split("."))} - {"__future__"}
                if private:
                    found.setdefault(path.relative_to(ROOT).as_posix(), set()).update(private)
    if found:  # an installed package is tested without the sources
        assert found == PRIVATE_MODULES


def test_used_libraries_are_pinned_to_tested_minor_releases() -> None:
    assert {part.library for part in PARTS} == set(PINNED)
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    declared = config["options"]["install_requires"] + "\n".join(config["options.extras_require"].values())
    for library in PINNED:
        bounds = re.search(rf"^{re.escape(library)}(?:\[\w+\])?>=(\d+)\.(\d+)[\d.]*,<(\d+)\.(\d+)$", declared, re.MULTILINE)
        assert bounds, f"{library} is to be declared as >=X.Y,<X.(Y+1) in setup.cfg"
        low, high = (int(bounds[1]), int(bounds[2])), (int(bounds[3]), int(bounds[4]))
        assert high == (low[0], low[1] + 1), f"{library} is pinned to {low} and up to {high}: one minor release"
