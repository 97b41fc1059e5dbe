"""Addresses of hosts as numbers, IPv4 and IPv6 alike."""

from __future__ import annotations

import ipaddress

import numpy as np

from scheduler.table.arrays import Mask, Words

_MAPPED = 0xFFFF << 32
"""``::ffff:0:0/96``, where IPv6 keeps the addresses of IPv4 (RFC 4291, 2.5.5.2)."""

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


def halves_of(text: object) -> tuple[int, int]:
    """The address as the two halves of an IPv6 number; 0 for what is none."""
    return divmod(_address_number(text), 1 << 64)


def _address_number(text: object) -> int:
    try:
        address = ipaddress.ip_address(text) if isinstance(text, str) else None
    except ValueError:
        return 0
    if address is None:
        return 0
    return int(address) | (_MAPPED if address.version == 4 else 0)


def is_mapped(high: Words, low: Words) -> Mask:
    """Which of these are addresses of IPv4."""
    mapped: Mask = (high == 0) & (low >> np.uint64(32) == 0xFFFF)
    return mapped


def network_span(network: Network) -> tuple[int, int]:
    """First address and mask of the network, as IPv6 numbers."""
    first = int(network.network_address) | (_MAPPED if network.version == 4 else 0)
    prefix = network.prefixlen + (96 if network.version == 4 else 0)
    return first, ((1 << 128) - 1) ^ ((1 << (128 - prefix)) - 1)
