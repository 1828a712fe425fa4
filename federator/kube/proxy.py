"""Which HTTP proxy the environment asks for, by the rules that client-go and kubectl follow."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from urllib.parse import urlsplit


def proxy_from_environment(server: str, environment: Mapping[str, str]) -> str | None:
    """Returns the proxy for an apiserver's URL, or None where none is asked for.

    HTTPS_PROXY or HTTP_PROXY by the URL's scheme, lower case as second choice. NO_PROXY lists exceptions: names with
    all their subdomains, addresses, networks such as `10.0.0.0/8`, each optionally with a port, or `*`. Loopback is
    never proxied.
    """
    url = urlsplit(server)
    host = (url.hostname or "").rstrip(".")
    name = f"{url.scheme}_proxy"
    proxy = environment.get(name.upper()) or environment.get(name)
    if not proxy or host == "localhost":
        return None
    address = _address(host)
    if address is not None and address.is_loopback:
        return None
    port = url.port or (443 if url.scheme == "https" else 80)
    exceptions = environment.get("NO_PROXY") or environment.get("no_proxy") or ""
    if any(_matches(entry.strip().lower(), host, address, port) for entry in exceptions.split(",")):
        return None
    return proxy if "://" in proxy else f"http://{proxy}"


_Address = ipaddress.IPv4Address | ipaddress.IPv6Address


def _address(host: str) -> _Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def _matches(entry: str, host: str, address: _Address | None, port: int) -> bool:
    if not entry:
        return False
    if entry == "*":
        return True
    if address is not None and "/" in entry:
        try:
            return address in ipaddress.ip_network(entry, strict=False)
        except ValueError:
            return False
    # urlsplit reads host and port, IPv6 brackets included; a bare IPv6 address has no port.
    named = urlsplit(f"//{entry}") if entry.count(":") == 1 or entry.startswith("[") else None
    if named is not None:
        try:
            if named.port is not None and named.port != port:
                return False
        except ValueError:
            return False
        entry = named.hostname or ""
    if address is not None:
        return _address(entry) == address
    if entry.startswith("."):
        return host.endswith(entry)
    return host == entry or host.endswith(f".{entry}")
