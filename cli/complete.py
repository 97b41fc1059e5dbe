"""``superconductor complete``: completion for bash."""

from __future__ import annotations

import argparse
import inspect

from cliff.complete import CompleteCommand

from cli.parser import HelpFormatter, optional_actions

WORDS = """\
type _get_comp_words_by_ref >/dev/null 2>&1 || _get_comp_words_by_ref()
{ # of the package bash-completion, which is not installed here
  cur=${COMP_WORDS[COMP_CWORD]} words=("${COMP_WORDS[@]}")
}
"""


class Complete(CompleteCommand):
    """Print what bash needs to complete commands and their options.

    Examples:
      source <(superconductor complete)
      superconductor complete > /etc/bash_completion.d/superconductor
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        parser.formatter_class = HelpFormatter
        return parser

    def get_description(self) -> str:
        return inspect.cleandoc(type(self).__doc__ or "")

    def get_epilog(self) -> str:
        return ""

    def get_actions(self, command: list[str]) -> list[argparse.Action]:
        """The options of a command, and those that every command has."""
        own: list[argparse.Action] = super().get_actions(command)
        known = {option for action in own for option in action.option_strings}
        common = [action for action in optional_actions(self.app.parser) if not known & set(action.option_strings)]
        return own + common

    def take_action(self, parsed_args: argparse.Namespace) -> int:
        if parsed_args.shell == "bash":
            self.app.stdout.write(WORDS)
        return int(super().take_action(parsed_args))
