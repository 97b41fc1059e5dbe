"""Make a new region: servers, databases, configuration files, cells, flavors."""

from __future__ import annotations

import msgspec

from cli.standalone.starter import FLAVORS
from deploy import ports
from deploy.local import templates
from deploy.local.folder import Folder, Notes
from deploy.local.region import Region
from deploy.local.shape import Shape
from deploy.local.templates import Access
from objects import errors


def notes_of(folder: Folder, shape: Shape | None) -> Notes:
    """Those of the region that is there, else those of a new one of this shape (None: the usual one).

    Raises errors.Conflict where a region of another shape is there.
    """
    try:
        notes = folder.read_notes()
    except errors.NotFound:
        return _new_notes(shape or Shape())
    if shape is not None and notes.shape != shape:
        if notes.made:
            raise errors.Conflict(f"{folder.path} holds a region of another shape: give no options for it, or another folder.")
        return _new_notes(shape)
    return notes


def make_region(region: Region) -> None:
    """Make everything anew, as nothing that was begun before is worth keeping. The servers run then."""
    folder, notes, backing, commands = region.folder, region.notes, region.backing, region.commands
    backing.stop()
    folder.clear_leftovers()
    folder.make_folders()
    folder.write_notes(notes)
    backing.start(region.say)
    cells = notes.shape.cell_names()
    buses = backing.make_hosts(("api", *cells))
    databases = backing.make_databases(("api", "cell0", *cells))
    access = Access(transport_url=buses["api"], database_url=databases["api"], keys=commands.new_key())
    templates.write_api(folder, notes, access)
    region.say(f"wrote the configuration in {folder.etc}")
    commands.run("db", "sync", "--api")
    commands.run("cell", "create", "cell0", "--cell0", "--database-connection", databases["cell0"])
    for cell in cells:
        connections = ("--database-connection", databases[cell], "--transport-url", buses[cell])
        commands.run("cell", "create", cell, *connections)
        access = Access(transport_url=buses[cell], database_url=databases[cell], keys=commands.key_of(cell))
        hosts = [host.name for host in notes.shape.list_hosts() if host.cell == cell and not notes.shape.is_crowded]
        templates.write_cell(folder, notes, cell, access, backing.make_agents(buses[cell], hosts))
    templates.write_others(folder, notes)
    if not notes.shape.demo:  # which has its own
        for name, vcpus, ram, disk in FLAVORS:
            commands.run("flavor", "create", name, "--vcpus", str(vcpus), "--ram", str(ram), "--disk", str(disk))
    region.notes = msgspec.structs.replace(notes, made=True)
    folder.write_notes(region.notes)


def _new_notes(shape: Shape) -> Notes:
    return Notes(
        shape=shape,
        broker_port=ports.free_port(),
        database_port=ports.free_port(),
        api_ports=tuple(ports.free_port() for _ in range(shape.apis)),
        monitoring_ports=tuple(ports.free_port() for member in shape.list_members() if not member.forks),
        console_ports=tuple(ports.free_port() for _ in range(shape.proxies)),
    )
