"""Commands on hosts, services and instances told what cannot be: one line that says what to do, and nothing half done."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from cells.discovery import discover_hosts
from db.api.deployment import host_mappings
from db.cell import services
from db.sql.engine import Database
from objects.cell import HostMapping
from tests.support.cell_databases import Cells, closed_port
from tests.support.commands import Shell
from tests.support.databases import sqlite_url

AGENT = "superconductor-compute"


@pytest.fixture(scope="module")
def cells(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cells]:
    """One cell that answers, with a host that is up; one that does not, with a host; a host that never reported."""
    cells = Cells(tmp_path_factory.mktemp("cells"))
    cells.add("cell0", cell0=True)
    east = cells.add("east")
    cells.report("east", "e1")
    dead = cells.add_unreachable("dead", f"mysql+pymysql://sc:secret@127.0.0.1:{closed_port()}/cell")
    homes = {"e1": east.uuid, "ghost": east.uuid, "d1": dead.uuid}
    cells.api.write(host_mappings.add_mappings, [HostMapping(host=host, cell_uuid=uuid) for host, uuid in homes.items()], 0.0)
    yield cells
    cells.api.dispose_connections()


NOBODY = "Host 'nobody' is not mapped to a cell: run 'superconductor host discover'."
NOWHERE = "No cell is called 'nowhere'; there are: cell0, dead, east."
DEAD = "cell 'dead': Database mysql+pymysql://sc:***@"

MATRIX = [
    # -- hosts and cells that are not there
    ("host enable nobody", 1, NOBODY),
    ("host disable nobody", 1, NOBODY),
    ("host set nobody --down", 1, NOBODY),
    ("host set nobody --cpu-ratio 2", 1, NOBODY),
    ("host accept nobody", 1, NOBODY),
    ("host accept ghost", 1, "Host 'ghost' has reported no size that can be read: its agent does so when it runs"),
    ("host set ghost --ram-ratio default", 1, "Host 'ghost' has reported no size that can be read"),
    ("host delete nobody", 1, NOBODY),
    ("host move nobody --to east", 1, NOBODY),
    ("host show nobody", 1, "There is no host 'nobody' in the cells that answer (dead did not): see 'superconductor host list'"),
    ("host disable ghost", 1, "Service 'superconductor-compute' on host 'ghost' not found"),
    ("host list --cell nowhere", 3, NOWHERE),
    ("host move e1 --to nowhere", 3, NOWHERE),
    ("host move e1 --to cell0", 1, "cell0 has no hosts: name another cell with --to."),
    ("host move e1 --to dead", 1, "Host 'e1' is up: stop its agent first"),
    ("host delete e1", 1, "Host 'e1' is up: stop its agent first"),
    ("service list --cell nowhere", 3, NOWHERE),
    ("guest list --cell nowhere", 3, NOWHERE),
    ("dead-letter list --cell nowhere", 3, NOWHERE),
    ("operation list --cell nowhere", 3, NOWHERE),
    ("db restored --cell nowhere", 3, NOWHERE),
    ("db purge --cell nowhere --days 1", 3, NOWHERE),
    ("instance map nowhere -q", 3, NOWHERE),
    # -- a cell that is down
    ("host enable d1", 1, DEAD),
    ("host set d1 --up", 1, DEAD),
    ("host set d1 --disk-ratio 2", 1, DEAD),
    ("host accept d1", 1, DEAD),
    ("host delete d1", 1, DEAD),
    ("host move d1 --to east", 1, DEAD),
    ("service list --cell dead -f value", 1, DEAD),
    ("instance map dead -q", 3, DEAD),
    # -- flags
    ("host set e1", 1, "--down, --up or a ratio is needed"),
    ("host set e1 --cpu-ratio=much", 2, "'much' is neither a number from 0 to 1024 nor 'default'"),
    ("host set e1 --ram-ratio=-1", 2, "'-1' is neither a number from 0 to 1024 nor 'default'"),
    ("host set e1 --disk-ratio=nan", 2, "'nan' is neither a number from 0 to 1024 nor 'default'"),
    ("host set e1 --cpu-ratio=1e9", 2, "'1e9' is neither a number from 0 to 1024 nor 'default'"),
    ("host set e1 --cpu-ratio=", 2, "'' is neither a number from 0 to 1024 nor 'default'"),
    ("host accept", 2, "the following arguments are required: HOST"),
    ("host set e1 --down --up", 2, "not allowed with argument"),
    ("host move e1", 2, "the following arguments are required: --to"),
    ("host show", 2, "the following arguments are required: HOST"),
    ("host list --down-after 0", 2, "'0' is not a whole number from 1 to"),
    ("host disable e1 --reason ''", 2, "is not a name of 1 to 255 printable characters"),
    ("service list --binary nova-compute", 2, "invalid choice: 'nova-compute'"),
    ("service list --down-after soon", 2, "'soon' is not a whole number from 1 to"),
    ("instance map east --max-count -1", 2, "'-1' is not a whole number from 1 to"),
    ("cell list -c ID -c name", 1, "There is no column 'ID': there are Name, UUID, State, Hosts."),
    ("cell list --sort-column size", 1, "There is no column 'size': there are Name, UUID, State, Hosts."),
    ("cell show east -c ID", 1, "There is no column 'ID': there are "),
    ("instance map", 2, "the following arguments are required: CELL"),
    ("instance verify", 2, "the following arguments are required: UUID"),
]


@pytest.mark.parametrize(("line", "status", "words"), MATRIX, ids=[line for line, *_ in MATRIX])
def test_one_line_says_what_is_wrong(cells: Cells, shell: Shell, line: str, status: int, words: str) -> None:
    before = cells.api.read(host_mappings.list_all)
    told = shell.refused(line, status)
    assert words in told
    assert "secret" not in told
    assert cells.api.read(host_mappings.list_all) == before


def test_a_host_in_a_dead_cell_is_shown(shell: Shell) -> None:
    outcome = shell("host show d1 -f value -c Cell -c State")
    assert (outcome.status, outcome.out) == (0, "dead\nunknown\n")
    assert outcome.err.count("\n") == 1
    assert outcome.err.endswith("its records of the host are not shown\n")


def test_concurrent_operators_do_not_conflict(tmp_path: Path) -> None:
    """Discovery, and what is said of a host: whoever comes last is right, and each change is told once."""
    cells = Cells(tmp_path)
    cells.add("east")
    cells.report("east", "e1", "e2", "e3")
    database = Database(sqlite_url(tmp_path, "east"))
    changed: list[bool] = []
    barrier = threading.Barrier(2)

    def operate() -> None:
        with cells.registry() as registry:
            barrier.wait(10)
            assert discover_hosts(registry, cells.api).conflicts == ()
            changed.append(database.write(services.set_disabled, "e1", AGENT, True, "twice", 1.0))

    threads = [threading.Thread(target=operate) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(changed) == [False, True]
    assert {mapping.host for mapping in cells.api.read(host_mappings.list_all)} == {"e1", "e2", "e3"}
