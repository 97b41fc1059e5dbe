"""The ``superconductor`` command: its table of commands, its global options, and how errors are told."""

from __future__ import annotations

import argparse
import contextlib
import difflib
import logging
import sys
import traceback
from collections.abc import Iterator, Sequence
from importlib import metadata
from typing import Any, Protocol, runtime_checkable

from cliff.command import Command
from cliff.commandmanager import CommandManager
from cliff.help import HelpCommand, HelpExit

from cli.shared.application import NAME, Application, one_line, set_usage_errors
from cli.shared.parser import EXIT_USAGE, ArgumentParser
from cli.shared.streams import escape_stream
from objects import errors
from objects.mask import mask_url
from service.release import DISTRIBUTION

COMMANDS: tuple[tuple[str, str, str], ...] = (
    # name, class, what `superconductor --help` says about it. A class is imported only when its command is run.
    ("standalone", "cli.standalone.command:Standalone", "run a whole deployment in this process, its state in one folder"),
    ("demo", "cli.standalone.demo.command:Demo", "boot a workload on an all-in-one of its own, and check every outcome"),
    ("quickstart", "cli.install.quickstart:Quickstart", "make a deployment of one cell, or add a cell to it"),
    ("status", "cli.watch.status:ShowStatus", "show the state of the deployment"),
    ("top", "cli.watch.top:Top", "watch the deployment at work"),
    ("server boot", "cli.servers.server:ServerBoot", "boot one server, or several identical ones"),
    ("server create", "cli.servers.server:ServerCreate", "the same as server boot"),
    ("server list", "cli.servers.server:ServerList", "list servers"),
    ("server show", "cli.servers.server:ServerShow", "show one server"),
    ("server set", "cli.servers.edit:ServerSet", "change a server's name, description, properties and tags"),
    ("server unset", "cli.servers.edit:ServerUnset", "remove a server's description, properties and tags"),
    ("server lock", "cli.servers.edit:ServerLock", "lock servers against changes"),
    ("server unlock", "cli.servers.edit:ServerUnlock", "unlock servers"),
    ("server start", "cli.servers.operate:ServerStart", "start servers"),
    ("server stop", "cli.servers.operate:ServerStop", "stop servers"),
    ("server reboot", "cli.servers.operate:ServerReboot", "reboot servers"),
    ("server pause", "cli.servers.operate:ServerPause", "pause servers"),
    ("server unpause", "cli.servers.operate:ServerUnpause", "let paused servers run again"),
    ("server suspend", "cli.servers.operate:ServerSuspend", "suspend servers"),
    ("server resume", "cli.servers.operate:ServerResume", "let suspended servers run again"),
    ("server shelve", "cli.servers.operate:ServerShelve", "keep servers in the image store, on no host"),
    ("server unshelve", "cli.servers.operate:ServerUnshelve", "bring shelved servers back"),
    ("server image create", "cli.servers.image:ServerImageCreate", "make images of servers"),
    ("server backup create", "cli.servers.image:ServerBackupCreate", "make backups of servers, and remove older ones"),
    ("server rescue", "cli.servers.rescue:ServerRescue", "boot servers from a rescue image"),
    ("server unrescue", "cli.servers.rescue:ServerUnrescue", "boot rescued servers from their own disks again"),
    ("server password", "cli.servers.rescue:ServerPasswordChange", "change the password of servers' administrators"),
    ("server dump create", "cli.servers.rescue:ServerDumpCreate", "let servers dump their memory"),
    ("server add network", "cli.servers.interface:ServerAddNetwork", "attach a server to a network"),
    ("server remove port", "cli.servers.interface:ServerRemovePort", "detach an interface from a server"),
    ("server rebuild", "cli.servers.operate:ServerRebuild", "give servers new disks from an image"),
    ("server resize", "cli.servers.operate:ServerResize", "give servers another flavor; confirm or revert that"),
    ("server migrate", "cli.servers.operate:ServerMigrate", "move servers to other hosts"),
    ("server evacuate", "cli.servers.operate:ServerEvacuate", "build servers of dead hosts again elsewhere"),
    ("server console", "cli.servers.console:ServerConsole", "print what a server has written to its console, or use it"),
    ("server diagnostics", "cli.servers.diagnostics:ServerDiagnosticsShow", "show what the hypervisor knows of a server"),
    ("server delete", "cli.servers.server:ServerDelete", "delete servers"),
    ("server restore", "cli.servers.operate:ServerRestore", "bring soft-deleted servers back"),
    ("server event list", "cli.servers.event:ServerEventList", "list the requests for a server"),
    ("server event show", "cli.servers.event:ServerEventShow", "show each stage and attempt of a request for a server"),
    ("verify", "cli.databases.verify:Verify", "check all databases for consistency, and repair them with --repair"),
    ("dead-letter list", "cli.fleet.dead_letter:DeadLetterList", "list dead letters: items that a step could not process, and why"),
    ("dead-letter retry", "cli.fleet.dead_letter:DeadLetterRetry", "retry dead letters now"),
    ("dead-letter skip", "cli.fleet.dead_letter:DeadLetterSkip", "stop retrying dead letters"),
    ("explain", "cli.servers.explain:Explain", "explain why servers were placed where they are, or not at all"),
    ("replay", "cli.servers.replay:ReplayDecision", "take a scheduling decision again, also with another configuration"),
    ("capacity", "cli.servers.capacity:ShowCapacity", "show how many more servers fit"),
    ("rebalance", "cli.servers.rebalance:PlanRebalance", "show which moves would free the most"),
    ("hold list", "cli.servers.hold:HoldList", "list holds: hosts that are kept for servers which are booted later"),
    ("hold show", "cli.servers.hold:HoldShow", "list the servers of a hold with their hosts"),
    ("hold boot", "cli.servers.hold:HoldBoot", "boot the servers of a hold"),
    ("hold release", "cli.servers.hold:HoldRelease", "release holds, so that their hosts are free again"),
    ("lab replay", "cli.lab.replay:LabReplay", "replay a trace of servers under several configurations, without a deployment"),
    ("lab record", "cli.lab.record:LabRecord", "write this deployment's past as a trace that can be replayed"),
    ("nova status", "cli.nova.status:NovaStatus", "show what is read of an existing OpenStack Nova"),
    ("nova capacity", "cli.nova.capacity:NovaCapacity", "show how many more servers fit on the hosts of a Nova"),
    ("nova explain", "cli.nova.explain:NovaExplain", "explain why a server of a Nova has its host, or none"),
    ("nova audit", "cli.nova.audit:NovaAuditShow", "compare the databases of a Nova, and print what mends each fault"),
    ("nova rebalance", "cli.nova.rebalance:NovaRebalance", "show which moves would free the most on the hosts of a Nova"),
    ("nova record", "cli.nova.record:NovaRecord", "write the past of a Nova as a trace that can be replayed"),
    ("nova what-if", "cli.nova.what_if:NovaWhatIf", "show where new servers would go on the hosts of a Nova"),
    ("db sync", "cli.databases.db:DbSync", "bring the schemas of the databases up to date"),
    ("db version", "cli.databases.db:DbVersion", "show the schema version of each database"),
    ("db restored", "cli.databases.restored:DbRestored", "compare a database from a backup with the others, and adopt what runs"),
    ("db online-migrations", "cli.databases.online:DbOnlineMigrations", "bring rows of an older release up to date"),
    ("db backfill-names", "cli.databases.names:DbRecordNames", "record the names of servers, where they must be unique"),
    ("db archive", "cli.databases.purge:DbArchive", "move the rows of servers deleted long ago into files"),
    ("db purge", "cli.databases.purge:DbPurge", "remove the rows of servers deleted long ago"),
    ("upgrade check", "cli.databases.upgrade:UpgradeCheck", "check whether this release can be installed"),
    ("upgrade finalize", "cli.databases.upgrade:UpgradeFinalize", "begin what an older release cannot read; there is no way back"),
    ("cell create", "cli.fleet.cell:CellCreate", "register a cell"),
    ("cell update", "cli.fleet.cell:CellUpdate", "change a cell's name or addresses"),
    ("cell list", "cli.fleet.cell_list:CellList", "list the cells"),
    ("cell show", "cli.fleet.cell_list:CellShow", "show one cell"),
    ("cell enable", "cli.fleet.cell:CellEnable", "let cells take new servers"),
    ("cell disable", "cli.fleet.cell:CellDisable", "let cells take no new servers"),
    ("cell drain", "cli.fleet.cell:CellDrain", "let cells take no new servers, and with --wait move theirs elsewhere"),
    ("cell apply", "cli.fleet.cell_apply:CellApply", "create and change cells as a file says"),
    ("cell check", "cli.fleet.cell_list:CellCheck", "try the databases and buses of cells"),
    ("cell delete", "cli.fleet.cell_delete:CellDelete", "delete cells that hold no servers, or are lost"),
    ("secrets new", "cli.databases.secrets:SecretsNew", "print a new key for user data and passwords"),
    ("secrets derive", "cli.databases.secrets:SecretsCell", "print the keys that a cell's conductors need"),
    ("config show", "cli.databases.config:ConfigShow", "show the configuration that processes would read"),
    ("config check", "cli.databases.config:ConfigCheck", "say whether processes could start with a configuration"),
    ("host discover", "cli.fleet.host:HostDiscover", "map the hosts that have reported to their cells"),
    ("host list", "cli.fleet.host:HostList", "list the hosts of all cells, with state and capacity"),
    ("host show", "cli.fleet.host_show:HostShow", "show one host"),
    ("host enable", "cli.fleet.host:HostEnable", "let hosts take new servers"),
    ("host disable", "cli.fleet.host:HostDisable", "let hosts take no new servers"),
    ("host set", "cli.fleet.host:HostSet", "declare hosts dead, or undo that; set their allocation ratios"),
    ("host accept", "cli.fleet.host:HostAccept", "let hosts count with the sizes that they report"),
    ("host move", "cli.fleet.host_move:HostMove", "move an empty host to another cell"),
    ("host evacuate", "cli.fleet.host_empty:HostEvacuate", "start the servers of a dead host on other hosts"),
    ("host drain", "cli.fleet.host_empty:HostDrain", "migrate the servers of a host to other hosts"),
    ("host user", "cli.fleet.host_user:HostUser", "write files that give each host its own broker user"),
    ("host delete", "cli.fleet.host:HostDelete", "delete hosts that were removed"),
    ("operation list", "cli.servers.move:MoveList", "list operations on servers, such as migrations"),
    ("operation show", "cli.servers.move:MoveShow", "show one operation on a server"),
    ("move abort", "cli.servers.move:MoveAbort", "give moves up"),
    ("move confirm", "cli.servers.move:MoveConfirm", "confirm resizes"),
    ("move revert", "cli.servers.move:MoveRevert", "revert resizes"),
    ("instance map", "cli.fleet.instance:InstanceMap", "map instances that only a cell knows"),
    ("instance verify", "cli.fleet.instance:InstanceVerify", "check whether an instance is in the cell it is mapped to"),
    ("guest list", "cli.fleet.guest:GuestList", "list guests that their cells have no matching record of"),
    ("guest adopt", "cli.fleet.guest:GuestAdopt", "attach such guests to their servers again"),
    ("service list", "cli.fleet.service:ServiceList", "list the processes of all levels"),
    ("flavor create", "cli.fleet.flavor:FlavorCreate", "create a flavor"),
    ("flavor set", "cli.fleet.flavor:FlavorSet", "change a flavor"),
    ("flavor list", "cli.fleet.flavor:FlavorList", "list the flavors"),
    ("flavor show", "cli.fleet.flavor:FlavorShow", "show one flavor"),
    ("flavor delete", "cli.fleet.flavor:FlavorDelete", "delete flavors"),
    ("image add", "cli.fleet.image:ImageAdd", "add an image that servers can be built from"),
    ("image list", "cli.fleet.image:ImageList", "list the images that were added"),
    ("image show", "cli.fleet.image:ImageShow", "show one image"),
    ("image delete", "cli.fleet.image:ImageDelete", "delete images"),
    ("image record", "cli.fleet.image:ImageRecordHashes", "have the API database know images that were stored without it"),
    ("network create", "cli.fleet.network:NetworkCreate", "create a network"),
    ("network list", "cli.fleet.network:NetworkList", "list the networks"),
    ("network show", "cli.fleet.network:NetworkShow", "show one network"),
    ("network delete", "cli.fleet.network:NetworkDelete", "delete networks"),
    ("subnet add", "cli.fleet.network:SubnetAdd", "give a network addresses"),
    ("subnet list", "cli.fleet.network:SubnetList", "list the subnets of networks"),
    ("subnet delete", "cli.fleet.network:SubnetDelete", "delete subnets"),
    ("aggregate create", "cli.fleet.aggregate:AggregateCreate", "create a host aggregate, or an availability zone"),
    ("aggregate set", "cli.fleet.aggregate:AggregateSet", "change an aggregate"),
    ("aggregate list", "cli.fleet.aggregate:AggregateList", "list the aggregates"),
    ("aggregate show", "cli.fleet.aggregate:AggregateShow", "show one aggregate"),
    ("aggregate delete", "cli.fleet.aggregate:AggregateDelete", "delete aggregates"),
    ("aggregate add host", "cli.fleet.aggregate:AggregateAddHost", "put hosts into an aggregate"),
    ("aggregate remove host", "cli.fleet.aggregate:AggregateRemoveHost", "take hosts out of an aggregate"),
    ("server group create", "cli.servers.group:GroupCreate", "create a server group"),
    ("server group set", "cli.servers.group:GroupSet", "rename a server group"),
    ("server group list", "cli.servers.group:GroupList", "list server groups"),
    ("server group show", "cli.servers.group:GroupShow", "show one server group"),
    ("server group delete", "cli.servers.group:GroupDelete", "delete server groups"),
    ("quota set", "cli.fleet.quota:QuotaSet", "set the quota of a project"),
    ("quota unset", "cli.fleet.quota:QuotaUnset", "reset a project to the default quota"),
    ("quota list", "cli.fleet.quota:QuotaList", "list quotas and usage of all projects"),
    ("quota show", "cli.fleet.quota:QuotaShow", "show quota and usage of one project"),
    ("quota audit", "cli.fleet.quota:QuotaAudit", "compare the recorded usage of projects with their servers"),
    ("completion", "cli.completion.command:Completion", "print the completion file of bash, zsh or fish"),
    (
        "completion names",
        "cli.completion.command:CompletionNames",
        "print the names of one kind",
    ),
    (
        "completion words",
        "cli.completion.command:CompletionWords",
        "print what may come next on a command line, for the completion files",
    ),
)

FORMER_COMMANDS = {
    "db record-names": "db backfill-names",
    "group create": "server group create",
    "group delete": "server group delete",
    "group list": "server group list",
    "group set": "server group set",
    "group show": "server group show",
    "move list": "operation list",
    "move show": "operation show",
    "secrets cell": "secrets derive",
}
"""Former names of commands, which scripts may still use. Help and completion do not show them."""

GROUPS: tuple[tuple[str, tuple[tuple[str, str], ...]], ...] = (
    # heading, then the first words of commands. The summary is of the commands with this word; empty: of the only one.
    (
        "start here",
        (("standalone", ""), ("demo", ""), ("quickstart", "")),
    ),
    (
        "servers and what they are made of",
        (
            ("server", "boot servers, list, change, move and delete them; server groups"),
            ("flavor", "sizes of servers"),
            ("image", "images that servers are built from"),
            ("network", "networks of servers"),
            ("subnet", "addresses of networks"),
            ("hold", "hosts that are kept for servers which are booted later"),
        ),
    ),
    (
        "explain and plan",
        (("explain", ""), ("replay", ""), ("capacity", ""), ("rebalance", "")),
    ),
    (
        "operate",
        (
            ("status", ""),
            ("top", ""),
            ("host", "hosts: map, enable, drain and evacuate them"),
            ("operation", "operations on servers, such as migrations"),
            ("move", "give moves up, confirm and revert resizes"),
            ("aggregate", "host aggregates and availability zones"),
            ("quota", "quotas and usage of projects"),
            ("service", "processes of the deployment"),
            ("verify", ""),
            ("dead-letter", "items that a step could not process"),
            ("instance", "instances that only a cell knows"),
            ("guest", "guests without a record"),
        ),
    ),
    ("cells", (("cell", "register cells, change, check and delete them"),)),
    ("lab", (("lab", "replay traces through the scheduler, without a deployment"),)),
    ("beside Nova", (("nova", "watch an existing OpenStack Nova: hosts, room, explanations, audit, trace"),)),
    (
        "databases and configuration",
        (
            ("db", "schemas, purge, and databases from a backup"),
            ("upgrade", "check and finalize an upgrade"),
            ("config", "the configuration that processes would read"),
            ("secrets", "keys for user data and passwords"),
            ("completion", "completion files for bash, zsh and fish"),
        ),
    ),
)
"""The overview of ``superconductor --help``. ``superconductor WORD`` lists the commands that begin with the word."""

EXIT_INTERRUPTED = 130  # 128 + SIGINT, as shells have it
EXIT_BROKEN_PIPE = 141  # 128 + SIGPIPE


def commands_by_word() -> dict[str, list[tuple[str, str]]]:
    """The names and summaries of commands by their first word."""
    by_word: dict[str, list[tuple[str, str]]] = {}
    for name, _, summary in COMMANDS:
        by_word.setdefault(name.split()[0], []).append((name, summary))
    return by_word


@runtime_checkable
class Answering(Protocol):
    """A command that says by its exit status why it was refused (``cli.shared.base.Admin``)."""

    def status_of(self, error: errors.SuperconductorError) -> int: ...


class Superconductor(Application):
    """Finds the command, runs it, and turns what it raises into one line on standard error and an exit status."""

    def __init__(self) -> None:
        manager = CommandManager()
        out, err = escape_stream(sys.stdout), escape_stream(sys.stderr)
        super().__init__("Operate a Superconductor deployment.", None, manager, None, out, err, deferred_help=True)
        for name, path, _ in COMMANDS:
            manager.commands[name] = metadata.EntryPoint(name, path, NAME)
        for former, name in FORMER_COMMANDS.items():
            manager.commands[former] = manager.commands[name]
        manager.add_command("help", Help)

    def command_names(self) -> list[str]:
        return [name for name, _, _ in COMMANDS]

    def build_option_parser(
        self, description: str | None, version: str | None, argparse_kwargs: dict[str, Any] | None = None
    ) -> argparse.ArgumentParser:
        """The options that every command has. They may stand before the command or after it."""
        parser = ArgumentParser(prog=NAME, description=description, add_help=False, allow_abbrev=False)
        set_usage_errors(parser)
        parser.add_argument(
            "-h", "--help", dest="deferred_help", action="store_true", help="show this text, or a command's, and exit"
        )
        parser.add_argument("--version", action=_Version, nargs=0, help="show the version and exit")
        parser.add_argument("-v", "--verbose", dest="verbose_level", action="count", default=1, help="print more; may be repeated")
        parser.add_argument("-q", "--quiet", dest="verbose_level", action="store_const", const=0, help="print errors only")
        parser.add_argument("--debug", action="store_true", help="show the stack trace of an error")
        parser.add_argument(
            "--config-file",
            metavar="FILE",
            action="append",
            default=[],
            help="configuration file; may be repeated (default: SUPERCONDUCTOR_CONFIG, or /etc/superconductor)",
        )
        parser.add_argument(
            "--config-dir", metavar="DIR", action="append", default=[], help="folder of *.conf files, read after the files"
        )
        parser.add_argument(
            "--state",
            metavar="DIR",
            help="folder of an all-in-one (default: SUPERCONDUCTOR_STATE, or the running standalone)",
        )
        return parser

    def configure_logging(self) -> None:
        """Warnings of ours and of libraries go to standard error, more with -v. Commands that run services replace this."""
        handler = logging.StreamHandler(self.stderr)
        handler.setFormatter(_OneLine(f"{NAME}: %(message)s"))
        root = logging.getLogger()
        root.addHandler(handler)
        root.setLevel((logging.ERROR, logging.WARNING, logging.INFO, logging.DEBUG)[min(self.options.verbose_level, 3)])

    def initialize_app(self, argv: list[str]) -> None:
        """Show the overview where it was asked for, or where no command was given."""
        if self.options.deferred_help or not argv:
            self.print_overview()
            raise HelpExit(0 if self.options.deferred_help else EXIT_USAGE)

    def print_overview(self) -> None:
        """Print the global options, and the first words of commands in groups. cliff's own overview imports every command."""
        commands = commands_by_word()
        width = max(len(word) for word in commands)
        lines = []
        for heading, words in GROUPS:
            lines.append(f"\n{heading}:")
            lines += [f"  {word:<{width}}  {summary or commands[word][0][1]}" for word, summary in words]
        print(self.parser.format_help().rstrip(), *lines, sep="\n", file=self.stdout)
        print(
            f"\n'{NAME} WORD' lists the commands of a word; '{NAME} COMMAND --help' shows an example.",
            file=self.stdout,
        )

    def print_commands(self, word: str) -> None:
        """Print the commands that begin with this word."""
        commands = commands_by_word()[word]
        width = max(len(name) for name, _ in commands)
        print(*(f"  {name:<{width}}  {summary}" for name, summary in commands), sep="\n", file=self.stdout)
        print(f"\n'{NAME} COMMAND --help' shows the help of a command, with an example.", file=self.stdout)

    def run_subcommand(self, argv: list[str]) -> int:
        """Run the command that ``argv`` begins with; return its exit status."""
        try:
            factory, name, rest = self.command_manager.find_command(argv)
        except ValueError:
            if argv[0] in commands_by_word() and all(word.startswith("-") for word in argv[1:]):
                self.print_commands(argv[0])
                return EXIT_USAGE
            return self._report_unknown(argv)
        command: Command = factory(self, self.options)
        try:
            return command.run(command.get_parser(f"{NAME} {name}").parse_args(rest))
        except (BrokenPipeError, KeyboardInterrupt):
            raise
        except errors.SuperconductorError as error:
            return self._report_failure(str(error), command.status_of(error) if isinstance(command, Answering) else 1)
        except Exception as error:  # noqa: BLE001 - the last place where it can be told in a line
            return self._report_failure(f"{type(error).__name__}: {error} (--debug shows the trace)")

    def _report_failure(self, text: str, status: int = 1) -> int:
        if self.options.debug:
            traceback.print_exc(file=self.stderr)
        self.print_error(text)
        return status

    def _report_unknown(self, argv: Sequence[str]) -> int:
        words = " ".join(word for word in argv if not word.startswith("-"))
        names = [name for name, _, _ in COMMANDS]
        near = [name for name in names if name.startswith(f"{words} ")] or difflib.get_close_matches(words, names, 3, 0.7)
        near = near or [name for name in names if words and name.startswith(f"{words.split()[0]} ")]
        hint = f"perhaps: {', '.join(near)}" if near else f"'{NAME} --help' lists them all"
        self.print_error(f"{words or argv[0]!r} is not a command; {hint}")
        return EXIT_USAGE


class Help(HelpCommand):
    """Show the list of commands, or the help of one command.

    Example: superconductor help cell create
    """

    def take_action(self, parsed_args: argparse.Namespace) -> int:
        if isinstance(self.app, Superconductor) and not parsed_args.cmd:
            self.app.print_overview()
            return 0
        word, *rest = parsed_args.cmd
        names = [name for name, _ in commands_by_word().get(word, ())]
        if isinstance(self.app, Superconductor) and not rest and names and word not in names:
            self.app.print_commands(word)
            return 0
        return super().take_action(parsed_args)


class _OneLine(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return one_line(super().format(record)) if record.exc_info is None else mask_url(super().format(record))


class _Version(argparse.Action):
    """Looks the version up only when asked."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        try:
            version = metadata.version(DISTRIBUTION)
        except metadata.PackageNotFoundError:
            version = "(not installed)"
        sys.stdout.write(f"{NAME} {version}\n")
        parser.exit()


@contextlib.contextmanager
def _logging_restored() -> Iterator[None]:
    """What a command does to logging ends with it, so that many can run in one process."""
    root = logging.getLogger()
    level, handlers = root.level, list(root.handlers)
    try:
        yield
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; return its exit status: 0 done, 1 failed or done in part, 2 wrong usage; others: docs/commands.md."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    undecodable = next((argument for argument in arguments if any("\ud800" <= c <= "\udfff" for c in argument)), None)
    if undecodable is not None:
        sys.stderr.write(f"{NAME}: {undecodable[:80]!r} is not text in this terminal's encoding\n")
        return EXIT_USAGE
    with _logging_restored():
        try:
            return Superconductor().run(arguments)
        except SystemExit as exit_:  # how argparse and help end
            return exit_.code if isinstance(exit_.code, int) else int(exit_.code is not None)
        except KeyboardInterrupt:
            return EXIT_INTERRUPTED
        except BrokenPipeError:
            return EXIT_BROKEN_PIPE
