"""Options of a group, made from the record that their values become: a default, and with it the type, stands there alone."""

from __future__ import annotations

from typing import Any

import msgspec
from oslo_config import cfg

from objects.base import Object

KINDS: dict[type, type[cfg.Opt]] = {bool: cfg.BoolOpt, int: cfg.IntOpt, float: cfg.FloatOpt, tuple: cfg.ListOpt, dict: cfg.DictOpt}
"""The class of an option by the type of its default; any other default is a text."""


class OptionMaker:
    """Makes options with the names and defaults of a record's fields."""

    def __init__(self, settings: type[Object]) -> None:
        self._defaults = {field.name: default_of(field) for field in msgspec.structs.fields(settings)}

    def __call__(self, name: str, text: str, kind: type[cfg.Opt] | None = None, **keywords: Any) -> cfg.Opt:
        """``text``: its help. ``kind``: a class of options with checks of its own. ``keywords``: what that class takes besides."""
        default = self._defaults[name]
        made = kind or KINDS.get(type(default), cfg.StrOpt)
        if isinstance(default, tuple):
            default = list(default)
        return made(name, default=default, help=text, **keywords)


def default_of(field: msgspec.structs.FieldInfo) -> Any:
    """None for a field without one."""
    if field.default_factory is not msgspec.NODEFAULT:
        return field.default_factory()
    return None if field.default is msgspec.NODEFAULT else field.default
