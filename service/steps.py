"""Log one line for each step of a server, in the same form everywhere, so that its uuid or request ID finds its whole history.

    2026-01-31 12:00:00.000 4711 INFO conductor.stage [req-...] [instance: 9f0c...] staged cell=cell1 host=h7 attempt=1

With ``use_json`` the fields are keys of ``extra``. No line is made while INFO is disabled.
"""

from __future__ import annotations

import logging
import sys


def log_step(
    log: logging.Logger, event: str, instance: str, request_id: str | None = None, *, note: str = "", **fields: object
) -> None:
    """Log that ``event`` happened to ``instance``. ``request_id``: if it differs from the one bound to the thread.

    ``fields``: ``cell``, ``host`` and ``attempt`` if known, and other short values; None is left out. ``note``: a sentence for
    people.
    """
    if not log.isEnabledFor(logging.INFO):
        return
    text = event
    known: dict[str, object] = {"instance": instance, "step": event}
    for name, value in fields.items():
        if value is not None:
            text = f"{text} {name}={value}"
            known[name] = value
    extra: dict[str, object] = {"instance_uuid": instance, "extra": known}
    if request_id:
        extra["request_id"] = request_id
    caller = sys._getframe(1)  # the caller; a logger would walk the stack to find it at each line
    code = caller.f_code
    line = f"{text}: {note}" if note else text
    log.handle(log.makeRecord(log.name, logging.INFO, code.co_filename, caller.f_lineno, "%s", (line,), None, code.co_name, extra))
