"""TLS between an aggregator and those who call it: always mutual, with files that are read again when they change.

Certificates are checked when a connection is opened. One that is open goes on when its certificates expire or are
replaced.
"""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import grpc
import msgspec
import structlog

from federator.api.address import UNIX, is_local
from federator.errors import AggregatorUnreachable, FederatorError, InvalidInput

log = structlog.get_logger(__name__)

CERTIFICATE_FIELD = "tls-cert-file"
KEY_FIELD = "tls-private-key-file"
AGGREGATOR_CA_FIELD = "aggregator-ca-file"

Options = Sequence[tuple[str, int]]

FileVersion = tuple[tuple[int, int, int], ...]
"""Tells whether files are the same as before."""


class Pem(NamedTuple):
    """The contents of the files."""

    ca: bytes
    certificate: bytes
    private_key: bytes


class TLSFiles(msgspec.Struct, frozen=True, kw_only=True):
    """The three PEM files of one side of a connection. Their paths stay, their contents may be replaced at any time.

    Attributes:
        ca_file: certificates of the authorities of the other side. One more is accepted while authorities change.
        certificate_file: this side's certificate, followed by intermediate ones.
        private_key_file: its key, not encrypted.
        ca_field: name of the setting that holds `ca_file`, for errors.
    """

    ca_file: Path
    certificate_file: Path
    private_key_file: Path
    ca_field: str = AGGREGATOR_CA_FIELD

    def read(self) -> Pem:
        """Reads the files. Blocks for as long as the disk does.

        Raises:
            InvalidInput: a file cannot be read or holds something else, or the key is not the certificate's.
        """
        named = {
            self.ca_field: self.ca_file,
            CERTIFICATE_FIELD: self.certificate_file,
            KEY_FIELD: self.private_key_file,
        }
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        contents = []
        for field, path in named.items():
            try:
                contents.append(path.read_bytes())
            except OSError as error:
                raise InvalidInput(field, path, f"a file that can be read ({error.strerror})") from None
        try:
            context.load_verify_locations(self.ca_file)
        except (OSError, ValueError):
            raise InvalidInput(self.ca_field, self.ca_file, "a PEM file of certificates") from None
        try:
            # The password keeps OpenSSL from asking the terminal for one.
            context.load_cert_chain(self.certificate_file, self.private_key_file, password="")
        except (OSError, ValueError):
            allowed = f"a PEM file with the certificate of the unencrypted key in {self.private_key_file}"
            raise InvalidInput(CERTIFICATE_FIELD, self.certificate_file, allowed) from None
        return Pem(*contents)

    def version(self) -> FileVersion:
        """What changes when a file does; empty where one is not there."""
        try:
            stats = [path.stat() for path in (self.ca_file, self.certificate_file, self.private_key_file)]
        except OSError:
            return ()
        return tuple((stat.st_ino, stat.st_mtime_ns, stat.st_size) for stat in stats)


def all_or_none(
    ca_file: Path | None,
    certificate_file: Path | None,
    private_key_file: Path | None,
    *,
    ca_field: str = AGGREGATOR_CA_FIELD,
) -> TLSFiles | None:
    """The files of one side, or None where none is given, which means plaintext.

    Raises:
        InvalidInput: one is missing.
    """
    given = {ca_field: ca_file, CERTIFICATE_FIELD: certificate_file, KEY_FIELD: private_key_file}
    if ca_file and certificate_file and private_key_file:
        return TLSFiles(
            ca_file=ca_file, certificate_file=certificate_file, private_key_file=private_key_file, ca_field=ca_field
        )
    present = " and ".join(field for field, path in given.items() if path)
    if not present:
        return None
    missing = next(field for field, path in given.items() if not path)
    raise InvalidInput(missing, "", f"a file, since {present} asks for TLS, in which both sides show a certificate")


def server_credentials(files: TLSFiles) -> grpc.ServerCredentials:
    """Credentials of a listener that asks every client for a certificate.

    The files are looked at with each new connection. New contents that are not sound are reported, and the former stay
    in use.

    Raises:
        InvalidInput: the files are not sound now.
    """
    latest = files.read()
    refused = ""

    def fetch() -> grpc.ServerCertificateConfiguration | None:
        # Called by a thread of gRPC's own, one at a time.
        nonlocal latest, refused
        try:
            found = files.read()
        except InvalidInput as error:
            if str(error) != refused:
                refused = str(error)
                log.error("TLS files are not taken, the former are used", cause=refused)
            return None
        refused = ""
        if found == latest:
            return None
        latest = found
        log.info("TLS files read again", certificate=str(files.certificate_file))
        return _configuration(found)

    first = _configuration(latest)
    # The stubs forget that None says that nothing has changed.
    return grpc.dynamic_ssl_server_credentials(first, fetch, require_client_authentication=True)  # type: ignore[arg-type]


def _configuration(pem: Pem) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration([(pem.private_key, pem.certificate)], root_certificates=pem.ca)


def require_dialable(address: str, files: TLSFiles | None, *, field: str) -> None:
    """Checks whom a client may dial: with TLS any `host:port`, in plaintext only what this machine alone reaches.

    Raises:
        InvalidInput: it may not be dialled so.
    """
    if files is None and not is_local(address, field=field):
        allowed = f"unix:/path, host:port on loopback, or any host:port together with {AGGREGATOR_CA_FIELD}"
        raise InvalidInput(field, address, allowed)
    if files is not None and address.startswith(UNIX):
        raise InvalidInput(field, address, f"host:port, since {files.ca_field} is given: a unix socket has no TLS")


def open_channel(address: str, pem: Pem | None, options: Options) -> grpc.aio.Channel:
    """A channel to an aggregator: TLS with what was read, or plaintext. Nothing is sent yet."""
    if pem is None:
        return grpc.aio.insecure_channel(address, options=options)
    credentials = grpc.ssl_channel_credentials(pem.ca, pem.private_key, pem.certificate)
    return grpc.aio.secure_channel(address, credentials, options=options)


def explained(error: FederatorError, files: TLSFiles | None) -> FederatorError:
    """Says of a connection that was closed without a word what may be behind it.

    In TLS 1.3 the client is done before the server has seen its certificate, and a refusal may get lost on the way.
    """
    if files is None or not isinstance(error, AggregatorUnreachable) or not error.cause.endswith("Socket closed"):
        return error
    why = f"{error.cause}; perhaps it does not accept the certificate in {files.certificate_file}"
    return AggregatorUnreachable(error.address, why)
