"""Keep Python's search for cycles off what is built once and stays."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


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
