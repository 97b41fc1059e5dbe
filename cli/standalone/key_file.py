"""The keys of an all-in-one: a file of its state folder, made when it is first needed."""

from __future__ import annotations

import os
from pathlib import Path

from objects import errors
from service.vault import new_key

NAME = "secrets.key"
_HEAD = """\
# Keys that user data and admin passwords of this deployment are encrypted with until their servers are built.
# One a line: the first seals, all open. Without this file, what waits to be built cannot be.
"""


def read(folder: Path) -> list[str]:
    """The keys of a state folder; none where it has no file of them. Raises errors.Misconfigured."""
    try:
        text = (folder / NAME).read_text()
    except FileNotFoundError:
        return []
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise errors.Misconfigured(f"{folder / NAME} cannot be read: {reason}") from None
    return [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("#")]


def read_or_make(folder: Path) -> list[str]:
    """The same, with a new key in a file that nobody else may read where there was none. Whoever calls holds the folder."""
    keys = read(folder)
    if keys:
        return keys
    new_keys = [new_key()]
    fresh = folder / f"{NAME}.new"
    fresh.unlink(missing_ok=True)
    with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(_HEAD + new_keys[0] + "\n")
        file.flush()
        os.fsync(file.fileno())  # before anything is sealed with it
    fresh.replace(folder / NAME)
    return new_keys
