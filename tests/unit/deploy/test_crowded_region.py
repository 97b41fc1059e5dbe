"""A region whose agents share processes: which commands it has, and what each of them forks."""

from __future__ import annotations

from pathlib import Path

import msgspec

from deploy.local.folder import Folder
from deploy.local.forked import CellHosts, Forks
from deploy.local.make import notes_of
from deploy.local.shape import Role, Shape
from deploy.local.templates import Access, write_cell, write_others

SHAPE = Shape(cells=3, conductors=2, agents=4, agents_per_process=6, apis=1, supers=1, schedulers=1)
ACCESS = Access(transport_url="rabbit://", database_url="mysql://")


def test_one_command_forks_conductors_and_one_agents() -> None:
    members = {member.name: member for member in SHAPE.list_members()}
    assert list(members) == ["cell-conductors", "scheduler-1", "super-conductor-1", "api-1", "agents"]
    assert members["cell-conductors"].forks == 6
    assert (members["agents"].role, members["agents"].forks) == (Role.COMPUTE, 2)
    assert not members["api-1"].forks


def test_every_host_has_one_process_with_cell_files(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    folder.make_folders()
    notes = notes_of(folder, SHAPE)
    for cell in SHAPE.cell_names():
        write_cell(folder, notes, cell, ACCESS, {})
    write_others(folder, notes)
    agents = msgspec.json.decode((folder.etc / "agents.json").read_bytes(), type=Forks).agents
    assert [[len(part.hosts) for part in process] for process in agents] == [[4, 2], [2, 4]]
    assert [host for process in agents for part in process for host in part.hosts] == [host.name for host in SHAPE.list_hosts()]
    assert agents[0][1] == CellHosts(files=("cell2-compute.conf", "cell2-hosts.conf"), hosts=("cell2-host1", "cell2-host2"))
    conductors = msgspec.json.decode((folder.etc / "cell-conductors.json").read_bytes(), type=Forks).conductors
    assert conductors == (("cell1.conf",),) * 2 + (("cell2.conf",),) * 2 + (("cell3.conf",),) * 2
    assert all((folder.etc / name).exists() for process in agents for part in process for name in part.files)
    assert "agent_users = shared" in (folder.etc / "cell1.conf").read_text()


def test_what_is_forked_is_not_monitored(tmp_path: Path) -> None:
    assert set(notes_of(Folder(tmp_path), SHAPE).monitored_ports()) == {"scheduler-1", "super-conductor-1", "api-1"}
