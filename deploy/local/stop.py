"""Stop a region, whatever has become of it, and see that nothing is left."""

from __future__ import annotations

from compute.libvirt.private_daemon import PrivateDaemon
from deploy import ports
from deploy.local.options import LIBVIRT
from deploy.local.region import Region
from deploy.local.shape import Role
from objects import errors

TERM_TIMEOUT_S = 20.0
"""Seconds that processes may take to finish what they have begun; their own limit is ``graceful_shutdown_timeout``, and shorter."""

PHASES = ((Role.CONSOLE_PROXY, Role.API), (Role.COMPUTE,), (Role.SUPER, Role.SCHEDULER, Role.CONDUCTOR))
"""Who is stopped together. An agent that ends reports what it has finished, so its conductors are there until then."""


def stop(region: Region) -> None:
    """SIGTERM to all services, then the servers; SIGKILL to what does not end in time. Real guests are turned off.

    Raises errors.Conflict where something is left even so.
    """
    notes, table = region.notes, region.table
    if count := len(table.pids_by_member()):
        region.say(f"stopping {count} processes")
    for roles in PHASES:
        late = table.stop([member for member in notes.shape.list_members() if member.role in roles], TERM_TIMEOUT_S)
        if late:
            region.say(f"killed, as they did not end within {TERM_TIMEOUT_S:g} s: {', '.join(late)}")
    for libvirt_folder in region.folder.hosts.glob(f"*/{LIBVIRT}"):
        PrivateDaemon(libvirt_folder).stop(guests=True)
    region.backing.stop()
    leftovers = [
        f"{name} (process {pid})" for name, pids in table.pids_by_member().items() for pid in pids
    ] + region.backing.list_leftovers()
    taken = [port for port in (*notes.api_ports, *notes.console_ports) if not ports.is_free(port)]
    leftovers += [f"something on port {port}, which was an API's or a console proxy's" for port in taken]
    if leftovers:
        raise errors.Conflict(f"Not all of the region in {region.folder.path} has ended: {', '.join(leftovers)}.")
