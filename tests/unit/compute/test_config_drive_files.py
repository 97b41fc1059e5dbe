"""The files of a config drive, and how they are written."""

from __future__ import annotations

import base64
import io
import json
import stat
from pathlib import Path

import pycdlib
import pytest

from compute import config_drive
from compute.config_drive import config_drive_files, network_data, read_config_drive, rebuilt_drive_files, write_config_drive
from objects import errors
from objects.spec import BootSecrets, InjectedFile
from tests.support.drives import KEY, NASTY, PORTS, SECRETS, USER_DATA, a_guest, a_spec


def test_metadata_has_what_was_asked_and_the_secrets() -> None:
    files = config_drive_files(a_guest(), a_spec(), SECRETS, launch_index=2)
    found = json.loads(files["meta_data.json"])
    assert len(base64.b64decode(found.pop("random_seed"))) == config_drive.RANDOM_SEED_BYTES
    assert found == {
        "uuid": a_guest().uuid,
        "name": NASTY,
        "hostname": "a-b",
        "launch_index": 2,
        "availability_zone": NASTY,
        "project_id": "p",
        "meta": {NASTY: NASTY},
        "public_keys": {NASTY: KEY},
        "keys": [{"name": NASTY, "type": "ssh", "data": KEY}],
        "devices": [{"type": "nic", "bus": "none", "address": "none", "mac": PORTS[0].mac, "tags": [NASTY]}],
        "admin_pass": SECRETS.admin_pass,
    }
    assert files["user_data"] == USER_DATA
    assert json.loads(files["vendor_data.json"]) == {}


def test_injected_files_are_beside_the_versions() -> None:
    secrets = BootSecrets(files=(InjectedFile(path="/etc/motd", contents="aGVsbG8="), InjectedFile(path="/b", contents="")))
    files = config_drive_files(a_guest(), a_spec(), secrets)
    assert (files["content/0000"], files["content/0001"]) == (b"hello", b"")
    listed = json.loads(files["meta_data.json"])["files"]
    assert listed == [{"path": "/etc/motd", "content_path": "/content/0000"}, {"path": "/b", "content_path": "/content/0001"}]


def test_a_guest_sees_the_uuid_of_its_server() -> None:
    files = config_drive_files(a_guest(server_uuid="s"), a_spec(), None)
    assert json.loads(files["meta_data.json"])["uuid"] == "s"


def test_a_recreated_drive_says_so_without_secrets() -> None:
    files = config_drive_files(a_guest(), a_spec(), None, remade=True)
    found = json.loads(files["meta_data.json"])
    assert found["superconductor"] == {"remade_without_secrets": True}
    assert "admin_pass" not in found
    assert "user_data" not in files
    assert "superconductor" not in json.loads(config_drive_files(a_guest(), a_spec(), SECRETS)["meta_data.json"])


def test_absent_keys_and_ports_are_not_mentioned() -> None:
    files = config_drive_files(a_guest(), a_spec(public_key=None, ports=()), None)
    found = json.loads(files["meta_data.json"])
    assert {"public_keys", "keys"}.isdisjoint(found)
    assert found["devices"] == []
    assert sorted(files) == ["meta_data.json", "vendor_data.json"]


def test_a_certificate_is_told_from_a_key() -> None:
    files = config_drive_files(a_guest(), a_spec(public_key="-----BEGIN CERTIFICATE-----\n"), None)
    assert json.loads(files["meta_data.json"])["keys"][0]["type"] == "x509"


def test_networks_have_addresses_routes_and_name_servers() -> None:
    data = network_data(PORTS)
    assert data["links"][0] == {"id": "nic0", "type": "phy", "ethernet_mac_address": "fa:16:3e:00:00:01", "mtu": 1450}
    first, second, inner, dhcp = data["networks"]
    assert first == {
        "id": "network0",
        "link": "nic0",
        "network_id": PORTS[0].network_id,
        "type": "ipv4",
        "ip_address": "192.0.2.5",
        "netmask": "255.255.255.0",
        "routes": [{"network": "0.0.0.0", "netmask": "0.0.0.0", "gateway": "192.0.2.1"}],
        "services": [{"type": "dns", "address": "192.0.2.2"}, {"type": "dns", "address": "192.0.2.3"}],
    }
    assert (second["type"], second["netmask"]) == ("ipv6", "ffff:ffff:ffff:ffff::")
    assert second["routes"] == [{"network": "::", "netmask": "::", "gateway": "2001:db8::1"}]
    assert (inner["link"], inner["netmask"], inner["routes"]) == ("nic1", "255.255.255.128", [])
    assert (dhcp["link"], dhcp["type"]) == ("nic2", "ipv4_dhcp")
    assert [service["address"] for service in data["services"]] == ["192.0.2.2", "192.0.2.3", "2001:db8::2"]


@pytest.mark.parametrize(
    ("secrets", "said"),
    [
        (BootSecrets(user_data="a"), "not base64"),
        (BootSecrets(user_data=base64.b64encode(bytes(config_drive.DRIVE_LIMIT_BYTES)).decode()), "give less user data"),
    ],
)
def test_oversized_user_data_ends_the_build(secrets: BootSecrets, said: str) -> None:
    with pytest.raises(errors.BuildAborted, match=said):
        config_drive_files(a_guest(), a_spec(), secrets)


def test_the_image_is_private_and_replaced_atomically(tmp_path: Path) -> None:
    path = tmp_path / "config.iso"
    path.with_name("config.iso.part").symlink_to(tmp_path / "elsewhere")
    for secrets in (None, SECRETS):
        write_config_drive(path, config_drive_files(a_guest(), a_spec(), secrets))
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert list(tmp_path.iterdir()) == [path]
    assert path.stat().st_size < 2 * config_drive.DRIVE_LIMIT_BYTES


def test_a_folder_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(errors.BuildFailed, match=r"cannot be written to .*/none/c.iso: No such file"):
        write_config_drive(tmp_path / "none" / "c.iso", {"meta_data.json": b"{}"})


def test_names_of_files_are_kept_in_both_trees(tmp_path: Path) -> None:
    """Rock Ridge, which Linux reads, and Joliet, which Windows reads."""
    path = tmp_path / "config.iso"
    files = config_drive_files(a_guest(), a_spec(), SECRETS)
    write_config_drive(path, files)
    disc = pycdlib.PyCdlib()
    disc.open(str(path))
    try:
        assert disc.pvd.volume_identifier.decode().strip() == config_drive.LABEL
        for version in config_drive.VERSIONS:
            for name, content in files.items():
                for tree in ("rr_path", "joliet_path"):
                    out = io.BytesIO()
                    disc.get_file_from_iso_fp(out, **{tree: f"/openstack/{version}/{name}"})
                    assert out.getvalue() == content
    finally:
        disc.close()


class TestRebuild:
    """The drive of a guest that is rebuilt, after its old one at ``path``."""

    OTHER = BootSecrets(user_data="b3RoZXI=", admin_pass="another", files=(InjectedFile(path="/b", contents="Ym9keQ=="),))

    def files(self, path: Path, secrets: BootSecrets | None, *, removes: bool = False, had: bool = True) -> dict[str, bytes]:
        bare = a_spec(metadata={}, key_name="new", public_key="ssh-rsa new")  # what a driver keeps, with the key of the rebuild
        return rebuilt_drive_files(path, a_guest(), bare, secrets, removes_user_data=removes, had_drive=had)

    def metadata(self, files: dict[str, bytes]) -> dict[str, object]:
        found: dict[str, object] = json.loads(files["meta_data.json"])
        return found

    @pytest.fixture
    def path(self, tmp_path: Path) -> Path:
        path = tmp_path / "config.iso"
        secrets = BootSecrets(user_data=SECRETS.user_data, admin_pass="old", files=(InjectedFile(path="/a", contents="YQ=="),))
        write_config_drive(path, config_drive_files(a_guest(), a_spec(), secrets, launch_index=3))
        return path

    def test_a_drive_is_read_as_it_was_written(self, tmp_path: Path) -> None:
        files = config_drive_files(a_guest(), a_spec(), SECRETS)
        write_config_drive(tmp_path / "config.iso", files)
        assert read_config_drive(tmp_path / "config.iso") == files

    def test_user_data_and_metadata_stay_through_renewal(self, path: Path) -> None:
        files = self.files(path, BootSecrets(admin_pass="another"))
        found = self.metadata(files)
        assert (files["user_data"], found["meta"], found["launch_index"]) == (USER_DATA, {NASTY: NASTY}, 3)
        assert (found["admin_pass"], found["public_keys"]) == ("another", {"new": "ssh-rsa new"})
        assert "files" not in found
        assert not any(name.startswith("content") for name in files)
        assert "superconductor" not in found

    def test_what_is_given_replaces_what_there_was(self, path: Path) -> None:
        files = self.files(path, self.OTHER)
        assert (files["user_data"], files["content/0000"]) == (b"other", b"body")
        assert self.metadata(files)["files"] == [{"path": "/b", "content_path": "/content/0000"}]
        assert "user_data" not in self.files(path, None, removes=True)
        assert "admin_pass" not in self.metadata(self.files(path, None))

    def test_lost_user_data_is_named_as_lost(self, path: Path) -> None:
        """A restart of the host has removed the drive. The guest may have been started since, which made another one."""
        lost = {"remade_without_secrets": True}
        path.unlink()
        assert self.metadata(self.files(path, None))["superconductor"] == lost
        write_config_drive(path, config_drive_files(a_guest(), a_spec(), None, remade=True))
        assert self.metadata(self.files(path, BootSecrets(admin_pass="a")))["superconductor"] == lost
        assert "superconductor" not in self.metadata(self.files(path, self.OTHER))
        assert "superconductor" not in self.metadata(self.files(path, None, removes=True))

    def test_a_guest_without_a_drive_gets_its_first(self, path: Path) -> None:
        path.unlink()
        files = self.files(path, self.OTHER, had=False)
        assert files["user_data"] == b"other"
        assert "superconductor" not in self.metadata(files) | self.metadata(self.files(path, None, had=False))

    def test_a_drive_that_cannot_be_read_is_named(self, path: Path) -> None:
        path.write_bytes(b"torn")
        with pytest.raises(errors.BuildFailed, match="cannot be read"):
            self.files(path, None)
