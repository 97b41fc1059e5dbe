"""The errors of the project. Each one that may cross the bus is a ``SuperconductorError`` whose arguments are plain text."""

from __future__ import annotations


class SuperconductorError(Exception):
    """Base of all errors of ours. ``str(error)`` is one sentence that may be shown to whoever asked."""


class NotFound(SuperconductorError):
    """Something named does not exist."""


class NoSuchCell(NotFound):
    """No cell has this name or UUID."""


class Conflict(SuperconductorError):
    """The change does not go together with what is already there."""


class KeyReused(Conflict):
    """A client's key (``Idempotency-Key``) was used before for a request that differs from this one."""


class TooCostly(SuperconductorError):
    """A question that would take longer than it may; the text says how to ask for less."""


class Invalid(SuperconductorError):
    """Input that can never be accepted; the message names the field and what is allowed."""


class AddressInUse(Invalid):
    """A fixed address that another server has."""


class Forbidden(SuperconductorError):
    """The caller may not do this."""


class OverQuota(Forbidden):
    """The project may not have so much at once; the text says of what, how much it has and how much it may have."""


class NoValidHost(SuperconductorError):
    """No host, or not enough hosts, can take the request. The text is safe to show to a tenant.

    ``decision_id`` names the stored decision that says why, filter by filter.
    """

    def __init__(self, message: str, decision_id: str | None = None) -> None:
        super().__init__(message, decision_id)
        self.message = message
        self.decision_id = decision_id

    def __str__(self) -> str:
        return self.message


class HostNotMapped(SuperconductorError):
    """A host has no row in the host-mapping table, or the row names another cell than the Selection."""


class Transient(SuperconductorError):
    """A server or process did not answer, or takes nothing now: the same call may succeed later, and no data is at fault."""


class CellUnavailable(Transient):
    """A cell's database or bus did not answer in time, or its breaker is open."""


class BusUnavailable(CellUnavailable):
    """Of the two, the bus: its broker did not answer, or takes no messages."""


class DatabaseUnavailable(Transient):
    """A database cannot be reached; the text names it with its password masked."""


class StorageFull(DatabaseUnavailable):
    """A database has no room left to write; what is in it can be read. The text says what to do."""


class ReadOnlyDatabase(DatabaseUnavailable):
    """A database takes no writes: a replica, or one that was told so; what is in it can be read."""


class NotCompared(Conflict, Transient):
    """The API database was restored, and what is to be changed has not been compared with its cells yet."""


class Unsupported(SuperconductorError):
    """A peer speaks a version of a message that this process does not."""


class PeerTooOld(Conflict):
    """What a message says cannot be told to the process it is for, which is of an older release; the text says what to upgrade."""


class NotOffered(SuperconductorError):
    """This product does not do what was asked, or the hypervisor driver does not; another one might."""


class Misconfigured(SuperconductorError):
    """The configuration cannot work; the text says which option, and which values would."""


class HostNameTaken(Misconfigured):
    """Another machine runs as the host that this agent is configured for; the text names both machines."""


class BuildAborted(SuperconductorError):
    """A build failed for a cause that lies in the request: another host would not help."""


class BuildFailed(SuperconductorError):
    """A build failed on this host; another host may succeed."""


class TaskFailed(SuperconductorError):
    """A task of a running guest failed on its host; the guest stays there."""


class HypervisorDown(SuperconductorError):
    """The hypervisor of this host cannot be used now; the same call may succeed later.

    ``untouched``: the call that raised it has changed nothing on the host.
    """

    def __init__(self, message: str, *, untouched: bool = False) -> None:
        super().__init__(message)
        self.untouched = untouched


class PolicyViolated(SuperconductorError):
    """A build here would break a placement policy, such as its group's affinity: another host may do, this one is not at fault."""


class ServiceUnavailable(SuperconductorError):
    """A service that the hosts share (images, networks, volumes) does not answer: no host could build now, none is at fault."""
