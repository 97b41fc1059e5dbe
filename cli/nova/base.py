"""What the commands beside Nova have in common: its databases, and an answer as text or as JSON."""

from __future__ import annotations

import abc
import argparse
from typing import TYPE_CHECKING, Any

from cli.shared.base import Admin
from cli.shared.console import console_on

if TYPE_CHECKING:  # imported where they are used: a usage error or a help text should not wait for them
    from rich.console import Console

    from beside_nova.site import NovaSite
    from beside_nova.state import NovaState

LINE_WIDTH = 80


class NovaCommand(Admin, abc.ABC):
    """A command that reads the databases of a Nova and answers once."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument("--json", action="store_true", help="print the answer as JSON")
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        from objects import stored

        site, state = self._open_state()
        try:
            answer = self.answer_question(site, state, parsed_args)
        finally:
            state.close()
        if parsed_args.json:
            print(stored.dump_value(answer), file=self.app.stdout)
        else:
            self.describe_answer(console_on(self.app.stdout, LINE_WIDTH), answer)

    @abc.abstractmethod
    def answer_question(self, site: NovaSite, state: NovaState, parsed_args: argparse.Namespace) -> Any:
        """The answer, which JSON can hold. ``state``: not loaded yet."""

    @abc.abstractmethod
    def describe_answer(self, console: Console, answer: Any) -> None:
        """Print the answer for people."""

    def _open_state(self) -> tuple[NovaSite, NovaState]:
        from beside_nova import opts
        from beside_nova.site import read_site
        from beside_nova.state import NovaState, open_databases
        from service import config

        site = read_site(opts.read_settings(config.load_options(self.deployment.config_arguments, opts.list_opts())))
        zone = site.scheduler.default_availability_zone
        return site, NovaState(open_databases(site.nova), site.service_down_time, zone)

    def warn_of_cells(self, state: NovaState) -> None:
        """Name the cells that could not be read. The answer is then of the others, and the exit status 1."""
        for view in state.cells.values():
            if view.error:
                self.status = 1
                self.warn_user(f"cell {view.cell.name} is left out: {view.error}")
