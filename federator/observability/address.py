"""Listening addresses: `host:port` or `unix:/path`, and whether nobody but this machine reaches them."""

from __future__ import annotations

import ipaddress

from federator.errors import InvalidInput

_ALLOWED = "host:port or unix:/path"


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


def require_local(address: str, *, field: str) -> str:
    """Returns the address if only this machine reaches it.

    Plaintext listeners carry the whole inventory and believe what a client says of itself, so they are confined to
    loopback and unix sockets.

    Raises:
        InvalidInput: it is neither a unix socket nor a loopback address.
    """
    if address.startswith("unix:"):
        if len(address.encode()) > len("unix:") + 100:
            raise InvalidInput(field, address, "a unix socket path of at most 100 bytes")
        return address
    host, _ = split_address(address, field=field)
    if host == "localhost":
        return address
    try:
        if ipaddress.ip_address(host).is_loopback:
            return address
    except ValueError:
        pass
    raise InvalidInput(field, address, f"{_ALLOWED}, on loopback: this listener has no TLS")
