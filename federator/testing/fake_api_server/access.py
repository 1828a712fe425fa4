"""Whom the fake lets in, and how clients are told."""

from __future__ import annotations

import base64
import json
import ssl
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from federator.testing.certificates import CertificateAuthority, KeyPair
from federator.testing.fake_api_server.status import ApiError, Json, status


class Access:
    """Tokens and client certificates that are taken; everybody until one of them is required."""

    def __init__(self) -> None:
        self._tokens: set[str] = set()
        self._certificates: set[bytes] | None = None
        self._required = False

    def require_tokens(self, tokens: tuple[str, ...]) -> None:
        """Takes these tokens from now on, and no others."""
        self._tokens = set(tokens)
        self._required = True

    def require_certificates(self, pairs: tuple[KeyPair, ...]) -> None:
        """Takes these client certificates from now on; without any given, all that its authority has signed."""
        self._certificates = {_der(pair.certificate) for pair in pairs}
        self._required = True

    def allow_all(self) -> None:
        """Takes everybody."""
        self._required = False

    def check(self, headers: Mapping[str, str], tls: ssl.SSLObject | None) -> str:
        """Returns who asks.

        Raises:
            ApiError: 401.
        """
        certificate = tls.getpeercert(binary_form=True) if tls is not None else None
        if certificate and self._certificates is not None and certificate in (self._certificates or {certificate}):
            return _common_name(certificate)
        scheme, _, token = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and token in self._tokens:
            return "token"
        if self._required:
            raise ApiError(401, status(401))
        return _common_name(certificate) if certificate else ""


class Authority:
    """The authority that signs the fake's own certificate and its clients'."""

    def __init__(self) -> None:
        self._authority = CertificateAuthority("authority of a fake kube-apiserver")
        self.certificate = self._authority.certificate

    def client(self, user: str, groups: tuple[str, ...]) -> KeyPair:
        """A client certificate."""
        return self._authority.client(user, groups=groups)

    def server_context(self) -> ssl.SSLContext:
        """The context of the listening socket; a client's certificate is asked for and checked, but not needed."""
        pair = self._authority.serving("fake kube-apiserver", hosts=("localhost",), addresses=("127.0.0.1",))
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cadata=self.certificate.decode())
        context.verify_mode = ssl.CERT_OPTIONAL
        with tempfile.TemporaryDirectory() as folder:
            context.load_cert_chain(*pair.write(Path(folder), "server"))
        return context


def write_kubeconfig(path: Path, *, context: str, url: str, authority: bytes | None, user: Mapping[str, Any]) -> Path:
    """Writes a kubeconfig of one context, readable by its owner alone. It is JSON, which is YAML."""
    cluster: Json = {"server": url}
    if authority is not None:
        cluster["certificate-authority-data"] = base64.b64encode(authority).decode()
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": context,
        "contexts": [{"name": context, "context": {"cluster": context, "user": context}}],
        "clusters": [{"name": context, "cluster": cluster}],
        "users": [{"name": context, "user": dict(user)}],
    }
    path.touch(mode=0o600)
    path.write_text(json.dumps(content, indent=1))
    return path


def inline(pair: KeyPair) -> Json:
    """A key pair as a kubeconfig's user has it."""
    return {
        "client-certificate-data": base64.b64encode(pair.certificate).decode(),
        "client-key-data": base64.b64encode(pair.key).decode(),
    }


def _der(pem: bytes) -> bytes:
    return x509.load_pem_x509_certificate(pem).public_bytes(Encoding.DER)


def _common_name(der: bytes) -> str:
    subject = x509.load_der_x509_certificate(der).subject
    return str(subject.get_attributes_for_oid(x509.NameOID.COMMON_NAME)[0].value)
