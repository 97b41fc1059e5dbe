"""``/servers/{id}/remote-consoles``, the actions it replaces since 2.6, and ``/os-console-auth-tokens``.

The answer's URL leads to the console proxy (``api/consoles/proxy.py``), with a token that opens this console of this server.
"""

from __future__ import annotations

from functools import partial
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

import falcon

from api.http import call as calls
from api.http import policies, schemas
from api.http.call import Call, send_json
from api.http.microversions import Microversion
from api.http.validation import VersionedValidator, read_body, validated_by
from api.lookup.guest_asker import GuestAsker
from api.opts import ApiSettings
from api.servers.actions import ServerAction
from db.api.servers import console_tokens
from db.sql.engine import ApiDatabase
from objects import errors
from objects.base import Object
from objects.console import ConsoleKind, ConsoleToken, access_path, digest_of, new_token

NOVNC, SERIAL = "novnc", "serial"

KINDS = {NOVNC: ("vnc", ConsoleKind.VNC), SERIAL: ("serial", ConsoleKind.SERIAL)}
"""The types of consoles that are offered: their protocols, and what hosts connect to."""


class NewConsole(Object, frozen=True, kw_only=True):
    """An answer."""

    console_type: str
    url: str

    def __repr__(self) -> str:
        return f"NewConsole({self.console_type})"  # the URL holds a token


class RemoteConsoles:
    """Makes tokens, and URLs of them."""

    def __init__(self, settings: ApiSettings, database: ApiDatabase, asker: GuestAsker) -> None:
        self._settings = settings
        self._urls = {NOVNC: settings.consoles.novnc_url, SERIAL: settings.consoles.serial_url}
        self._database = database
        self._asker = asker
        self._validator = VersionedValidator((since, schemas.remote_console(since)) for since in schemas.REMOTE_CONSOLE_CHANGES)

    @validated_by("_validator")
    def on_post(self, req: falcon.Request, resp: falcon.Response, server_id: str) -> None:
        call = calls.get_call(req)
        document = read_body(req, self._settings.max_body_size)
        self._validator.check_body(call.version, document)
        console_request = document["remote_console"]
        console = self._create_console(call, server_id, console_request["protocol"], console_request["type"])
        send_json(
            resp, {"remote_console": {"protocol": console_request["protocol"], "type": console.console_type, "url": console.url}}
        )

    def server_actions(self) -> tuple[ServerAction, ...]:
        """Of versions before 2.6."""
        return tuple(
            ServerAction(
                name=name,
                rule=policies.REMOTE_CONSOLES,
                versions=schemas.console_action(*types),
                run=partial(self._send_console, protocol),
            )
            for name, protocol, types in (
                ("os-getVNCConsole", "vnc", (NOVNC, "xvpvnc")),
                ("os-getSPICEConsole", "spice", ("spice-html5",)),
                ("os-getSerialConsole", "serial", (SERIAL,)),
            )
        )

    def _send_console(self, protocol: str, call: Call, server_id: str, value: dict[str, str], resp: falcon.Response) -> None:
        console = self._create_console(call, server_id, protocol, value["type"])
        send_json(resp, {"console": {"type": console.console_type, "url": console.url}})

    def _create_console(self, call: Call, server_id: str, protocol: str, console_type: str) -> NewConsole:
        """Raises errors.NotFound, errors.Conflict if the console cannot be opened now, errors.Invalid if there is none."""
        uuid = self._asker.find_server(call, server_id).uuid
        offered, kind = KINDS.get(console_type, ("", None))
        if offered != protocol or kind is None:
            raise errors.Invalid(f"Unavailable console type {console_type}.")
        if not self._urls[console_type]:
            raise _unavailable_console(call, console_type, f"[console] {console_type}_url is not set")
        token, lifetime = new_token(), self._settings.consoles.token_ttl
        try:
            place = self._asker.open_console(call, uuid, kind, digest_of(access_path(token)), lifetime)
        except errors.NotOffered as error:
            raise _unavailable_console(call, console_type, str(error)) from error
        stored = ConsoleToken(digest=digest_of(token), server_uuid=uuid, console_type=console_type, place=place)
        self._database.write(console_tokens.add_token, stored, lifetime)
        return NewConsole(console_type=console_type, url=url_of(self._urls[console_type], console_type, token))


class ConsoleAuthTokens:
    """Tells proxies where the console of a token is. Administrators only: it is all that opens the console."""

    def __init__(self, database: ApiDatabase) -> None:
        self._database = database

    def on_get(self, req: falcon.Request, resp: falcon.Response, token: str) -> None:
        if not calls.get_call(req).has_feature(Microversion.CONSOLE_TOKENS):
            raise errors.Invalid("Before version 2.31 this was for consoles of RDP only, which are not offered.")
        console_token = self._database.read(console_tokens.find_token, digest_of(token))
        if console_token is None:
            raise errors.NotFound("Token not found")
        listener = console_token.place.listener
        console = {"host": listener.address, "port": listener.port, "internal_access_path": access_path(token)}
        send_json(resp, {"console": {"instance_uuid": console_token.server_uuid} | console})


def url_of(base: str, console_type: str, token: str) -> str:
    """The URL of a console: with the token as its parameter, which the page of noVNC takes as a part of ``path``."""
    parts = urlsplit(base)
    query = parse_qsl(parts.query, keep_blank_values=True)
    if console_type == NOVNC:
        path = next((value for name, value in query if name == "path"), "")
        token_in_path = f"{path}{'&' if '?' in path else '?'}{urlencode({'token': token})}"
        query = [(name, value) for name, value in query if name != "path"] + [("path", token_in_path)]
    else:
        query.append(("token", token))
    return urlunsplit(parts._replace(query=urlencode(query)))


def _unavailable_console(call: Call, console_type: str, reason: str) -> errors.Invalid:
    shown = f" {reason}" if call.is_allowed(policies.ATTRIBUTES) else ""
    return errors.Invalid(f"Unavailable console type {console_type}.{shown}")
