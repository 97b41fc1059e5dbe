"""Messages as they come off the wire, read so that no content of theirs can break the connection.

py-amqp parses properties, routing keys and text encodings while it reads from the socket. An error there looks like a broken
connection: the driver connects again, and the broker delivers the same message again, for ever. This frame handler takes deliveries
apart by itself, keeps what cannot be parsed as a fact about the message, and drops the body of a message that is too large
while it arrives. Everything else goes to py-amqp's own handler.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import unpack_from
from typing import Any

from amqp.exceptions import UnexpectedFrame  # type: ignore[import-untyped]  # the library ships no types

from rpc.drivers.library import amqp_frame_handler, decode_properties_basic, spec

MESSAGE_BYTES_LIMIT = 15 * 1024 * 1024
"""Maximum size of a message on the wire. RabbitMQ takes messages of 16 MiB by default."""

_METHOD, _HEADER, _BODY = 1, 2, 3
_DELIVER = bytes([*spec.Basic.Deliver[0].to_bytes(2, "big"), *spec.Basic.Deliver[1].to_bytes(2, "big")])


class Delivery:
    """One message that a broker delivered.

    ``size``: bytes of the body as its sender sent it. Beyond ``MESSAGE_BYTES_LIMIT``, ``body`` has only the beginning.
    ``unparsed``: what could not be parsed of its properties; then there are none.
    """

    __slots__ = ("_chunks", "_missing", "body", "channel", "delivery_tag", "properties", "settled", "size", "tag", "unparsed")

    def __init__(self, payload: bytes) -> None:
        """``payload``: of the Deliver method. Its exchange and routing key are left alone: nobody asks for them."""
        length = payload[4]
        self.tag = payload[5 : 5 + length].decode("ascii", "replace")
        (self.delivery_tag,) = unpack_from(">Q", payload, 5 + length)
        self.channel: Any = None
        self.body = b""
        self.size = 0
        self.properties: dict[str, Any] = {}
        self.unparsed = ""
        self.settled = False
        self._chunks: list[bytes] = []
        self._missing = 0

    def take_header(self, payload: bytes) -> bool:
        """Take the header. Returns whether the message is complete."""
        (self.size,) = unpack_from(">Q", payload, 4)
        self._missing = self.size
        try:
            self.properties, _ = decode_properties_basic(payload, 12)
        except Exception as error:  # noqa: BLE001 - a sender may put anything there: the message is refused, the connection is fine
            self.unparsed = f"{type(error).__name__} in its properties"
        return not self.size

    def take_chunk(self, payload: bytes) -> bool:
        """Take a part of the body. Returns whether the message is complete."""
        self._missing -= len(payload)
        if self.size <= MESSAGE_BYTES_LIMIT or not self._chunks:
            self._chunks.append(payload)
        if self._missing > 0:
            return False
        self.body = self._chunks[0] if len(self._chunks) == 1 else b"".join(self._chunks)
        self._chunks.clear()
        return True

    def acknowledge(self) -> None:
        """Raises what the connection does where it is broken: then the broker delivers the message again."""
        self.settled = True
        self.channel.basic_ack(self.delivery_tag)

    def requeue(self) -> None:
        self.settled = True
        self.channel.basic_reject(self.delivery_tag, requeue=True)


def frame_handler(connection: Any, callback: Callable[..., object]) -> Callable[[tuple[int, int, bytes]], bool]:
    """What py-amqp's function of this name does, in its shape."""
    usual = amqp_frame_handler(connection, callback)
    arriving: dict[int, Delivery] = {}

    def on_frame(frame: tuple[int, int, bytes]) -> bool:
        kind, number, payload = frame
        if kind == _METHOD and payload[:4] == _DELIVER:
            connection.bytes_recv += 1  # shows that the broker is alive
            arriving[number] = Delivery(payload)
            return False
        arrival = arriving.get(number)
        if arrival is None:
            return bool(usual(frame))
        connection.bytes_recv += 1
        if kind == _HEADER:
            complete = arrival.take_header(payload)
        elif kind == _BODY:
            complete = arrival.take_chunk(payload)
        else:
            raise UnexpectedFrame(f"Received frame {kind} inside a message")
        if complete:
            del arriving[number]
            _hand_over(connection.channels.get(number), arrival)
        return complete

    return on_frame


def _hand_over(channel: Any, arrival: Delivery) -> None:
    """To the consumer it is for. One that was cancelled meanwhile gets nothing more: the message goes back to its queue."""
    if channel is None or channel.is_closing:
        return
    arrival.channel = channel
    take = channel.callbacks.get(arrival.tag)
    if take is None:
        arrival.requeue()
    else:
        take(arrival)
