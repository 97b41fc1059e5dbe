"""The bus runs on real threads: nothing of eventlet is ever loaded, not even where it is installed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SCRIPT = """
import sys
from rpc.transport import Bus
from objects.context import RequestContext

class Parrot:
    def echo(self, context, value):
        return value

bus = Bus("embedded://threads/")
bus.serve_topic("topic", "h1", [Parrot()])
assert bus.make_client("topic").call(RequestContext(request_id="r"), "echo", int, value=1) == 1
bus.close()
Bus("rabbit://guest:guest@127.0.0.1:1/").close()

import importlib.metadata, logging, oslo_messaging._drivers.impl_rabbit, select, socket, threading, time
importlib.metadata.version("eventlet")
loaded = [name for name, module in sys.modules.items() if module and name.partition(".")[0] in ("eventlet", "greenlet")]
assert not loaded, loaded
assert all(part.__module__.partition(".")[0] in ("socket", "threading", "_thread", "builtins", "select", "time")
           for part in (socket.socket, threading.Thread, threading.Event, threading.Lock, select.select, time.sleep))
print("no eventlet")
"""


def test_importing_and_using_a_bus_loads_no_eventlet() -> None:
    root = Path(__file__).parents[3]

    done = subprocess.run([sys.executable, "-c", SCRIPT], cwd=root, capture_output=True, text=True, timeout=60, check=False)

    assert done.stdout.strip() == "no eventlet", done.stderr
