"""What is built once and stays is not searched for cycles."""

from __future__ import annotations

import gc
import weakref

import pytest

from service.garbage import freeze_garbage, without_garbage_collection


class Node:
    """Something that can be part of a cycle."""

    def __init__(self) -> None:
        self.other: Node = self


def test_nothing_is_searched_inside_but_everything_afterwards() -> None:
    with without_garbage_collection():
        assert not gc.isenabled()
        kept = weakref.ref(Node())
    assert gc.isenabled()
    gc.collect()
    assert kept() is not None  # a cycle of that time
    later = weakref.ref(Node())
    gc.collect()
    assert later() is None


def test_garbage_of_before_does_not_stay() -> None:
    before = weakref.ref(Node())
    with without_garbage_collection():
        assert before() is None


def test_an_error_ends_it_and_off_stays_off() -> None:
    with pytest.raises(LookupError), without_garbage_collection():
        raise LookupError
    assert gc.isenabled()
    gc.disable()
    try:
        with without_garbage_collection():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_freeze_collects_and_then_searches_nothing_older() -> None:
    garbage = weakref.ref(Node())
    kept = Node()
    watched = weakref.ref(kept)
    freeze_garbage()
    assert garbage() is None
    del kept
    gc.collect()
    assert watched() is not None, "it was there at the freeze"
    gc.unfreeze()
    gc.collect()
    assert watched() is None
