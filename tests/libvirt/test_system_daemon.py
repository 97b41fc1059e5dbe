"""A libvirtd in system mode of a test's own: QEMU runs as another user, which gets the disk while its guest runs."""

from __future__ import annotations

import os
import pwd
from pathlib import Path

import pytest

from compute.libvirt import binding
from service.periodic import wait_until
from tests.support.libvirt_host import spark_domain
from tests.support.system_daemon import QEMU_USER, system_daemon, why_no_system_daemon

PATIENCE_S = 90.0


@pytest.mark.skipif(bool(why_no_system_daemon()), reason=why_no_system_daemon())
def test_qemu_runs_as_its_user() -> None:
    with system_daemon() as daemon:
        place = daemon.folder / "guest"
        place.mkdir(mode=0o711)
        connection = binding.load_libvirt().open(daemon.uri)
        connection.defineXML(spark_domain("spark", place)).create()

        assert wait_until(lambda: "spark: boot 0001" in (place / "spark.log").read_text(), PATIENCE_S)
        [pid] = daemon.guest_pids().values()
        user = pwd.getpwnam(QEMU_USER).pw_uid
        assert Path(f"/proc/{pid}").stat().st_uid == user
        assert os.stat(place / "spark.raw").st_uid == user
        connection.close()
    assert not daemon.folder.exists()
