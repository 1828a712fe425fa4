"""One kubeconfig file for several control planes, a context for each."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from federator.testing.certificates import KeyPair


class Access(NamedTuple):
    """How one control plane is reached.

    Attributes:
        context: name of the context, and of its cluster and user.
        server: URL of the apiserver.
        authority: PEM of the certificate authority to trust.
        user: client certificate and key.
    """

    context: str
    server: str
    authority: bytes
    user: KeyPair


def write_kubeconfig(path: Path, accesses: Iterable[Access]) -> Path:
    """Writes a kubeconfig that only its owner can read; the first access is its current context.

    The file carries everything inline and appears whole or not at all. It is JSON, which is YAML.

    Returns:
        The path.
    """
    content = json.dumps(_config(list(accesses)), indent=1).encode()
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    partial.unlink(missing_ok=True)
    with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)
    return partial.replace(path)


def _config(accesses: list[Access]) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": accesses[0].context if accesses else "",
        "contexts": [
            {"name": access.context, "context": {"cluster": access.context, "user": access.context}}
            for access in accesses
        ],
        "clusters": [
            {
                "name": access.context,
                "cluster": {"server": access.server, "certificate-authority-data": _inline(access.authority)},
            }
            for access in accesses
        ],
        "users": [
            {
                "name": access.context,
                "user": {
                    "client-certificate-data": _inline(access.user.certificate),
                    "client-key-data": _inline(access.user.key),
                },
            }
            for access in accesses
        ],
    }


def _inline(pem: bytes) -> str:
    return base64.b64encode(pem).decode()
