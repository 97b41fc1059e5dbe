"""``POST /superconductor/dry-run``: which hosts new servers would get. Our own extension of the Compute API."""

from __future__ import annotations

from typing import Any

import falcon
import msgspec

from api.http import call as calls
from api.http.call import send_json
from api.http.validation import validated_by
from api.lookup.scheduler_queries import SchedulerAsker
from api.servers.accept import Acceptor, ForeseenBatch
from api.servers.handlers import BootServers
from objects.dry_run import DryRun


class BootDryRun:
    """Takes the body of ``POST /servers``, looks up what it names as a boot does, and asks a scheduler. It stores nothing.

    A key of the client (``Idempotency-Key``) has no effect.
    """

    def __init__(self, acceptor: Acceptor, boot: BootServers, schedulers: SchedulerAsker) -> None:
        self._acceptor = acceptor
        self._boot = boot
        self._schedulers = schedulers

    @validated_by("_boot")
    def on_post(self, req: falcon.Request, resp: falcon.Response) -> None:
        call = calls.get_call(req)
        _, boot = self._boot.read(req, call)
        foreseen = self._acceptor.dry_run(call, boot)
        send_json(resp, {"dry_run": _dry_run_document(foreseen, self._schedulers.dry_run(call, foreseen.spec))})


def _dry_run_document(foreseen: ForeseenBatch, result: DryRun) -> dict[str, Any]:
    decision = result.decision
    names = dict(zip(foreseen.spec.fences, foreseen.names, strict=True))
    servers = [{"name": names[item.instance_uuid]} | _without_uuid(item) for item in result.servers]
    placed = sum(item.host is not None for item in result.servers)
    refused = bool(foreseen.refusals) or not placed or bool(decision.waits)
    return {
        "outcome": "refused" if refused else "partial" if decision.message else "placed",
        "refusals": [*foreseen.refusals, *([decision.message] if decision.message else [])],
        "waits": decision.waits,
        "would_have_fitted": None if decision.relaxations is None else [item.as_text for item in decision.relaxations],
        "would_have_fitted_together": [item.as_text for item in decision.pairs[:1]],
        "largest_flavor": decision.largest_flavor or None,
        "unread_hints": decision.unread_hints,
        "servers": servers,
        "one_of": result.one_of,
        "hosts": decision.hosts,
        "filters": decision.filters,
        "candidates": decision.candidates,
        "cells": decision.cells,
        "driver": decision.driver,
        "elapsed_ms": decision.elapsed_ms,
    }


def _without_uuid(record: msgspec.Struct) -> dict[str, Any]:
    """A planned server without its uuid, which a boot would not have."""
    return {name: value for name, value in msgspec.structs.asdict(record).items() if name != "instance_uuid"}
