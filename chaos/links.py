"""The connections that can be hit: a link for each level and server.

``api-bus`` and ``api-database`` are the API level's; ``cell1-bus`` and ``cell1-database`` are those of the cell's own processes;
``above-cell1-bus`` and ``above-cell1-database`` are the API level's ways into the cell. A level is both of its links.
"""

from __future__ import annotations

from deploy.local.shape import Shape

BUS = "bus"
DATABASE = "database"
API = "api"
ABOVE = "above-"


def list_levels(shape: Shape) -> tuple[str, ...]:
    """Both links of each can be hit at once."""
    cells = shape.cell_names()
    return (API, *cells, *(f"{ABOVE}{cell}" for cell in cells))


def links_of(shape: Shape, level: str | None = None) -> tuple[str, ...]:
    """The links of one level, or of all."""
    return tuple(f"{name}-{server}" for name in (list_levels(shape) if level is None else (level,)) for server in (BUS, DATABASE))


def links_hit(shape: Shape, target: str) -> tuple[str, ...]:
    """The links that a fault's target stands for."""
    return links_of(shape, target) if target in list_levels(shape) else (target,)


def level_of(target: str) -> str:
    """The level of a link, or of a level."""
    return target.removesuffix(f"-{BUS}").removesuffix(f"-{DATABASE}")
