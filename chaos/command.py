"""``make chaos``: the arguments, a folder of its own, and an end that leaves nothing behind."""

from __future__ import annotations

import argparse
import random
import shutil
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from chaos.run import Settings, run
from chaos.schedule import REAL_ONLY, Kind
from cli.shared.base import at_least
from deploy.local.backing import BROKERS, DATABASES
from deploy.servers import Unavailable
from objects import errors
from objects.mask import mask_url

VIOLATED, INTERRUPTED = 1, 130
TWO_WRITERS = "-two-writers"
"""Ends the name of a kind of database."""
REAL_RATE = 0.5
"""Requests a second with libvirt: starting a guest takes a third of a second of CPU."""


def main(argv: Sequence[str] | None = None) -> int:
    """The exit status: 0 where nothing was violated, 1 where something was or the region did not start, 130 where interrupted."""
    chosen = parse_settings(argv)
    path = Path(tempfile.mkdtemp(prefix="superconductor-chaos-"))
    path.chmod(0o711)  # a database server of another user must get to its own folder
    signal.signal(signal.SIGTERM, _interrupt_main)
    print(f"seed {chosen.seed}; if this is killed, stop the rest with 'make region-down STATE={path}'", flush=True)
    try:
        good = run(chosen, path, _say_line)
    except KeyboardInterrupt:
        print("chaos: interrupted", file=sys.stderr)
        shutil.rmtree(path, ignore_errors=True)
        return INTERRUPTED
    except (errors.SuperconductorError, Unavailable) as error:
        print(f"chaos: {mask_url(str(error))}", file=sys.stderr)
        good = False
    if good:
        shutil.rmtree(path, ignore_errors=True)
        return 0
    print(f"Logs, databases and guests are in {path}.", flush=True)
    return VIOLATED


def parse_settings(argv: Sequence[str] | None) -> Settings:
    """What the arguments ask for. Exits with status 2 if they cannot be understood."""
    usual = Settings()
    parser = argparse.ArgumentParser(prog="python -m chaos", description="A region under load and faults, and a strict verdict.")
    parser.add_argument(
        "--driver", choices=("simulated", "libvirt"), default="simulated", help="of the hosts (default: %(default)s)"
    )
    parser.add_argument(
        "--duration", type=_positive_number, default=usual.duration, metavar="SECONDS", help="of load (default: %(default)g)"
    )
    parser.add_argument(
        "--rate",
        type=_positive_number,
        metavar="N",
        help=f"requests a second (default: {usual.rate:g}, with libvirt {REAL_RATE:g})",
    )
    parser.add_argument("--seed", type=lambda text: at_least(0, text), metavar="N", help="of load and faults (default: a new one)")
    parser.add_argument(
        "--every", type=_positive_number, default=usual.every, metavar="SECONDS", help="between faults (default: %(default)g)"
    )
    databases = [name for name in DATABASES if not name.endswith(TWO_WRITERS)]
    parser.add_argument("--database", choices=databases, default=usual.database, help="(default: %(default)s)")
    parser.add_argument(
        "--writers", type=int, choices=(1, 2), default=1, help="nodes of galera that get transactions (default: %(default)s)"
    )
    parser.add_argument("--broker", choices=list(BROKERS), default=usual.broker, help="(default: %(default)s)")
    names, only = ",".join(Kind), " and ".join(sorted(REAL_ONLY))
    parser.add_argument(
        "--faults", type=_parse_kinds, metavar="KIND,...", help=f"some of {names} (default: all; {only} only with libvirt)"
    )
    parser.add_argument(
        "--mixed",
        metavar="OLD",
        help="begin with an older release, a commit or a wheel, and change every process to this one, back, and to this one again",
    )
    arguments = parser.parse_args(argv)
    real = arguments.driver == "libvirt"
    if arguments.faults is not None and not real and arguments.faults & REAL_ONLY:
        parser.error(f"{only} happen to hosts with libvirt only: add --driver libvirt")
    if arguments.mixed is not None and real:
        parser.error("--mixed needs simulated hosts: leave --driver out")
    if arguments.writers > 1 and arguments.database != "galera":
        parser.error("only a Galera cluster may have two writers: add --database galera")
    seed = random.randrange(1_000_000) if arguments.seed is None else arguments.seed
    return Settings(
        duration=arguments.duration,
        rate=arguments.rate or (REAL_RATE if real else usual.rate),
        seed=seed,
        every=arguments.every,
        kinds=arguments.faults if arguments.faults is not None else frozenset(Kind) if real else usual.kinds,
        real=real,
        mixed=arguments.mixed,
        database=arguments.database + TWO_WRITERS * (arguments.writers > 1),
        broker=arguments.broker,
    )


def _positive_number(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0.0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return value


def _parse_kinds(text: str) -> frozenset[Kind]:
    try:
        return frozenset(Kind(word.strip()) for word in text.split(",") if word.strip())
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of {', '.join(Kind)}") from None


def _interrupt_main(number: int, frame: FrameType | None) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise KeyboardInterrupt


def _say_line(text: str) -> None:
    print(text, flush=True)
