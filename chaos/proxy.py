"""TCP proxies whose connections can be cut, frozen and muted. All of them are served by one thread."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
from collections.abc import Coroutine, Iterable, Mapping
from typing import Any, TypeVar

from deploy import ports

T = TypeVar("T")

CHUNK_BYTES = 65536
RESET = struct.pack("ii", 1, 0)
"""Of SO_LINGER: closing throws away what was not sent, and resets the connection."""
PORT_TRIES = 5
"""Ports that a proxy tries to listen on."""
CHANGE_TIMEOUT_S = 10.0
"""Seconds that the proxies' thread may take for one change."""


class Link:
    """One proxy: everything that connects to ``port_of`` is connected to ``target``. Used in the thread of its ``Proxies`` only."""

    def __init__(self, name: str, target: int) -> None:
        self.name = name
        self.port = 0
        self._target = target
        self._asks = asyncio.Event()
        self._answers = asyncio.Event()
        self._listener: asyncio.Server | None = None
        self._open: set[asyncio.StreamWriter] = set()
        self._serving: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Listen on a free port. Raises OSError where none can be had."""
        for tries_left in reversed(range(PORT_TRIES)):
            self.port = ports.free_port()
            try:
                await self.restore_link()
            except OSError:  # another program was quicker
                if not tries_left:
                    raise
            else:
                break

    async def restore_link(self) -> None:
        """As it should be: everything flows, and what was held arrives."""
        self._asks.set()
        self._answers.set()
        if self._listener is None:
            self._listener = await asyncio.start_server(self._serve_connection, ports.HOST, self.port)

    async def cut_link(self) -> None:
        """Reset all connections and refuse new ones."""
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        for writer in self._open:
            with contextlib.suppress(OSError):  # it has been closed
                writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            writer.transport.abort()
        self._asks.set()  # what waits finds its connection gone
        self._answers.set()

    async def freeze_link(self) -> None:
        """Connections stay, and new ones are taken, but nothing goes through."""
        self._asks.clear()
        self._answers.clear()

    async def mute_link(self) -> None:
        """What clients send goes through, what they should get does not."""
        self._answers.clear()

    async def close(self) -> None:
        await self.cut_link()
        for task in self._serving:
            task.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)

    async def _serve_connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._serving.add(task)
        self._open.add(writer)
        try:
            await self._asks.wait()
            answers, asks = await asyncio.open_connection(ports.HOST, self._target)
            self._open.add(asks)
            try:
                await asyncio.gather(_pump_bytes(reader, asks, self._asks), _pump_bytes(answers, writer, self._answers))
            finally:
                self._open.discard(asks)
                asks.transport.abort()
        except OSError:
            pass  # the server is down: so is this connection
        finally:
            self._open.discard(writer)
            writer.transport.abort()
            self._serving.discard(task)


async def _pump_bytes(source: asyncio.StreamReader, sink: asyncio.StreamWriter, gate: asyncio.Event) -> None:
    """Pass on what comes, the end of it included, while the gate is open."""
    with contextlib.suppress(OSError):
        while data := await source.read(CHUNK_BYTES):
            await gate.wait()
            sink.write(data)
            await sink.drain()
    await gate.wait()
    with contextlib.suppress(OSError):
        sink.close()
        await sink.wait_closed()


class Proxies:
    """The links by name, and the thread that serves them. Open from the beginning; usable from any thread."""

    def __init__(self, targets: Mapping[str, int]) -> None:
        """``targets``: for the name of each link the port that it leads to."""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxies", daemon=True)
        self._thread.start()
        self._links = self._run(_make_links(targets))

    def port_of(self, name: str) -> int:
        """Where to connect instead."""
        return self._links[name].port

    def restore_links(self, names: Iterable[str]) -> None:
        for name in names:
            self._run(self._links[name].restore_link())

    def cut_links(self, names: Iterable[str]) -> None:
        for name in names:
            self._run(self._links[name].cut_link())

    def freeze_links(self, names: Iterable[str]) -> None:
        for name in names:
            self._run(self._links[name].freeze_link())

    def mute_links(self, names: Iterable[str]) -> None:
        for name in names:
            self._run(self._links[name].mute_link())

    def close(self) -> None:
        """End every connection and the thread."""
        for link in self._links.values():
            self._run(link.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(CHANGE_TIMEOUT_S)
        self._loop.close()

    def _run(self, change: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(change, self._loop).result(CHANGE_TIMEOUT_S)


async def _make_links(targets: Mapping[str, int]) -> dict[str, Link]:
    links = {name: Link(name, target) for name, target in targets.items()}
    for link in links.values():
        await link.start()
    return links
