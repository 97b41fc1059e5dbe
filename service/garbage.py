"""Keep Python's search for cycles off what is built once and stays."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


def freeze() -> None:
    """Collect garbage once, and never search what is left: for a process that is about to fork.

    A search writes to every object that it visits. Forked workers then no longer share the memory pages of these objects.
    """
    gc.collect()
    gc.freeze()


@contextmanager
def unsearched() -> Iterator[None]:
    """Search for no cycles inside, and never among what is there at its end.

    A full search walks every object there is, and one comes each time these have grown by a quarter: where a million objects are
    made that all stay, that takes longer than making them, and holds up whatever comes afterwards. Memory of objects without cycles
    is given back as ever.
    """
    on = gc.isenabled()
    gc.collect()  # what is garbage already would stay for ever
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if on:
            gc.enable()
