"""Where the processes of a local region are monitored: each on a port of its own, also where the region is older than that."""

from __future__ import annotations

from pathlib import Path

import msgspec

from deploy.local.folder import Folder
from deploy.local.make import notes_of
from deploy.local.shape import Shape
from deploy.local.templates import write_others


def test_every_process_has_its_port_and_file(tmp_path: Path) -> None:
    shape = Shape(proxies=2)
    notes = notes_of(Folder(tmp_path), shape)
    names = [member.name for member in shape.list_members()]
    assert {"console-proxy-1", "console-proxy-2"} < set(names)
    assert notes.serial_url() == f"ws://127.0.0.1:{notes.console_ports[0]}/"
    ports = [notes.broker_port, notes.database_port, *notes.api_ports, *notes.console_ports, *notes.monitored_ports().values()]
    assert list(notes.monitored_ports()) == names
    assert len(set(ports)) == len(ports)
    assert [member.files[-1] for member in shape.list_members()] == [f"{name}.conf" for name in names]


def test_an_older_region_gains_only_its_missing_files(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    folder.make_folders()
    old = msgspec.structs.replace(notes_of(folder, Shape()), monitoring_ports=(), made=True)
    folder.write_notes(old)
    (folder.etc / "scheduler-1.conf").write_text("mine")
    write_others(folder, folder.read_notes())
    assert (folder.etc / "scheduler-1.conf").read_text() == "mine"
    assert (folder.etc / "cell1-conductor-2.conf").read_text().endswith("[monitoring]\nport = 0\n")
    assert not (folder.etc / "api-1.conf").exists()
    assert folder.read_notes().monitored_ports() == {}
