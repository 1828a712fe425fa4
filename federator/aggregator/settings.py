"""What an aggregator can be told. Each field says its unit, its default's reason, and who reads it."""

from __future__ import annotations

from pathlib import Path

import msgspec

from federator.aggregator.ingest.settings import IngestSettings
from federator.aggregator.ledger.lmdb import DEFAULT_MAX_BYTES
from federator.aggregator.serve.watch_hub import MAX_WATCHES
from federator.api.address import UNIX, is_local
from federator.errors import InvalidInput
from federator.wire.tls import CERTIFICATE_FIELD, KEY_FIELD, TLSFiles, all_or_none

DAY = 24 * 3600.0


def admin_socket(state_directory: Path) -> str:
    """Address of the administrating side where nothing else is said: a socket in the state directory."""
    return f"{UNIX}{state_directory.absolute() / 'admin.sock'}"


class AggregatorSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of one aggregator.

    Attributes:
        listen: address of the reading side, `host:port` or `unix:/path`. One that others reach needs
            `client_ca_file`.
        ingest_listen: address of the pushing side, apart from the reading side because only the committing process
            may take changes. One that others reach needs `agent_ca_file`.
        http_listen: address of metrics and health, `host:port`; empty for none. Plain HTTP for whoever reaches it: it
            names clusters and types, never objects. On loopback, since nobody else is known to need it.
        admin_listen: address of the administrating side, which can remove clusters: `unix:/path`, which only the
            process's own user can connect to, since whoever may read must not be able to remove. Empty for none; None
            for `admin.sock` in the state directory, or none without one.
        tls_cert_file: PEM file of the certificate of both sides, followed by intermediate ones; None for no TLS.
        tls_private_key_file: PEM file of its key.
        agent_ca_file: PEM file of the authorities of agents' certificates. Given, the pushing side speaks TLS only,
            and takes a session's ClusterID from the agent's certificate. Whoever can have certificates signed by these
            authorities can speak for any cluster.
        client_ca_file: PEM file of the authorities of readers' certificates. Given, the reading side speaks TLS only,
            and whoever has a certificate of theirs may read everything.
        state_directory: folder of the ledger; None keeps it in memory, for throw-away runs.
        ledger_max_bytes: room for the ledger's records, in bytes; history gives way before it is reached, and beyond
            it nothing more is taken. 8 GiB: some ten million changes of pods. At least 128 MiB, since what watches
            read from memory is not given up, and that takes up to 32 MiB.
        history: seconds of history that a cursor may reach back. 7 days: a client that was down over a long weekend
            still resumes.
        compaction_interval: seconds between two looks at what history may be forgotten. 60.
        shutdown_grace: seconds that calls may take to end when the aggregator stops. 2: watches are told to come
            back at once, anything else is short.
        field_indexes: fields that are indexed, each `PATH` or `PATH@TYPE+TYPE`, such as
            `spec.replicas@deployments.apps`; a part `*` of the path stands for all elements of an array. None: each
            takes memory, and time for each object that changes.
        max_watches: watches that may be open at once. 20,000: idle they take 32 KiB each, 640 MB together.
        ingest: settings of the pushing side.
    """

    listen: str = "127.0.0.1:9090"
    ingest_listen: str = "127.0.0.1:9443"
    http_listen: str = "127.0.0.1:9091"
    admin_listen: str | None = None
    tls_cert_file: Path | None = None
    tls_private_key_file: Path | None = None
    agent_ca_file: Path | None = None
    client_ca_file: Path | None = None
    state_directory: Path | None = None
    ledger_max_bytes: int = DEFAULT_MAX_BYTES
    history: float = 7 * DAY
    compaction_interval: float = 60.0
    shutdown_grace: float = 2.0
    field_indexes: tuple[str, ...] = ()
    max_watches: int = MAX_WATCHES
    ingest: IngestSettings = IngestSettings()

    def reading_tls(self) -> TLSFiles | None:
        """The files of the reading side; None where it has no TLS.

        Raises:
            InvalidInput: the settings contradict each other, or the address may not go without TLS.
        """
        return self._tls("listen", self.listen, "client-ca-file", self.client_ca_file)

    def ingest_tls(self) -> TLSFiles | None:
        """The files of the pushing side; None where it has no TLS.

        Raises:
            InvalidInput: the settings contradict each other, or the address may not go without TLS.
        """
        return self._tls("ingest-listen", self.ingest_listen, "agent-ca-file", self.agent_ca_file)

    def admin_address(self) -> str | None:
        """Address of the administrating side; None where there is none.

        Raises:
            InvalidInput: it is no unix socket.
        """
        if self.admin_listen is None:
            return None if self.state_directory is None else admin_socket(self.state_directory)
        if self.admin_listen and not self.admin_listen.startswith(UNIX):
            raise InvalidInput("admin-listen", self.admin_listen, "unix:/path, or nothing for no such listener")
        return self.admin_listen or None

    def _tls(self, field: str, address: str, ca_field: str, ca_file: Path | None) -> TLSFiles | None:
        if ca_file is not None:
            if address.startswith(UNIX):
                raise InvalidInput(ca_field, ca_file, f"nothing, since {field} is a unix socket, which has no TLS")
            return all_or_none(ca_file, self.tls_cert_file, self.tls_private_key_file, ca_field=ca_field)
        if not is_local(address, field=field):
            others = f"any host:port of an aggregator with {ca_field}, {CERTIFICATE_FIELD} and {KEY_FIELD}"
            raise InvalidInput(field, address, f"unix:/path, host:port on loopback, or {others}")
        unused = self.tls_cert_file or self.tls_private_key_file
        if unused is not None and self.agent_ca_file is None and self.client_ca_file is None:
            raise InvalidInput(ca_field, "", f"a file, since there is {unused}: a listener with TLS checks who calls")
        return None
