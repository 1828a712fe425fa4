"""What a control plane stands on until it is closed."""

from __future__ import annotations

import socket
import ssl
from pathlib import Path

from federator.testing import programs
from federator.testing.certificates import CertificateAuthority, signing_key
from federator.testing.kubeconfig import Access, write_kubeconfig
from federator.testing.process_group import ProcessGroup
from federator.testing.scratch import ScratchFolder


class Ground:
    """Folder, port, certificates and process group of one control plane; they outlast its programs.

    Attributes:
        folder: its files.
        port: port of its apiserver, reserved until `close`.
        authority: what signs its certificates.
        access: how its administrator reaches it.
        tls: the same for a client in this process.
        group: the process group of its programs.
    """

    def __init__(self, name: str, folder: Path | None) -> None:
        self._scratch = ScratchFolder() if folder is None else None
        self.folder = self._scratch.path if self._scratch else folder or Path()
        self.folder.mkdir(parents=True, exist_ok=True)
        self.folder.chmod(0o700)
        self._reservation = _reserve_port()
        self.port: int = self._reservation.getsockname()[1]
        self.authority = CertificateAuthority(f"federator testbed {name}")
        admin = self.authority.client("admin", groups=("system:masters",))
        self.access = Access(name, f"https://127.0.0.1:{self.port}", self.authority.certificate, admin)
        self._write()
        self.tls = ssl.create_default_context(cadata=self.authority.certificate.decode())
        self.tls.load_cert_chain(self.folder / "admin.crt", self.folder / "admin.key")
        self.group = ProcessGroup()  # last: what failed before has left no process

    def _write(self) -> None:
        serving = self.authority.serving(
            "kube-apiserver", hosts=programs.SERVING_HOSTS, addresses=programs.SERVING_ADDRESSES
        )
        files = {
            "ca.crt": self.authority.certificate,
            "apiserver.crt": serving.certificate,
            "apiserver.key": serving.key,
            "admin.crt": self.access.user.certificate,
            "admin.key": self.access.user.key,
        }
        if not (self.folder / "service-account.key").exists():
            # Kept with the data: tokens that were signed before a restart stay good.
            files["service-account.key"] = signing_key()
        for file, content in files.items():
            (self.folder / file).write_bytes(content)
        write_kubeconfig(self.folder / "kubeconfig", [self.access])

    def close(self) -> None:
        """Kills the process group, gives the port back and removes a temporary folder. Blocks."""
        self.group.close()
        self._reservation.close()
        if self._scratch is not None:
            self._scratch.remove()


def _reserve_port() -> socket.socket:
    """Binds a free port of 127.0.0.1 without listening on it.

    The apiserver shares the port (--permit-port-sharing, SO_REUSEPORT), and nobody else can take it, neither before
    it starts nor while it is down; connections are refused as long as only this socket is bound.
    """
    reservation = socket.socket()
    reservation.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    reservation.bind(("127.0.0.1", 0))
    return reservation
