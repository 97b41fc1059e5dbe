"""``superconductor standalone``: the all-in-one, serving until it is told to stop. Its roles are imported only to be run."""

from __future__ import annotations

import argparse
from functools import partial

from cli.shared.base import Admin, at_least, key_value
from objects import errors, extra_specs
from objects.numa import HOST_NODES_LIMIT

SIMULATED = "simulated"
LIBVIRT = "libvirt"
"""What hosts can be, as --driver has it."""


class Standalone(Admin):
    """Run API, conductors, scheduler and hosts in this one process, until Ctrl-C.

    Of the files named with --config-file, and of the environment, the options of [api], [keystone_authtoken], [oslo_policy],
    [quota], [scheduler], [monitoring], [oslo_messaging_notifications], [console] and [libvirt] count.

    Hosts are simulated, or run real guests: with --driver libvirt each has a libvirtd of its own, without KVM if the machine has
    none. These guests keep running when standalone stops; the next start finds them.

    Examples:
      superconductor standalone --state ./region
      superconductor --config-file filters.conf standalone --state ./region
      superconductor --config-file keystone.conf standalone --state ./region
      superconductor standalone --state ./machines --driver libvirt --boot one
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--host", metavar="ADDRESS", help="address of the API (default: [api] host, 127.0.0.1)")
        parser.add_argument("--port", type=port_number, help="port of the API, 0 for a free one (default: [api] port, 8774)")
        parser.add_argument("--driver", choices=(SIMULATED, LIBVIRT), default=SIMULATED, help="what hosts are (default: simulated)")
        parser.add_argument(
            "--cells", type=partial(at_least, 1), help="cells to create in a new folder (default: 2; 1 with --driver libvirt)"
        )
        parser.add_argument("--hosts", type=partial(at_least, 1), help="hosts in each cell (default: 12; 1 with --driver libvirt)")
        parser.add_argument(
            "--libvirt-uri", metavar="URI", help="use this libvirt of the machine, such as qemu:///system, as the only host"
        )
        parser.add_argument("--boot", metavar="NAME", help="with --driver libvirt: boot this small server, and show its console")
        parser.add_argument("--stop-guests", action="store_true", help="with --driver libvirt: turn guests off at the end")
        parser.add_argument(
            "--resource",
            dest="resources",
            metavar="CLASS=AMOUNT",
            type=custom_resource,
            action="append",
            default=[],
            help="custom resource class that each simulated host offers, such as CUSTOM_GPU=4; may be repeated",
        )
        parser.add_argument(
            "--numa-nodes",
            type=numa_nodes,
            default=0,
            metavar="COUNT",
            help="NUMA nodes of each simulated host, to which its servers are tied (default: none are reported)",
        )
        parser.add_argument(
            "--noauth-anywhere", action="store_true", help="serve other machines too, although callers are not authenticated"
        )

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        check_hosts(parsed_args)
        from cli.standalone import serving

        serving.run(self.app, self.deployment, parsed_args)


def check_hosts(parsed_args: argparse.Namespace) -> None:
    """Refuse options that do not go together. Raises Invalid."""
    if parsed_args.driver == SIMULATED:
        for option in ("libvirt_uri", "boot", "stop_guests"):
            if getattr(parsed_args, option):
                raise errors.Invalid(f"--{option.replace('_', '-')} is for --driver {LIBVIRT}")
    elif parsed_args.resources or parsed_args.numa_nodes:
        option = "--resource" if parsed_args.resources else "--numa-nodes"
        raise errors.Invalid(f"{option} is for simulated hosts")
    if parsed_args.libvirt_uri:
        if (parsed_args.hosts or 1) * (parsed_args.cells or 1) > 1:
            raise errors.Invalid("--libvirt-uri names the libvirt of one host: leave out --hosts and --cells")
        if parsed_args.stop_guests:
            raise errors.Invalid("--stop-guests is for a libvirtd that standalone has started: leave out --libvirt-uri")


def custom_resource(text: str) -> tuple[str, int]:
    """A custom resource class and how much of it a host offers."""
    name, amount = key_value(text)
    offered = at_least(0, amount)
    try:
        extra_specs.check_offer({name: offered})
    except errors.Invalid as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    return name, offered


def numa_nodes(text: str) -> int:
    """How many NUMA nodes a host reports."""
    number = at_least(0, text)
    if number > HOST_NODES_LIMIT:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 0 to {HOST_NODES_LIMIT}")
    return number


def port_number(text: str) -> int:
    """A TCP port, or 0 for a free one."""
    number = at_least(0, text)
    if number > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port from 0 to 65535")
    return number
