"""Addresses: `host:port` or `unix:/path`, and whether nobody but this machine reaches them."""

from __future__ import annotations

import ipaddress

from federator.errors import InvalidInput

UNIX = "unix:"
"""How the address of a unix socket begins."""


def split_address(address: str, *, field: str) -> tuple[str, int]:
    """Splits `host:port`; an IPv6 host stands in brackets.

    Raises:
        InvalidInput: no host, or the port is not 0 to 65535.
    """
    host, _, port = address.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isascii() or not port.isdecimal() or int(port) > 65535:
        raise InvalidInput(field, address, "host:port with a port from 0 to 65535")
    return host, int(port)


def is_local(address: str, *, field: str) -> bool:
    """Whether only this machine reaches it: a unix socket, or a loopback address.

    A name other than `localhost` is not looked up and counts as reached by others.

    Raises:
        InvalidInput: it is no address.
    """
    if address.startswith(UNIX):
        if not len(UNIX) < len(address.encode()) <= len(UNIX) + 100:
            raise InvalidInput(field, address, "unix: and the path of a socket, at most 100 bytes")
        return True
    host, _ = split_address(address, field=field)
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
