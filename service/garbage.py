"""Exclude long-lived objects from Python's cyclic garbage collection."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


def freeze_garbage() -> None:
    """Collect garbage once and exclude the remaining objects from later collections: for a process that is about to fork.

    A collection writes to every object that it visits, so forked workers would no longer share their memory pages.
    """
    gc.collect()
    gc.freeze()


@contextmanager
def without_garbage_collection() -> Iterator[None]:
    """Disable cyclic garbage collection inside the block, and exclude all objects that exist at its end from later collections.

    A full collection visits every object, and runs each time their number has grown by a quarter. When a million objects are made
    that all stay, collections take longer than making them and delay whatever runs next. Reference counting still frees objects
    without cycles.
    """
    on = gc.isenabled()
    gc.collect()  # existing garbage would otherwise be frozen and never freed
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if on:
            gc.enable()
