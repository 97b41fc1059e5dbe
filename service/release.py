"""The version of the software."""

from __future__ import annotations

import functools
from importlib import metadata

DISTRIBUTION = "superconductor"


@functools.cache
def release() -> str:
    """The distribution's version; "unknown" in a checkout that was never installed."""
    try:
        return metadata.version(DISTRIBUTION)
    except metadata.PackageNotFoundError:
        return "unknown"
