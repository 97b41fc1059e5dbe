"""What benchmark scripts share: their parser, and how they end where no region can be had."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from ci.stages import ACCEPT
from deploy.local.processes import clean_environment
from deploy.servers import Unavailable


def parser_of(doc: str | None, smoke: str) -> argparse.ArgumentParser:
    """A parser with ``--smoke``, the short form that ``make test STAGES=bench-smoke`` runs; ``smoke`` says what it leaves out."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--smoke", action="store_true", help=smoke)
    return parser


@contextmanager
def needs_region(*, smoke: bool) -> Iterator[None]:
    """Measure a region. Its processes read their files only, so options in the environment go.

    The script ends where no region can be had: well in its short form if that is accepted, as by ``make test``.
    """
    for name in os.environ.keys() - clean_environment().keys():
        del os.environ[name]
    try:
        yield
    except Unavailable as error:
        print(f"No region can be had here: {error}")
        sys.exit(0 if smoke and any(os.environ.get(name) for name in ACCEPT) else 1)
