"""Certificates for tests, each authority and each certificate made anew; files and texts in PEM.

Importable from every test as ``certificates`` (pytest's ``pythonpath`` names the folder).
"""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

import trustme
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.serialization import pkcs12


class Authority:
    """Signs certificates; `file` is what those who trust it are given."""

    def __init__(self, folder: Path, name: str = "authority") -> None:
        self._folder = folder
        self._authority = trustme.CA()
        self.pem = self._authority.cert_pem.bytes().decode()
        self.file = folder / f"{name}.pem"
        self.file.write_text(self.pem)

    def issue(self, *names: str, not_before: datetime | None = None, not_after: datetime | None = None) -> Certificate:
        """A certificate for these host names, addresses or whatever else a principal is called."""
        leaf = self._authority.issue_cert(*names, not_before=not_before, not_after=not_after)
        return Certificate(self._folder, leaf, self.pem)


class Certificate:
    """A certificate with its private key; the key is PKCS#8, the only form that Kafka reads."""

    def __init__(self, folder: Path, leaf: trustme.LeafCert, authority: str) -> None:
        self._key = serialization.load_pem_private_key(leaf.private_key_pem.bytes(), None)
        self._folder = folder
        self._authority = authority
        self.chain = leaf.cert_chain_pems[0].bytes().decode()
        self.serial = x509.load_pem_x509_certificate(self.chain.encode()).serial_number

    def key(self, password: str | None = None) -> str:
        """The private key, encrypted where there is a password."""
        encryption: serialization.KeySerializationEncryption = serialization.NoEncryption()
        if password is not None:
            encryption = serialization.BestAvailableEncryption(password.encode())
        pem, pkcs8 = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
        return self._key.private_bytes(pem, pkcs8, encryption).decode()

    @property
    def file(self) -> Path:
        """Key, certificate and authority in one file, as Kafka's key stores in PEM."""
        path = self._folder / f"{self.serial}.pem"
        path.write_text(self.key() + self.chain + self._authority)
        return path

    def pkcs12(self, password: str) -> Path:
        path = self._folder / f"{self.serial}.p12"
        certificate, authority = (
            x509.load_pem_x509_certificate(each.encode()) for each in (self.chain, self._authority)
        )
        encryption = serialization.BestAvailableEncryption(password.encode())
        path.write_bytes(
            pkcs12.serialize_key_and_certificates(b"client", self._key, certificate, [authority], encryption)  # type: ignore[arg-type]
        )
        return path
