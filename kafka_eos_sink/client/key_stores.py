"""Trust stores and key stores of Kafka clients, converted to PEM for Python's TLS.

This module reads PEM, and PKCS12 with the package ``cryptography`` (the extra ``pkcs12``). Only Java reads JKS.
Error texts name the command that converts a store, and never contain a part of one.
"""

from __future__ import annotations

import base64
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from kafka_eos_sink.client.security import Secret
from kafka_eos_sink.extras import install_command

_MARK = re.compile(r"-----(BEGIN|END) ([A-Z0-9 ]+)-----")
_BASE64 = re.compile(r"[A-Za-z0-9+/]+=*")
_CERTIFICATES = ("CERTIFICATE", "X509 CERTIFICATE")
_LINE = 64

JKS_WAY_OUT = (
    "only Java reads JKS; convert it with keytool -importkeystore -srckeystore OLD -destkeystore NEW "
    "-deststoretype PKCS12 and set {type}=PKCS12, or convert NEW to PEM with openssl pkcs12 -nodes -in NEW -out NEW.pem "
    "and set {type}=PEM"
)


class StoreProblem(Exception):
    """The reason why a store cannot be used; it follows ``option:`` in messages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyMaterial:
    """A private key, maybe encrypted, its certificate, then the issuers, all in PEM."""

    private_key: Secret
    certificate_chain: str

    @property
    def encrypted(self) -> bool:
        return "ENCRYPTED" in self.private_key.reveal()


def read_store(path: str) -> bytes:
    """Return the bytes of a file; raise StoreProblem if it cannot be read."""
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise StoreProblem(
            f"{path} cannot be read on this machine ({error.strerror}); check the path and its permissions"
        ) from None


def certificates_at(path: str) -> str:
    """Return the certificates of a file or folder (librdkafka's ``ssl.ca.location``)."""
    if not Path(path).is_dir():
        return trusted_certificates(read_store(path), None, "ssl.ca")
    found = [pem_certificates(_ascii(read_store(str(file)))) for file in sorted(Path(path).iterdir()) if file.is_file()]
    if not any(found):
        raise StoreProblem(f"no file in {path} contains a certificate in PEM; give a PEM file or a folder of them")
    return "\n".join(filter(None, found))


def trusted_certificates(data: bytes, password: Secret | None, option: str) -> str:
    """Return a trust store's certificates; ``option`` is like ``ssl.truststore``."""
    if _kind(data, option) == "PKCS12":
        _key, certificates = _open_pkcs12(data, password, option)
        found = "\n".join(certificates)
    else:
        found = pem_certificates(_ascii(data))
    if not found:
        raise StoreProblem("it contains no certificate; add the authority that signed the brokers' certificates")
    return found


def key_material(data: bytes, password: Secret | None, option: str) -> KeyMaterial:
    """Return the private key of a key store, with its certificates."""
    if _kind(data, option) == "PKCS12":
        key, certificates = _open_pkcs12(data, password, option)
        if key is None or not certificates:
            raise StoreProblem("it contains no private key with a certificate; export both into one store")
        return KeyMaterial(private_key=Secret(key), certificate_chain="\n".join(certificates))
    text = _ascii(data)
    return pem_key_material(text, text)


def pem_key_material(key: str, certificate_chain: str) -> KeyMaterial:
    """Return the private key and its certificates in PEM texts, or raise StoreProblem."""
    keys = [text for label, text in _blocks(key) if label.endswith("PRIVATE KEY")]
    if len(keys) != 1:
        raise StoreProblem(f"it must contain one private key in PEM, not {len(keys)}")
    certificates = pem_certificates(certificate_chain)
    if not certificates:
        raise StoreProblem("the private key has no certificate in PEM; add the certificate and its issuers")
    return KeyMaterial(private_key=Secret(keys[0]), certificate_chain=certificates)


def pem_certificates(text: str) -> str:
    """Return only the certificates in ``text``, in order; line ends may be missing."""
    return "\n".join(block for label, block in _blocks(text) if label in _CERTIFICATES)


def validity(certificate_chain: str) -> tuple[datetime, datetime]:
    """Return the first and the last moment of the first certificate in PEM (RFC 5280)."""
    der = base64.b64decode("".join(_blocks(certificate_chain)[0][1].splitlines()[1:-1]))
    at = _element(der, _element(der, 0)[1])[1]  # the first field of TBSCertificate
    # An explicit version, tag 0xA0, may precede serial number, signature algorithm and issuer.
    for _ in range(4 if der[at] == 0xA0 else 3):
        at = _element(der, at)[2]
    times = []
    at = _element(der, at)[1]
    for _ in range(2):
        tag, begin, at = _element(der, at)
        text = der[begin:at].decode()
        # UTCTime has a year of two digits, up to 2049.
        century = "" if tag != 0x17 else "20" if text < "50" else "19"
        times.append(datetime.strptime(f"{century}{text}", "%Y%m%d%H%M%SZ").replace(tzinfo=UTC))
    return times[0], times[1]


def _element(der: bytes, at: int) -> tuple[int, int, int]:
    """Return an element's tag, and where its content begins and ends."""
    size, begin = der[at + 1], at + 2
    if size & 0x80:
        begin += size & 0x7F
        size = int.from_bytes(der[at + 2 : begin], "big")
    return der[at], begin, begin + size


def _blocks(text: str) -> list[tuple[str, str]]:
    """Return label and PEM of each block, broken into lines again."""
    found = []
    begin: re.Match[str] | None = None
    # Marks one by one: a pattern of whole blocks takes quadratic time on text with many begins and no end.
    for mark in _MARK.finditer(text):
        label = mark[2]
        if mark[1] == "BEGIN":
            begin = mark
            continue
        if begin is None or label != begin[2]:
            continue
        body = "".join(text[begin.end() : mark.start()].split())
        # A property on a single line has lost the line ends that OpenSSL requires.
        if _BASE64.fullmatch(body):
            lines = [body[at : at + _LINE] for at in range(0, len(body), _LINE)]
            found.append((label, "\n".join((f"-----BEGIN {label}-----", *lines, f"-----END {label}-----"))))
        else:
            # A key in OpenSSL's traditional encryption has header lines, and the key cannot be decrypted without them.
            found.append((label, text[begin.start() : mark.end()]))
        begin = None
    return found


def _ascii(data: bytes) -> str:
    return data.decode("ascii", errors="replace")


def _kind(data: bytes, option: str) -> str:
    """Detect PEM or PKCS12 by content; a missing or wrong ``.type`` is no error."""
    # The magic numbers of JKS and JCEKS.
    if data.startswith((b"\xfe\xed\xfe\xed", b"\xce\xce\xce\xce")):
        raise StoreProblem(f"it is a JKS store: {JKS_WAY_OUT.format(type=f'{option}.type')}")
    if b"-----BEGIN " in data:
        return "PEM"
    # PKCS12 is DER, which begins with the tag of a SEQUENCE.
    if data.startswith(b"\x30"):
        return "PKCS12"
    raise StoreProblem("it is neither PEM nor PKCS12; convert it to PEM")


def _open_pkcs12(data: bytes, password: Secret | None, option: str) -> tuple[str | None, list[str]]:
    """Return the key and all certificates: its own first, each before its issuer."""
    try:
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.serialization import pkcs12
    except ImportError:
        raise StoreProblem(
            f"reading PKCS12 requires the package cryptography, which is not installed. Run `{install_command('pkcs12')}`. "
            f"Or convert the store to PEM with openssl pkcs12 -nodes and set {option}.type=PEM"
        ) from None
    secret = None if password is None else password.reveal().encode()
    try:
        store = pkcs12.load_pkcs12(data, secret)
    except ValueError:
        raise StoreProblem(
            f"it is not a PKCS12 store, or {option}.password is wrong; check the path and the password"
        ) from None
    # TLS sends the chain from the leaf to the root (RFC 8446, 4.4.2). A PKCS12 store keeps the issuers in any order.
    rest: list[Any] = [entry.certificate for entry in store.additional_certs]
    ordered: list[Any] = [] if store.cert is None else [store.cert.certificate]
    while ordered and rest:
        issuer = next((each for each in rest if each.subject == ordered[-1].issuer), None)
        if issuer is None:
            break
        rest.remove(issuer)
        ordered.append(issuer)
    pem = serialization.Encoding.PEM
    key = None
    if store.key is not None:
        plain = serialization.NoEncryption()
        key = store.key.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain).decode()
    return key, [each.public_bytes(pem).decode().strip() for each in (*ordered, *rest)]
