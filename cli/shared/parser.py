"""cliff's argument parser and the way it writes help, which it calls private (see ``tests/packaging/test_private_parts.py``)."""

from __future__ import annotations

import argparse

from cliff._argparse import (  # parsers of its commands are made of these, and ours are to be alike
    ArgumentParser,
    SmartHelpFormatter,
)

__all__ = ["EXIT_USAGE", "ArgumentParser", "HelpFormatter", "optional_actions", "positional_actions"]


EXIT_USAGE = 2
"""The exit status of a command line that is not understood."""


class HelpFormatter(argparse.RawDescriptionHelpFormatter, SmartHelpFormatter):
    """Keeps the lines of docstrings, which hold examples."""


def optional_actions(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    """The options of a parser; argparse has no public name for them."""
    return parser._get_optional_actions()


def positional_actions(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    """The arguments of a parser that are no options."""
    return parser._get_positional_actions()
