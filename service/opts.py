"""Options that no role owns: where the databases and the bus of a process are. No process needs all three."""

from __future__ import annotations

from oslo_config import cfg

from service.config import Listing

BUS = cfg.StrOpt(
    "transport_url",
    secret=True,
    sample_default="rabbit://user:password@broker:5672/vhost",
    help="URL of the bus this process serves on: the API level's for the API, the super conductor and the scheduler; its cell's "
    "for a cell conductor and an agent. embedded://NAME/ is a bus inside one process. Options of the RabbitMQ driver may follow as "
    "a query, such as ?rabbit_quorum_queue=true.",
)

API_DATABASE = cfg.StrOpt(
    "connection",
    secret=True,
    sample_default="mysql+pymysql://user:password@server/api",
    help="URL of the API database. Cell conductors and agents must not have it.",
)

CELL_DATABASE = cfg.StrOpt(
    "connection",
    secret=True,
    sample_default="mysql+pymysql://user:password@server/cell",
    help="URL of the database of the cell that a cell conductor serves. Nobody else needs it: the API level finds the databases of "
    "all cells in its cell mappings.",
)


def list_opts() -> Listing:
    """For the generator of the sample configuration, and for whoever loads a configuration."""
    return [(None, [BUS]), ("api_database", [API_DATABASE]), ("cell_database", [CELL_DATABASE])]
