"""Whether the databases and buses that a configuration names answer, and whether they fit."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from oslo_config import cfg

from db.sql import galera, ready, sync
from db.sql.engine import Database
from objects import errors
from objects.mask import mask_url
from rpc.transport import Bus


class ConnectionAnswer(NamedTuple):
    """What came of one connection. ``option``: the one that names it."""

    option: str
    text: str
    fits: bool


_DATABASES: dict[str, sync.Kind] = {"api_database": "api", "cell_database": "cell"}
_BUSES = ("transport_url", "api_transport_url")


def try_connections(conf: cfg.ConfigOpts) -> Iterator[ConnectionAnswer]:
    """Each database, and then each bus, that the options of this configuration name."""
    for group, kind in _DATABASES.items():
        if group in conf and (url := conf[group].connection):
            yield _try_database(f"[{group}] connection", url, kind)
    for name in _BUSES:
        if name in conf and (url := conf[name]) and not url.startswith("embedded://"):
            yield _try_bus(f"[DEFAULT] {name}", url)


def _try_database(option: str, url: str, kind: sync.Kind) -> ConnectionAnswer:
    try:
        database = Database(url, name=kind)
    except errors.SuperconductorError as error:
        return ConnectionAnswer(option, mask_url(str(error)), fits=False)
    try:
        ready.check_writable(database, kind)
        misfits = database.read(galera.list_misfits)
    except errors.SuperconductorError as error:
        return ConnectionAnswer(option, mask_url(str(error)), fits=False)
    finally:
        database.dispose_connections()
    text = f"{database.url_masked} answers"
    if misfits is None:
        return ConnectionAnswer(option, text, fits=True)
    misfit_text = "; ".join(misfit.text for misfit in misfits) or "it fits"
    return ConnectionAnswer(
        option, f"{text}, a node of a Galera cluster: {misfit_text}", fits=not any(misfit.lasting for misfit in misfits)
    )


def _try_bus(option: str, url: str) -> ConnectionAnswer:
    try:
        bus = Bus(url, name="check")
    except errors.SuperconductorError as error:
        return ConnectionAnswer(option, mask_url(str(error)), fits=False)
    try:
        bus.check_login()
    except errors.SuperconductorError as error:
        return ConnectionAnswer(option, mask_url(str(error)), fits=False)
    finally:
        bus.close()
    return ConnectionAnswer(option, f"{mask_url(url)} answers", fits=True)
