"""How a control plane's programs are called. All paths are relative to the control plane's folder."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, NamedTuple

from federator.errors import InvalidInput

SERVING_HOSTS = ("localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc")
"""DNS names under which an apiserver may be called."""

SERVING_ADDRESSES = ("127.0.0.1", "10.0.0.1")
"""Loopback, and the address of the `kubernetes` Service."""

_SERVICE_NETWORK = "10.0.0.0/16"

# Sockets in the control plane's folder, which is closed to other users: etcd asks nobody for credentials. Relative,
# because a socket's path may have no more than about a hundred characters.
ETCD_SOCKET = "etcd-clients.sock"
_ETCD_CLIENTS = f"unix://{ETCD_SOCKET}"
_ETCD_PEERS = "unix://etcd-peers.sock"


class Settings(NamedTuple):
    """What differs between control planes.

    Attributes:
        port: port of the apiserver.
        fsync: etcd waits for the disk.
        living: controllers run.
        apiserver_arguments: further flags of the apiserver.
        stages: kwok's stage files.
    """

    port: int
    fsync: bool
    living: bool
    apiserver_arguments: tuple[str, ...]
    stages: tuple[Path, ...]


def arguments(name: str, settings: Settings) -> list[str]:
    """Arguments of a program, without its own path."""
    match name:
        case "etcd":
            return _etcd(settings)
        case "kube-apiserver":
            return _kube_apiserver(settings)
        case "kube-controller-manager":
            return _kube_controller_manager()
        case "kube-scheduler":
            return ["--kubeconfig=kubeconfig", "--leader-elect=false", "--secure-port=0"]
        case "kwok":
            return _kwok(settings)
        case _:
            raise InvalidInput("program", name, "a program of a control plane")


def environment() -> dict[str, str]:
    """Environment of every program: that of this process, with fewer garbage collections unless it says how many."""
    # With Go's default of 100, a fifth of what an apiserver needs for its start goes into collections of a small heap.
    return {"GOGC": "400", **os.environ}


def fake_node(name: str) -> dict[str, Any]:
    """A node that kwok keeps Ready and whose pods it lets run."""
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "annotations": {"kwok.x-k8s.io/node": "fake"},
            "labels": {
                "kubernetes.io/arch": "amd64",
                "kubernetes.io/hostname": name,
                "kubernetes.io/os": "linux",
                "type": "kwok",
            },
        },
    }


def _etcd(settings: Settings) -> list[str]:
    return [
        "--name=member",
        "--data-dir=etcd",
        "--initial-cluster=member=" + _ETCD_PEERS,
        "--initial-advertise-peer-urls=" + _ETCD_PEERS,
        "--listen-peer-urls=" + _ETCD_PEERS,
        "--advertise-client-urls=" + _ETCD_CLIENTS,
        "--listen-client-urls=" + _ETCD_CLIENTS,
        "--log-level=warn",
        *([] if settings.fsync else ["--unsafe-no-fsync"]),
    ]


def _kube_apiserver(settings: Settings) -> list[str]:
    return [
        "--etcd-servers=" + _ETCD_CLIENTS,
        "--bind-address=127.0.0.1",
        # Else it looks for the machine's own address, and does not start where there is none but loopback.
        "--advertise-address=127.0.0.1",
        f"--secure-port={settings.port}",
        "--permit-port-sharing",
        "--tls-cert-file=apiserver.crt",
        "--tls-private-key-file=apiserver.key",
        "--client-ca-file=ca.crt",
        "--authorization-mode=RBAC",
        "--service-account-issuer=https://kubernetes.default.svc",
        "--service-account-key-file=service-account.key",
        "--service-account-signing-key-file=service-account.key",
        "--service-cluster-ip-range=" + _SERVICE_NETWORK,
        # Endpoints of the `kubernetes` Service may not be on loopback; nobody in the cluster asks for them.
        "--endpoint-reconciler-type=none",
        # Without controllers no namespace gets its default service account, and no pod would be let in.
        *([] if settings.living else ["--disable-admission-plugins=ServiceAccount"]),
        # Without it, an apiserver that is told to stop does not tell its watches, and waits a minute for them to end.
        "--shutdown-watch-termination-grace-period=2s",
        *settings.apiserver_arguments,
    ]


def _kube_controller_manager() -> list[str]:
    return [
        "--kubeconfig=kubeconfig",
        "--leader-elect=false",
        "--secure-port=0",
        "--root-ca-file=ca.crt",
        "--service-account-private-key-file=service-account.key",
        "--concurrent-deployment-syncs=20",
        "--concurrent-replicaset-syncs=20",
        # Its default of 20 requests a second lets a demo of some thousand pods creep.
        "--kube-api-qps=500",
        "--kube-api-burst=1000",
    ]


def _kwok(settings: Settings) -> list[str]:
    return [
        "--kubeconfig=kubeconfig",
        "--manage-all-nodes=false",
        "--manage-nodes-with-annotation-selector=kwok.x-k8s.io/node=fake",
        "--node-lease-duration-seconds=40",
        *(f"--config={stage}" for stage in settings.stages),
    ]
