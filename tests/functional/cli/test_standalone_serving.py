"""``superconductor standalone`` takes the options of the API as a process of the API does."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests

from cli.app import main
from cli.standalone.serving import api_settings
from tests.support.commands import standalone
from tests.support.keystone import PASSWORD, Keystone
from tests.support.region import IMAGE

TOKENS: dict[str, tuple[str | None, tuple[str, ...]]] = {"member": ("p1", ("member", "reader")), "reader": ("p1", ("reader",))}
LOGIN = (
    *("auth_type = password", "username = superconductor", "user_domain_id = default"),
    *("project_name = service", "project_domain_id = default"),
)


@pytest.fixture
def identity() -> Iterator[Keystone]:
    keystone = Keystone(TOKENS)
    yield keystone
    keystone.close()


def file_of(folder: Path, *lines: str) -> str:
    path = folder / "api.conf"
    path.write_text("\n".join(lines))
    return str(path)


def with_keystone(folder: Path, url: str, *more: str) -> str:
    section = ("[keystone_authtoken]", f"www_authenticate_uri = {url}", f"auth_url = {url}", f"password = {PASSWORD}", *LOGIN)
    return file_of(folder, "[api]", "auth_strategy = keystone", *section, *more)


def options(**given: object) -> argparse.Namespace:
    return argparse.Namespace(**{"host": None, "port": None, "noauth_anywhere": False, "boot": None} | given)


def test_callers_have_service_tokens_and_file_quotas(tmp_path: Path, identity: Keystone) -> None:
    file = with_keystone(tmp_path, identity.url, "[quota]", "instances = 1")
    with requests.Session() as http, standalone(tmp_path / "state", file) as endpoint:
        http.trust_env = False

        def status(method: str, path: str, token: str | None, body: dict[str, dict[str, str]] | None = None) -> int:
            headers = {"X-Auth-Token": token} if token else {}
            return http.request(method, f"{endpoint}{path}", headers=headers, json=body).status_code

        assert status("GET", "", None) == 200
        assert status("GET", "/servers", None) == 401
        assert status("GET", "/servers", "unknown") == 401
        assert status("GET", "/servers", "reader") == 200
        flavor = http.get(f"{endpoint}/flavors", headers={"X-Auth-Token": "reader"}).json()["flavors"][0]["id"]
        boot = {"server": {"name": "one", "flavorRef": flavor, "imageRef": IMAGE}}
        assert status("POST", "/servers", "reader", boot) == 403
        assert status("POST", "/servers", "member", boot) == 202
        assert status("POST", "/servers", "member", boot) == 403, "its quota is one server"


def test_policy_rules_stand_beside_the_file(tmp_path: Path) -> None:
    (tmp_path / "policy.yaml").write_text('"os_compute_api:servers:index": "!"\n')
    file = file_of(tmp_path, "[api]", "max_limit = 7")
    assert api_settings([f"--config-file={file}"], options())[0].policy_files == (str(tmp_path / "policy.yaml"),)
    assert api_settings([f"--config-file={file}"], options())[0].max_limit == 7


def test_only_a_named_policy_file_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / ".superconductor"
    home.mkdir()
    (home / "policy.yaml").write_text("{}\n")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert api_settings([], options())[0].policy_files == ()
    monkeypatch.setenv("OS_OSLO_POLICY__POLICY_FILE", str(home / "policy.yaml"))
    assert api_settings([], options())[0].policy_files == (str(home / "policy.yaml"),)


def test_the_command_line_is_stronger_than_the_file(tmp_path: Path) -> None:
    arguments = [f"--config-file={file_of(tmp_path, '[api]', 'host = 127.0.0.2', 'port = 9')}"]
    settings, guard = api_settings(arguments, options())
    assert (settings.host, settings.port, guard) == ("127.0.0.2", 9, None)
    settings, _ = api_settings(arguments, options(host="127.0.0.3", port=0))
    assert (settings.host, settings.port) == ("127.0.0.3", 0)


@pytest.mark.parametrize(
    ("lines", "words", "said"),
    [
        (["auth_strategy = keystone"], [], "[keystone_authtoken] www_authenticate_uri: say where clients get their tokens"),
        (["auth_strategy = keystone"], ["--noauth-anywhere"], "--noauth-anywhere is for [api] auth_strategy = noauth"),
        (["auth_strategy = keystone"], ["--driver", "libvirt", "--boot", "a"], "--boot is for [api] auth_strategy = noauth"),
        (["workers = 2"], [], "[api] workers: standalone is one process"),
        (["[oslo_policy]", "policy_file = away.yaml"], [], "policy_file: away.yaml cannot be found"),
    ],
)
def test_impossible_options_are_refused_without_side_effects(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], lines: list[str], words: list[str], said: str
) -> None:
    file = file_of(tmp_path, "[api]", *lines)
    assert main(["--config-file", file, "standalone", "--state", str(tmp_path / "state"), "--port", "0", *words]) != 0
    assert said in capsys.readouterr().err
    assert not (tmp_path / "state").exists()
