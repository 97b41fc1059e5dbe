"""Microversions: the range served, how a request selects one, and what each changed in the parts of the API served here."""

from __future__ import annotations

import enum
import re

import falcon

from objects import errors

Version = tuple[int, int]

MINIMUM: Version = (2, 1)
MAXIMUM: Version = (2, 96)
SERVICE = "compute"
HEADER = "OpenStack-API-Version"
LEGACY_HEADER = "X-OpenStack-Nova-API-Version"

_FORM = re.compile(r"([1-9]\d{0,8})\.(0|[1-9]\d{0,8})", re.ASCII)


class Microversion(enum.Enum):
    """The first version of each change. ``Since.TAGS.holds(version)`` is the only test of versions."""

    KEYPAIR_TYPES = (2, 2)  # and usual statuses of creates and deletes
    SERVER_ATTRIBUTES = (2, 3)  # hostname, reservation_id and so on; volumes show delete_on_termination
    PRIVATE_ACCESS_ONLY = (2, 7)  # projects cannot be given access to public flavors
    WEB_MKS = (2, 8)  # a type of console, which is not offered
    LOCKED = (2, 9)
    KEYPAIR_USERS = (2, 10)  # administrators name other users
    FORCED_DOWN = (2, 11)  # of services
    GROUP_OWNERS = (2, 13)  # of server groups: project and user
    SOFT_GROUPS = (2, 15)  # policies that are preferences
    HOST_STATUS = (2, 16)
    DESCRIPTION = (2, 19)
    ACTIONS_OF_DELETED = (2, 21)
    MIGRATION_TYPES = (2, 23)  # and the live migration of a server, which can be aborted from 2.24 on
    TAGS = (2, 26)
    HYPERVISOR_CPU_OBJECT = (2, 28)
    CONSOLE_TOKENS = (2, 31)  # of all types are told to proxies
    HYPERVISOR_PAGES = (2, 33)
    KEYPAIR_PAGES = (2, 35)
    NETWORK_LIMITS_GONE = (2, 36)  # quotas and limits of addresses and security groups are removed
    NETWORKS_REQUIRED = (2, 37)  # and the words auto and none
    STATUS_CHECKED = (2, 38)  # a filter by an unknown status is an error, no longer an empty list
    IMAGE_LIMITS_GONE = (2, 39)
    USAGE_PAGES = (2, 40)
    AGGREGATE_UUIDS = (2, 41)
    IMAGE_IDS = (2, 45)  # of images of servers are in the body, not in a header
    FLAVOR_EMBEDDED = (2, 47)
    STANDARD_DIAGNOSTICS = (2, 48)  # one form for all hypervisors
    NETWORK_CLASSES_GONE = (2, 50)  # the same in quota classes, which show server groups from then on
    ACTION_EVENTS = (2, 51)  # for everyone; administrators had them before
    TAGS_AT_CREATE = (2, 52)
    SERVICE_UUIDS = (2, 53)  # services are named by them; before, by host and binary
    REBUILD_KEY = (2, 54)  # a rebuild may name a key pair, and its answer has it
    FLAVOR_DESCRIPTION = (2, 55)
    INJECTED_FILES_GONE = (2, 57)  # and a rebuild may have user data
    ACTION_PAGES = (2, 58)  # of a server's actions, with the time of their last change
    MIGRATION_PAGES = (2, 59)  # with their UUIDs; unknown parameters are refused
    EVACUATED_PASSWORD_UNTOLD = (2, 14)  # an evacuation does not answer with the password
    FLAVOR_EXTRA_SPECS = (2, 61)  # flavors show them
    EVENT_HOSTS = (2, 62)
    CERTIFICATES = (2, 63)  # of signed images, which are not served
    GROUP_RULES = (2, 64)  # a server group has one policy with rules, and no metadata
    CHANGES_BEFORE = (2, 66)  # lists of actions and migrations by the end of a period
    VOLUME_TYPE = (2, 67)  # of volumes, which are not served
    FORCE_GONE = (2, 68)  # live migrations and evacuations ask the scheduler
    DOWN_CELLS = (2, 69)  # servers of a cell that does not answer are UNKNOWN, with constant fields only
    ATTACHED_TAGS = (2, 49)  # an interface that is attached may have a tag
    INTERFACE_TAGS = (2, 70)  # network interfaces show their tags
    SERVER_GROUPS = (2, 71)  # shown with a server
    LOCKED_REASON = (2, 73)  # and lists sorted by whether a server is locked
    REQUESTED_HOST = (2, 74)  # of a new server, which must pass all filters
    QUERY_CHECKED = (2, 75)  # an unknown parameter of a list is an error; answers to changes of servers are whole; swap may be 0
    UNSHELVE_ZONE = (2, 77)
    MIGRATION_OWNERS = (2, 80)
    EVENT_DETAILS = (2, 84)
    HYPERVISOR_USE_GONE = (2, 88)  # hypervisors show no amounts
    HOSTNAME = (2, 90)  # can be given, and everyone sees it
    UNSHELVE_HOST = (2, 91)  # and out of a zone
    KEYPAIR_IMPORT = (2, 92)  # only: no pair is generated; names may have . and @
    HOSTNAME_WITH_DOMAIN = (2, 94)
    EVACUATED_STOPPED = (2, 95)
    PINNED_ZONE = (2, 96)

    def is_in(self, version: Version) -> bool:
        first: Version = self.value
        return version >= first


DEVICE_TAGS = (((2, 32), (2, 32)), ((2, 42), MAXIMUM))
"""Versions in which a block device may have a tag: 2.33 removed it by mistake, and 2.42 restored it."""

NETWORK_TAGS = (((2, 32), (2, 36)), ((2, 42), MAXIMUM))


def is_within(ranges: tuple[tuple[Version, Version], ...], version: Version) -> bool:
    return any(first <= version <= last for first, last in ranges)


def format_version(version: Version) -> str:
    return f"{version[0]}.{version[1]}"


def select_version(header: str | None, legacy: str | None) -> Version:
    """The version that the two headers select: the first header wins; without any it is 2.1; ``latest`` is the newest one
    served. The first header may list several services, such as ``identity 3.14, compute 2.53``.

    Raises errors.Invalid for a malformed version, and falcon.HTTPNotAcceptable for one outside our range.
    """
    services = [part.strip().partition(" ") for part in (header or "").split(",")]
    compute_versions = [version.strip() for service, _, version in services if service.lower() == SERVICE]
    selected = (compute_versions[0] if compute_versions else "") or (legacy or "").strip()
    if not selected:
        return MINIMUM
    if selected == "latest":
        return MAXIMUM
    match = _FORM.fullmatch(selected)
    if match is None:
        raise errors.Invalid(f"{HEADER}: {selected[:40]!r} is no version; give one like {format_version(MAXIMUM)}, or latest")
    version = (int(match[1]), int(match[2]))
    if not MINIMUM <= version <= MAXIMUM:
        supported = f"Minimum is {format_version(MINIMUM)} and maximum is {format_version(MAXIMUM)}."
        raise falcon.HTTPNotAcceptable(description=f"Version {selected} is not supported by the API. {supported}")
    return version
