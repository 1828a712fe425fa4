"""A certificate authority of one control plane or one federation, made in memory and good for a week."""

from __future__ import annotations

import datetime
import ipaddress
import os
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

VALIDITY = datetime.timedelta(days=7)
"""How long every certificate is good. A control plane gets new ones with every `ControlPlane` object."""

TRUST_DOMAIN = "federator.test"
"""Of the agents' certificates."""

_SKEW = datetime.timedelta(minutes=5)
"""Certificates begin this much in the past, for clocks that run apart."""


class KeyPair(NamedTuple):
    """A certificate and its private key, both PEM."""

    certificate: bytes
    key: bytes

    def write(self, folder: Path, name: str) -> tuple[Path, Path]:
        """Writes or replaces `<name>.crt` and `<name>.key`, which only their owner can read; returns both paths."""
        return (
            write_pem(folder / f"{name}.crt", self.certificate),
            write_pem(folder / f"{name}.key", self.key),
        )


def write_pem(path: Path, content: bytes) -> Path:
    """Writes or replaces a file that only its owner can read, whole or not at all."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(content)
    return partial.replace(path)


def signing_key() -> bytes:
    """A new private key, PEM, e.g. for an apiserver to sign service account tokens with."""
    return _pem(ec.generate_private_key(ec.SECP256R1()))


class CertificateAuthority:
    """Signs the certificates of one control plane or one federation. Its own key never leaves the process.

    Attributes:
        certificate: PEM of the authority's certificate: what clients trust.
    """

    def __init__(self, name: str) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        signed = (
            _builder(self._name, self._name, self._key)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_key_usage(signs_certificates=True), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(self._key.public_key()), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        self._authority_key = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        self.certificate = signed.public_bytes(serialization.Encoding.PEM)

    def serving(self, name: str, *, hosts: tuple[str, ...], addresses: tuple[str, ...]) -> KeyPair:
        """A certificate for a server that is reached under these DNS names and IP addresses."""
        alternatives = [
            *map(x509.DNSName, hosts),
            *(x509.IPAddress(ipaddress.ip_address(address)) for address in addresses),
        ]
        return self._issue(
            x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]),
            ExtendedKeyUsageOID.SERVER_AUTH,
            x509.SubjectAlternativeName(alternatives),
        )

    def client(self, user: str, *, groups: tuple[str, ...] = ()) -> KeyPair:
        """A certificate that Kubernetes takes for this user, a member of these groups."""
        attributes = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in groups]
        attributes.append(x509.NameAttribute(NameOID.COMMON_NAME, user))
        return self._issue(x509.Name(attributes), ExtendedKeyUsageOID.CLIENT_AUTH)

    def agent(self, cluster_id: str, *, lifetime: datetime.timedelta = VALIDITY) -> KeyPair:
        """A certificate with which an aggregator takes an agent for this cluster's.

        Args:
            cluster_id: its ClusterID.
            lifetime: how long it is good from now; negative for one that has expired.
        """
        uri = x509.UniformResourceIdentifier(f"spiffe://{TRUST_DOMAIN}/cluster/{cluster_id}")
        return self._issue(
            x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"agent of {cluster_id}")]),
            ExtendedKeyUsageOID.CLIENT_AUTH,
            x509.SubjectAlternativeName([uri]),
            lifetime,
        )

    def _issue(
        self,
        subject: x509.Name,
        usage: x509.ObjectIdentifier,
        names: x509.SubjectAlternativeName | None = None,
        lifetime: datetime.timedelta = VALIDITY,
    ) -> KeyPair:
        key = ec.generate_private_key(ec.SECP256R1())
        builder = (
            _builder(subject, self._name, key, lifetime)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_key_usage(signs_certificates=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
            .add_extension(self._authority_key, critical=False)
        )
        if names is not None:
            builder = builder.add_extension(names, critical=False)
        return KeyPair(builder.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM), _pem(key))


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    lifetime: datetime.timedelta = VALIDITY,
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(min(now, now + lifetime) - _SKEW)
        .not_valid_after(now + lifetime)
    )


def _key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    # Not PKCS8: the apiserver does not take that for its service account key.
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
    )
