"""What commands use of the application that runs them, and how it writes errors: one line each, on standard error."""

from __future__ import annotations

import argparse
from functools import partial
from typing import NoReturn

from cliff.app import App

from cli.shared.parser import EXIT_USAGE
from objects.mask import mask_url

NAME = "superconductor"


class Application(App):
    """The application as its commands know it: its options, its streams, and ``print_error``."""

    NAME = NAME

    def print_error(self, text: str) -> None:
        """Write one line on standard error."""
        print(f"{NAME}: {one_line(text)}", file=self.stderr)

    def command_names(self) -> list[str]:
        """The names of all commands but ``help``, in the order of the overview."""
        raise NotImplementedError


def one_line(text: str) -> str:
    """The text without line breaks and without passwords of URLs."""
    return mask_url(" ".join(text.split()))


def set_usage_errors(parser: argparse.ArgumentParser) -> None:
    """Let usage errors of the parser end with status 2 after one line, where argparse prints the whole usage."""
    parser.error = partial(_exit_with_usage_error, parser)  # type: ignore[method-assign]  # argparse has no other way


def _exit_with_usage_error(parser: argparse.ArgumentParser, message: str) -> NoReturn:
    parser.exit(EXIT_USAGE, f"{parser.prog}: {message}; see '{parser.prog} --help'\n")
