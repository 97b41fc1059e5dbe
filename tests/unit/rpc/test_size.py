"""How large a message may be."""

from __future__ import annotations

import pytest

from objects import errors
from rpc.drivers import wire
from rpc.drivers.frames import MESSAGE_BYTES_LIMIT


def test_an_oversized_message_is_refused_by_its_sender() -> None:
    """With its size, and before the connection is lost over it."""
    frame = len(wire.make_envelope({"args": ""}))
    assert len(wire.make_envelope({"args": "x" * (MESSAGE_BYTES_LIMIT - frame)})) == MESSAGE_BYTES_LIMIT
    with pytest.raises(errors.Invalid, match=f"the limit is {MESSAGE_BYTES_LIMIT}"):
        wire.make_envelope({"args": "x" * (MESSAGE_BYTES_LIMIT - frame + 1)})
