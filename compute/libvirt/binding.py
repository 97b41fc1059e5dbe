"""The one place that imports libvirt's Python binding, which is a package of its own and may be missing."""

from __future__ import annotations

from typing import Any

from objects import errors

MISSING = (
    "libvirt-python is not installed: 'pip install libvirt-python', which needs Debian's packages libvirt-dev, pkg-config and gcc;"
    " or Debian's python3-libvirt for the Python of the distribution"
)


def load_libvirt() -> Any:
    """The module ``libvirt``, which prints nothing. Raises ``errors.Misconfigured`` that says what to install."""
    try:
        import libvirt

        libvirt.registerErrorHandler(_ignore_error, None)  # it would print each error to stderr, also those that are expected
    except (ImportError, AttributeError):  # a folder of this name on the path is taken for an empty module
        raise errors.Misconfigured(MISSING) from None
    return libvirt


def _ignore_error(context: object, error: object) -> None:
    pass
