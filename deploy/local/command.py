"""The commands: up, down, status, restart, demo."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from cli.shared.base import at_least
from deploy.local import demo, status
from deploy.local.backing import BROKERS, DATABASES
from deploy.local.folder import Folder, Notes
from deploy.local.make import notes_of
from deploy.local.processes import clean_environment
from deploy.local.region import Region
from deploy.local.shape import Shape
from deploy.local.start import START_TIMEOUT_S, Start
from deploy.local.stop import stop
from deploy.servers import Unavailable
from objects import errors
from objects.mask import mask_url

NUMBERS = {
    "cells": "cells",
    "apis": "APIs",
    "proxies": "console proxies",
    "supers": "super conductors",
    "schedulers": "schedulers",
    "conductors": "conductors in each cell",
    "agents": "agents in each cell",
    "agents_per_process": "agents that share a process; above 1, one command forks all agents and one all cell conductors",
}
EXIT_INTERRUPTED = 130
EXIT_BROKEN_PIPE = 141


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; return its exit status."""
    arguments = _build_parser().parse_args(argv)
    for name in os.environ.keys() - clean_environment().keys():  # a region reads its files only
        del os.environ[name]
    try:
        return int(arguments.act(arguments))
    except (errors.SuperconductorError, Unavailable) as error:
        print(f"region: {mask_url(str(error))}", file=sys.stderr)
        return 1
    except BrokenPipeError:  # whoever read the output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes it at the end
        return EXIT_BROKEN_PIPE
    except KeyboardInterrupt:
        print("region: interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED


def _build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m deploy.local", description="A region on this machine, in one folder.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    up = commands.add_parser("up", help="start the region in a folder, making it if it is new")
    up.add_argument("folder", type=Path, metavar="DIR")
    _add_shape(up)
    up.add_argument(
        "--patience", type=float, default=START_TIMEOUT_S, metavar="SECONDS", help="limit for the start (default: %(default)g)"
    )
    up.set_defaults(act=_run_up)

    down = commands.add_parser("down", help="stop it; its data stays")
    down.add_argument("folder", type=Path, metavar="DIR")
    down.set_defaults(act=_run_down)

    look = commands.add_parser("status", help="show its processes; exit status 0 if all of them run")
    look.add_argument("folder", type=Path, metavar="DIR")
    look.set_defaults(act=_run_status)

    restart = commands.add_parser("restart", help="stop and start single processes, one after the other")
    restart.add_argument("folder", type=Path, metavar="DIR")
    restart.add_argument("names", nargs="+", metavar="NAME", help="as 'status' shows them: api-1, cell1-host3...")
    restart.set_defaults(act=_run_restart)

    show = commands.add_parser("demo", help="run the demo's workload against a region, and check every outcome")
    show.add_argument("--state", type=Path, metavar="DIR", help="folder of the region, kept and reused (default: a temporary one)")
    _add_shape(show)
    show.set_defaults(act=_run_demo)
    return parser


def _add_shape(parser: argparse.ArgumentParser) -> None:
    usual = Shape()
    for name, meaning in NUMBERS.items():
        text = f"{meaning} (default: {getattr(usual, name)})"
        parser.add_argument(f"--{name.replace('_', '-')}", type=lambda text: at_least(1, text), metavar="N", help=text)
    parser.add_argument("--database", choices=sorted(DATABASES), help=f"default: {usual.database}")
    parser.add_argument("--broker", choices=sorted(BROKERS), help=f"default: {usual.broker}")


def _shape_options(arguments: argparse.Namespace) -> dict[str, Any]:
    """What the options ask for."""
    return {name: value for name in (*NUMBERS, "database", "broker") if (value := getattr(arguments, name)) is not None}


def _run_up(arguments: argparse.Namespace) -> int:
    folder = Folder(arguments.folder)
    with folder.hold_lock():
        options = _shape_options(arguments)
        region = Region(folder, notes_of(folder, Shape(**options) if options else None), _say_line)
        Start(region, arguments.patience).run()
    _explain_use(folder, region.notes)
    return 0


def _run_down(arguments: argparse.Namespace) -> int:
    folder = Folder(arguments.folder)
    region = Region(folder, folder.read_notes(), _say_line)
    with folder.hold_lock():
        stop(region)
    _say_line(f"The region in {folder.path} has stopped; its data is there for the next 'up'.")
    return 0


def _run_status(arguments: argparse.Namespace) -> int:
    folder = Folder(arguments.folder)
    return 0 if status.show_status(Region(folder, folder.read_notes(), _say_line)) else 1


def _run_restart(arguments: argparse.Namespace) -> int:
    folder = Folder(arguments.folder)
    region = Region(folder, folder.read_notes(), _say_line)
    with folder.hold_lock():
        Start(region).restart_members(arguments.names)
    return 0


def _run_demo(arguments: argparse.Namespace) -> int:
    return demo.run_demo(arguments.state, Shape(**_shape_options(arguments), demo=True), Console(), _say_line)


def _say_line(text: str) -> None:
    print(text, flush=True)


def _explain_use(folder: Folder, notes: Notes) -> None:
    _say_line(
        f"""
The region serves at {" and ".join(notes.api_endpoints())}. Try, after '. .venv/bin/activate':
    export SUPERCONDUCTOR_ENDPOINT={notes.api_endpoints()[0]} SUPERCONDUCTOR_CONFIG={folder.etc / "api.conf"}
    superconductor server boot web --flavor m1.small --image 70a599e0-31e7-49b7-b260-868f441e862b --max 3 --wait
    superconductor explain web-1
    superconductor host list
    python -m deploy.local status {folder.path}
Configuration is in {folder.etc}, logs are in {folder.log}. 'make region-down STATE={folder.path}' stops it."""
    )
