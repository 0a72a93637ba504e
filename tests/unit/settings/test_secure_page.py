"""The properties of docs/secure.md, read as a write reads them."""

from __future__ import annotations

from pathlib import Path

import pytest

from certificates import Authority
from documents import ROOT, Block, read
from kafka_eos_sink.client import kerberos
from kafka_eos_sink.settings.options import read_options

BLOCKS = [block for block in read(ROOT / "docs" / "secure.md").blocks if block.language == "properties"]
PASSWORD = "correct-horse"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What a user's machine has: an environment variable, and the files of /etc/kafka."""
    monkeypatch.setenv("ORDERS_CLIENT_SECRET", PASSWORD)
    authority = Authority(tmp_path, "ca")
    client = authority.issue("client.example")
    (tmp_path / "client.pem").write_text(client.key(PASSWORD) + client.chain)
    (tmp_path / "secrets.properties").write_text(f"key.password={PASSWORD}\ntoken.hmac={PASSWORD}\n")
    (tmp_path / "orders.keytab").touch()
    monkeypatch.setattr(kerberos, "missing_library", lambda: None)
    return tmp_path


def options_of(block: Block, folder: Path) -> dict[str, str]:
    file = folder / "client.properties"
    file.write_text(block.text.replace("/etc/kafka", str(folder)))
    return {"kafka.properties.file": str(file), "topic": "orders"}


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.section)
def test_properties_are_read_without_problem_or_warning(block: Block, folder: Path) -> None:
    found = read_options(options_of(block, folder))
    assert found.warnings == ()
    assert f"security.protocol={found.client.security.protocol}\n" in block.text
    assert PASSWORD not in repr(found)
