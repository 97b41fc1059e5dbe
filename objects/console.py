"""Consoles of guests: what is passed on of their output, and the tokens that open a remote console.

The user of a guest writes its output, so it may hold anything.

A token is a secret that only its user and the proxy have. The API database stores its digest. The proxy shows the host's agent the
token's access path, from which the token cannot be found, and the agent knows only the digest of that.
"""

from __future__ import annotations

import enum
import hashlib
import re
import secrets
import uuid
from typing import Annotated

import msgspec

from objects.base import Message, Object

CONSOLE_BYTES = 100 * 1024
"""Maximum bytes of a console log that are read: the last ones. The answer has at most as many characters."""

ADDRESS_PATTERN = r"\A[A-Za-z0-9.:_-]{1,255}\Z"
"""Names of machines, and addresses of IPv4 and IPv6."""

_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")
"""What the Compute API leaves out, and the other characters that control a terminal or cannot be encoded."""


def readable_output(output: str, lines: int | None = None) -> str:
    """The end of the output without control characters other than tab and newline. ``lines``: how many, None for all.

    As in the Compute API, what follows the last newline is a line too, even if it is empty.
    """
    text = _CONTROL.sub("", output[-CONSOLE_BYTES:])
    if lines is None:
        return text
    return "\n".join(text.split("\n")[-lines:]) if lines else ""


class ConsoleKind(enum.StrEnum):
    """What a driver may connect to."""

    SERIAL = "serial"
    VNC = "vnc"


class ConsoleListener(Message, frozen=True, kw_only=True):
    """Where a host's agent waits for the proxy. The agent says it, so nothing else may stand there."""

    address: Annotated[str, msgspec.Meta(pattern=ADDRESS_PATTERN)]
    port: Annotated[int, msgspec.Meta(ge=1, le=65535)]


class ConsolePlace(Message, frozen=True, kw_only=True):
    """The same with the agent's host, and the body of the server that is there."""

    host: str
    body_uuid: str
    listener: ConsoleListener


class ConsoleToken(Object, frozen=True, kw_only=True):
    """What is stored of a token. ``console_type``: of the Compute API."""

    digest: str
    server_uuid: str
    console_type: str
    place: ConsolePlace


def new_token() -> str:
    """A token that nobody can guess."""
    return secrets.token_urlsafe(32)


def digest_of(secret: str) -> str:
    """What is stored instead of a token or an access path."""
    return hashlib.sha256(secret.encode(errors="replace")).hexdigest()


def access_path(token: str) -> str:
    """What a proxy shows the agent. It has the form of a UUID, as in the Compute API."""
    return str(uuid.UUID(bytes=hashlib.sha256(b"access path\0" + token.encode(errors="replace")).digest()[:16]))
