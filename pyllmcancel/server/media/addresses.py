"""Addresses that pictures may be fetched from: those of the public network, as a name is resolved, once."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network

# Find the addresses of a host's name; OSError if there are none.
Resolve = Callable[[str, int], Awaitable[list[str]]]

TRANSLATED = ip_network("64:ff9b::/96")  # NAT64: the last 32 bits are an address of IPv4


async def resolve(host: str, port: int) -> list[str]:
    """Return the addresses of a name, as the system's resolver has them."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(address[0]) for *_, address in found))


def is_public(text: str) -> bool:
    """Return whether an address belongs to the public network: to no machine, link, private network or special use.

    An address of IPv6 that stands for one of IPv4 is as public as that one.
    """
    try:
        address = ip_address(text)
    except ValueError:
        return False
    if isinstance(address, IPv6Address):
        if address.scope_id is not None or address.is_site_local or address.teredo is not None:
            return False
        inner = address.ipv4_mapped or address.sixtofour
        if address in TRANSLATED:
            inner = IPv4Address(int(address) & 0xFFFF_FFFF)
        elif int(address) >> 32 == 0:  # the old form of the mapped addresses
            return False
        if inner is not None:
            return is_public(str(inner))
    return address.is_global and not address.is_multicast and not address.is_reserved
