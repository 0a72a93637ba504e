"""The option blocks of docs/services.md, read as a write reads them."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path

import pytest
import trustme

from kafka_eos_sink.settings.options import read_options
from kafka_eos_sink.settings.secrets import references

PAGE = (Path(__file__).parents[3] / "docs/services.md").read_text("utf-8")
BLOCKS = [ast.literal_eval(block) for block in re.findall(r"```python\noptions = (\{.*?\n\})\n```", PAGE, re.DOTALL)]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What a user's machine has: the environment variables, and the files of /etc/kafka."""
    for name in re.findall(r"\$\{env:(\w+)\}", PAGE):
        monkeypatch.setenv(name, "given")
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    leaf = authority.issue_cert("client.example")
    given = {"certificate": leaf.cert_chain_pems[0].bytes().decode(), "key": leaf.private_key_pem.bytes().decode()}
    lines = (f"{name}={text.strip()}".replace("\n", "\\n") + "\n" for name, text in given.items())
    (tmp_path / "client.properties").write_text("".join(lines))
    return tmp_path


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block["kafka.bootstrap.servers"].partition(":")[0])
def test_block_is_read_without_a_problem_or_warning(block: dict[str, str], folder: Path) -> None:
    given = {name: value.replace("/etc/kafka", str(folder)) for name, value in block.items()}
    found = read_options(given)
    assert found.warnings == ()
    assert found.client.security.protocol == block["kafka.security.protocol"]
    secret = [value for name, value in block.items() if re.search(r"password|secret|keystore\.key", name)]
    assert all(map(references, secret))


def test_policy_for_iam_is_valid_json() -> None:
    (policy,) = re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL)
    actions = {action for statement in json.loads(policy)["Statement"] for action in statement["Action"]}
    assert all(action.startswith("kafka-cluster:") for action in actions)
