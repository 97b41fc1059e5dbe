"""Remove outdated records: old decisions, tokens of clients and consoles, dead processes, orphaned claims, deleted servers."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from functools import partial

from cells.cell import Cell
from cells.presence import RECORD_LIFETIME_S
from cells.registry import CellRegistry
from conductor.context import ConductorContext
from conductor.quarantine import REFRESH_INTERVAL_S, Quarantine
from conductor.requeue import STEP as BUILD
from db import dead_letters, processes, secrets
from db.api.claims import claims, decisions
from db.api.queue import builds
from db.api.queue.due import SweepsDue
from db.api.reconcile import purge as api_purge
from db.api.servers import console_tokens, image_removals
from db.cell import purge as cell_purge
from db.sql.engine import ApiDatabase, CellDatabase
from images.drop import DropFolders
from images.store import FolderStore
from objects import errors
from service.periodic import ErrorCollector, Every
from service.rate_limited_log import RateLimitedLog

LOG = logging.getLogger(__name__)
COMPLAINTS = RateLimitedLog(LOG)

IMAGES_PAGE_SIZE = 500

REAP = "reap"
"""The step of dead letters about claims that cannot be released. Their keys are the UUIDs of the instances."""


def tidy_database(api_database: ApiDatabase, decision_age: float, token_age: float) -> None:
    """Remove old decisions, client tokens, console tokens and process records; ages in seconds."""
    now = api_database.current_time()
    with ErrorCollector() as steps:
        forgotten = steps.run(_forget_decisions, api_database, now - decision_age)
        tokens = steps.run(api_database.write, builds.forget_tokens, now - token_age)
        steps.run(api_database.write, console_tokens.forget_expired)
        steps.run(api_database.write, processes.forget_dead, "api", RECORD_LIFETIME_S)
    if forgotten or tokens:
        LOG.info("forgot %d decisions and %d client tokens", forgotten or 0, tokens or 0)


def _forget_decisions(api_database: ApiDatabase, before: float) -> int:
    """Remove decisions in many small transactions: a busy region makes a lot of them in an hour."""
    forgotten = 0
    after: str | None = ""
    while after is not None:
        gone, after = api_database.write(decisions.trim_decisions, before, after)
        forgotten += gone
    return forgotten


def remove_images(api_database: ApiDatabase, images: FolderStore | None, drop: DropFolders | None = None) -> None:
    """Remove snapshots and images that nothing needs any more.

    One that cannot be removed waits for a later round, and holds up no other.
    """
    after = ""
    while images is not None and (due := api_database.read(image_removals.list_due, IMAGES_PAGE_SIZE, after)):
        api_database.write(image_removals.forget_removals, [image_id for image_id in due if _is_removed(images, drop, image_id)])
        after = due[-1]


class ImageSweep:
    """Removes what nothing needs any more from the image store, every ``interval`` seconds at most."""

    name = "images"

    def __init__(self, context: ConductorContext, drop: DropFolders | None, interval: float) -> None:
        self._context = context
        self._drop = drop
        self._is_due = Every(interval)

    def has_work(self, due: SweepsDue) -> bool:
        return due.images and self._is_due()

    def run_round(self) -> None:
        remove_images(self._context.database, self._context.images, self._drop)


def _is_removed(images: FolderStore, drop: DropFolders | None, image_id: str) -> bool:
    try:
        if drop is not None:
            drop.remove_leftovers(image_id)
        images.remove_snapshot(image_id)
        with contextlib.suppress(errors.NotFound):
            images.delete(image_id)
    except errors.ServiceUnavailable as error:
        COMPLAINTS("images", logging.WARNING, "image %s is not removed yet: %s", image_id, error)
        return False
    LOG.info("removed image %s, which nothing needs any more", image_id)
    return True


def reap_claims(api_database: ApiDatabase, ledger: claims.Ledger, aside: Quarantine | None = None) -> None:
    """Release orphaned claims."""
    orphans = api_database.read(claims.list_orphans)
    if orphans:
        aside = aside or Quarantine(api_database, "api")
        done = aside.run(REAP, lambda uuids: ledger.write(claims.release_claims, uuids), orphans)
        LOG.info("freed %d claims whose requests have ended", sum(done.results))


def forget_deleted(registry: CellRegistry, api_database: ApiDatabase, age: float) -> None:
    """Remove servers deleted ``age`` seconds ago. Those of a cell that does not answer wait for a later round."""
    done: set[str] = set()
    for cell in _all_cells(registry):
        try:
            _every_page(partial(cell.write, cell_purge.purge_rows, cell.current_time() - age))
        except (errors.CellUnavailable, errors.DatabaseUnavailable) as error:
            LOG.info("deleted servers of cell %s are kept for now: %s", cell.name, error)
            continue
        done.add(cell.uuid)
    forgotten = _every_page(partial(api_database.write, api_purge.purge_servers, api_database.current_time() - age, done))
    if forgotten:
        LOG.info("forgot %d servers that were deleted long ago", forgotten)


def _all_cells(registry: CellRegistry) -> list[Cell]:
    cells = list(registry.list_cells())
    with contextlib.suppress(errors.NotFound):
        cells.append(registry.cell0)
    return cells


def _every_page(page: Callable[[], int]) -> int:
    total = 0
    while count := page():
        total += count
    return total


def erase_decided(api_database: ApiDatabase) -> None:
    """At the API level: erase the secrets of batches without a queued request, where no hand-over has done it."""
    full = True
    while full and (batches := api_database.read(secrets.list_decided)):
        api_database.write(secrets.erase_requests, batches)
        LOG.debug("erased the queued secrets of %d batches", len(batches))
        full = len(batches) == secrets.PAGE_SIZE


class SecretSweep:
    """Erases the secrets of decided batches at the API level."""

    name = "secrets"

    def __init__(self, api_database: ApiDatabase) -> None:
        self._database = api_database

    def has_work(self, due: SweepsDue) -> bool:
        return due.secrets

    def run_round(self) -> None:
        erase_decided(self._database)


class DeadLetterSweep:
    """Removes the dead letters of requests that are gone, and reads the others again."""

    name = "dead letters"

    def __init__(self, context: ConductorContext) -> None:
        self._context = context
        self._is_due = Every(REFRESH_INTERVAL_S)

    def has_work(self, due: SweepsDue) -> bool:
        return (due.letters or self._context.aside.holds_letters) and self._is_due()

    def run_round(self) -> None:
        if self._context.aside.has_letters(BUILD):
            self._context.database.write(dead_letters.forget_ended_builds, BUILD)
        self._context.aside.refresh_letters()


def erase_finished(cell_database: CellDatabase, aside: Quarantine) -> None:
    """In a cell: erase the secrets of batches without an unfinished build. Batches being staged are left for the next round."""
    batches = cell_database.read(secrets.list_finished)
    if batches:
        done = aside.run("secrets", lambda batch_ids: cell_database.write(secrets.erase_builds, batch_ids), batches)
        LOG.debug("erased the secrets of %d batches", sum(map(len, done.results)))
