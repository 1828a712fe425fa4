"""Proxies of the environment, by Go's rules."""

from __future__ import annotations

import pytest

from federator.kube.proxy import proxy_from_environment

SERVER = "https://api.example.com:6443"


@pytest.mark.parametrize(
    ("server", "environment", "proxy"),
    [
        (SERVER, {}, None),
        (SERVER, {"HTTPS_PROXY": "http://p:1"}, "http://p:1"),
        (SERVER, {"https_proxy": "http://p:1"}, "http://p:1"),
        (SERVER, {"HTTPS_PROXY": "p:1"}, "http://p:1"),
        (SERVER, {"HTTP_PROXY": "http://p:1"}, None),
        ("http://api.example.com", {"HTTP_PROXY": "http://p:1"}, "http://p:1"),
        ("https://localhost:6443", {"HTTPS_PROXY": "http://p:1"}, None),
        ("https://127.0.0.1:6443", {"HTTPS_PROXY": "http://p:1"}, None),
        ("https://[::1]:6443", {"HTTPS_PROXY": "http://p:1"}, None),
    ],
)
def test_which_proxy(server: str, environment: dict[str, str], proxy: str | None) -> None:
    assert proxy_from_environment(server, environment) == proxy


@pytest.mark.parametrize(
    ("server", "no_proxy", "excepted"),
    [
        (SERVER, "*", True),
        (SERVER, "api.example.com", True),
        (SERVER, "example.com", True),
        (SERVER, ".example.com", True),
        (SERVER, "EXAMPLE.com", True),
        (SERVER, "a, b ,example.com", True),
        (SERVER, "ample.com", False),
        (SERVER, "www.api.example.com", False),
        (SERVER, "example.com:6443", True),
        (SERVER, "example.com:443", False),
        (SERVER, "example.com:port", False),
        (SERVER, "", False),
        ("https://example.com", ".example.com", False),
        ("https://example.com", "example.com:443", True),
        ("https://10.96.0.1", "10.96.0.0/12", True),
        ("https://10.96.0.1", "10.96.0.1", True),
        ("https://10.96.0.1:443", "10.96.0.1:443", True),
        ("https://10.96.0.1", "10.97.0.0/16", False),
        ("https://10.96.0.1", "10.0.0.0/99", False),
        ("https://10.96.0.1", "6.0.1", False),
        ("https://[fd00::1]:6443", "fd00::/8", True),
        ("https://[fd00::1]:6443", "fd00::1", True),
        ("https://[fd00::1]:6443", "[fd00::1]:6443", True),
        ("https://[fd00::1]:6443", "[fd00::1]:443", False),
    ],
)
def test_no_proxy(server: str, no_proxy: str, excepted: bool) -> None:
    proxy = proxy_from_environment(server, {"HTTPS_PROXY": "http://p:1", "NO_PROXY": no_proxy})
    assert (proxy is None) is excepted
