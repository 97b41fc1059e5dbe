"""Commands that only speak HTTP start fast: they import no database, no bus and no large HTTP client."""

from __future__ import annotations

import subprocess
import sys

from cli.app import COMMANDS, Superconductor
from cli.shared.http import HttpCommand

LIGHT = ("status", "top", "explain", "capacity", "hold ", "rebalance", "server ", "completion names")
"""How the names of the commands begin that only speak HTTP."""
HEAVY = ("sqlalchemy", "alembic", "oslo_db", "oslo_messaging", "oslo_config", "keystoneauth1", "requests", "numpy", "webob")
"""What takes longer to import than a command should take."""

LOADED = f"""
import sys
from cli.app import Superconductor
app = Superconductor()
app.options = app.parser.parse_args([])
for name in {{names}}:
    factory, _, _ = app.command_manager.find_command(name.split())
    factory(app, None).get_parser(name)
print(*sorted(set(sys.modules) & set({HEAVY})))
"""


def _light() -> list[str]:
    return [name for name, _, _ in COMMANDS if name.startswith(LIGHT) and not name.startswith("server group ")]


def test_http_commands_and_standalone_help_import_nothing_heavy() -> None:
    names = [*_light(), "standalone"]
    loaded = subprocess.run([sys.executable, "-c", LOADED.format(names=names)], capture_output=True, text=True, check=True)
    assert loaded.stdout.split() == []


def test_the_overview_imports_nothing_heavy() -> None:
    code = f"""
import sys
from cli.app import main
main(["--help"])
print(*set(sys.modules) & {{*{HEAVY}, "rich"}}, file=sys.stderr)
"""
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "dead-letter" in shown.stdout
    assert shown.stderr.split() == []


def test_every_command_that_speaks_http_is_among_them() -> None:
    manager = Superconductor().command_manager
    found = [name for name, _, _ in COMMANDS if issubclass(manager.find_command(name.split())[0], HttpCommand)]
    assert found == _light()
