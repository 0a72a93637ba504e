"""Stores of every kind become PEM; what is of no use is named with the way out."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import trustme
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.serialization import pkcs12

from kafka_eos_sink.client import key_stores
from kafka_eos_sink.client.key_stores import StoreProblem
from kafka_eos_sink.client.security import Secret

PASSWORD = "hunter2"


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture(scope="module")
def leaf(authority: trustme.CA) -> trustme.LeafCert:
    return authority.issue_cert("localhost")


def text(blob: Any) -> str:
    return str(blob.bytes().decode().strip())


def certificate(pem: str) -> x509.Certificate:
    return x509.load_pem_x509_certificate(pem.encode())


def pkcs12_store(leaf: trustme.LeafCert | None, *authorities: trustme.CA, password: str = PASSWORD) -> bytes:
    key = None if leaf is None else serialization.load_pem_private_key(leaf.private_key_pem.bytes(), None)
    return pkcs12.serialize_key_and_certificates(
        b"kafka",
        key,  # type: ignore[arg-type]
        None if leaf is None else certificate(text(leaf.cert_chain_pems[0])),
        [certificate(text(each.cert_pem)) for each in authorities],
        serialization.BestAvailableEncryption(password.encode()),
    )


def same_key(pem: str, leaf: trustme.LeafCert) -> bool:
    def public(data: bytes) -> bytes:
        key = serialization.load_pem_private_key(data, None).public_key()
        return key.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)

    return public(pem.encode()) == public(leaf.private_key_pem.bytes())


@pytest.mark.parametrize("lost", [" ", "", "\r\n", "\n  "])
def test_pem_on_a_single_line_is_mended(authority: trustme.CA, lost: str) -> None:
    pem = text(authority.cert_pem)
    first, *lines, last = pem.split("\n")
    assert key_stores.pem_certificates(f"{first}{lost}{lost.join(lines)}{lost}{last}") == pem


@pytest.mark.parametrize("form", [serialization.PrivateFormat.PKCS8, serialization.PrivateFormat.TraditionalOpenSSL])
def test_encrypted_key_is_detected(leaf: trustme.LeafCert, form: serialization.PrivateFormat) -> None:
    key = serialization.load_pem_private_key(leaf.private_key_pem.bytes(), None)
    encryption = serialization.BestAvailableEncryption(PASSWORD.encode())
    pem = key.private_bytes(serialization.Encoding.PEM, form, encryption).decode()
    found = key_stores.pem_key_material(pem, text(leaf.cert_chain_pems[0]))
    assert found.encrypted
    serialization.load_pem_private_key(found.private_key.reveal().encode(), PASSWORD.encode())


@pytest.mark.parametrize(
    ("key", "chain", "reason"),
    [
        ("", "C", "one private key in PEM, not 0"),
        ("KK", "C", "one private key in PEM, not 2"),
        ("C", "C", "one private key in PEM, not 0"),
        ("K", "", "no certificate"),
    ],
)
def test_incomplete_key_store_is_rejected(leaf: trustme.LeafCert, key: str, chain: str, reason: str) -> None:
    parts = {"K": text(leaf.private_key_pem) + "\n", "C": text(leaf.cert_chain_pems[0]) + "\n"}
    with pytest.raises(StoreProblem, match=reason):
        key_stores.pem_key_material("".join(parts[each] for each in key), "".join(parts[each] for each in chain))


def test_a_pkcs12_key_store_gives_its_chain_in_order() -> None:
    root = trustme.CA()
    middle = root.create_child_ca()
    lower = middle.create_child_ca()
    leaf = lower.issue_cert("localhost")
    store = pkcs12_store(leaf, root, lower, middle)
    found = key_stores.key_material(store, Secret(PASSWORD), "ssl.keystore")
    assert same_key(found.private_key.reveal(), leaf)
    expected = [text(leaf.cert_chain_pems[0]), text(lower.cert_pem), text(middle.cert_pem), text(root.cert_pem)]
    assert found.certificate_chain.replace("-\n-", "-|-").split("|") == expected


def test_a_pkcs12_trust_store_gives_all_its_certificates(authority: trustme.CA) -> None:
    other = trustme.CA()
    store = pkcs12_store(None, authority, other)
    found = key_stores.trusted_certificates(store, Secret(PASSWORD), "ssl.truststore")
    assert found == "\n".join((text(authority.cert_pem), text(other.cert_pem)))


@pytest.mark.parametrize("password", [None, "wrong"])
def test_wrong_store_password_is_reported_but_not_shown(authority: trustme.CA, password: str | None) -> None:
    given = None if password is None else Secret(password)
    with pytest.raises(StoreProblem, match=r"or ssl\.truststore\.password is wrong") as refused:
        key_stores.trusted_certificates(pkcs12_store(None, authority), given, "ssl.truststore")
    assert "wrong'" not in str(refused.value)
    assert PASSWORD not in str(refused.value)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"\xfe\xed\xfe\xed\0\0\0\2", "JKS store: only Java reads JKS; convert it with keytool"),
        (b"\xce\xce\xce\xce\0\0\0\2", "JKS store"),
        (b"", "neither PEM nor PKCS12"),
        (b"hello", "neither PEM nor PKCS12"),
        (b"0 is how DER begins", "it is not a PKCS12 store"),
        (b"-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n", "contains no certificate"),
    ],
)
def test_invalid_store_is_rejected(data: bytes, reason: str) -> None:
    with pytest.raises(StoreProblem, match=reason):
        key_stores.trusted_certificates(data, None, "ssl.truststore")


def test_authorities_may_be_a_file_or_a_folder(tmp_path: Path, authority: trustme.CA) -> None:
    (tmp_path / "a.pem").write_bytes(authority.cert_pem.bytes())
    (tmp_path / "b.txt").write_text("no certificate")
    (tmp_path / "folder").mkdir()
    pem = text(authority.cert_pem)
    assert key_stores.certificates_at(str(tmp_path)) == pem
    assert key_stores.certificates_at(str(tmp_path / "a.pem")) == pem
    with pytest.raises(StoreProblem, match=r"no file in .*folder contains a certificate"):
        key_stores.certificates_at(str(tmp_path / "folder"))
    with pytest.raises(StoreProblem, match=r"nowhere.pem cannot be read on this machine"):
        key_stores.certificates_at(str(tmp_path / "nowhere.pem"))


def test_begins_without_an_end_take_linear_time() -> None:
    began = time.process_time()
    assert key_stores.pem_certificates("-----BEGIN A-----\n" * 10_000) == ""
    assert time.process_time() - began < 2


def test_block_ends_at_its_own_label(leaf: trustme.LeafCert) -> None:
    (chain,) = (text(each) for each in leaf.cert_chain_pems)
    mixed = f"-----BEGIN CERTIFICATE-----\ncut\n{chain}\n-----END CERTIFICATE-----\n-----END OTHER-----"
    assert key_stores.pem_certificates(mixed) == chain
