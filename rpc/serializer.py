"""The codec in the shape oslo.messaging asks for."""

from __future__ import annotations

import logging
from typing import Any

import msgspec
import oslo_messaging as om

from objects import errors, typed
from objects.context import RequestContext
from rpc.codec import Codec
from rpc.errors import RemoteFault

LOG = logging.getLogger(__name__)


class Serializer(om.Serializer):  # type: ignore[misc]  # the untyped base is oslo.messaging's
    """Arguments and results through the codec, the request context as a plain dict."""

    def __init__(self, codec: Codec) -> None:
        self._codec = codec

    def serialize_entity(self, context: RequestContext, entity: object) -> Any:
        return self._codec.encode_value(entity)

    def deserialize_entity(self, context: RequestContext, entity: Any) -> Any:
        return self._codec.decode_value(entity)

    def serialize_context(self, context: RequestContext) -> dict[str, Any]:
        fields: dict[str, Any] = msgspec.to_builtins(context)
        return fields

    def deserialize_context(self, context: dict[str, Any]) -> RequestContext:
        return typed.convert_data(context, RequestContext)


class ServerSerializer(Serializer):
    """The same at the serving side, where an error is sent to the caller as an expected one, not logged as a failed dispatch."""

    def deserialize_entity(self, context: RequestContext, entity: Any) -> Any:
        try:
            return super().deserialize_entity(context, entity)
        except errors.SuperconductorError as error:
            LOG.warning("Refused a message: %s", error)
            raise expected_error(error) from None

    def serialize_entity(self, context: RequestContext, entity: object) -> Any:
        try:
            return super().serialize_entity(context, entity)
        except TypeError as error:
            LOG.error("Cannot send an answer to request %s: %s", context.request_id, error)
            raise expected_error(RemoteFault(f"The answer could not be sent: {error}.")) from None


def expected_error(error: errors.SuperconductorError) -> Exception:
    """Wrap ``error`` so that oslo.messaging sends it to the caller without logging it, and without its traceback."""
    error.__cause__ = error.__context__ = None
    wrapped: Exception = om.ExpectedException()
    wrapped.exc_info = (type(error), error.with_traceback(None), None)  # type: ignore[attr-defined]  # what the server sends
    return wrapped
