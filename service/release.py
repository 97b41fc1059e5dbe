"""The version of the software."""

from __future__ import annotations

import functools
from importlib import metadata

DISTRIBUTION = "superconductor-cloud"
"""The name on package indexes: another project has "superconductor" on PyPI (docs/decisions/0075)."""


@functools.cache
def installed_release() -> str:
    """The distribution's version; "unknown" in a checkout that was never installed."""
    try:
        return metadata.version(DISTRIBUTION)
    except metadata.PackageNotFoundError:
        return "unknown"
