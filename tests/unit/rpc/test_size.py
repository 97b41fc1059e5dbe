"""How large a message may be."""

from __future__ import annotations

import pytest

from objects import errors
from objects.context import RequestContext
from rpc.codec import Codec
from rpc.serializer import LARGEST, Serializer

CONTEXT = RequestContext(request_id="req-1")


def test_what_no_broker_would_take_is_refused_by_who_sends_it_and_by_who_receives_it() -> None:
    """With its size, and before the connection is lost over it."""
    serializer = Serializer(Codec())
    fits, large = "x" * (LARGEST - 2), ["x" * LARGEST]
    assert serializer.deserialize_entity(CONTEXT, serializer.serialize_entity(CONTEXT, fits)) == fits
    for refuse in (serializer.serialize_entity, serializer.deserialize_entity):
        with pytest.raises(errors.Invalid, match=f"{LARGEST} are the most"):
            refuse(CONTEXT, large)
