"""References are resolved where they are used, and no message holds what they stand for."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from kafka_eos_sink.errors import ConfigurationError
from kafka_eos_sink.settings.secrets import references, resolve


def test_references_stand_anywhere_in_a_value(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("USERNAME_HERE", "alice")
    secrets = tmp_path / "secrets:1.properties"
    secrets.write_text("password = p=${env:USERNAME_HERE}\n", "utf-8")
    value = f'username="${{env:USERNAME_HERE}}" password="${{file:{secrets}:password}}";'
    # What is put in is not looked at again: a secret may look like a reference.
    assert resolve(value) == 'username="alice" password="p=${env:USERNAME_HERE}";'


@pytest.mark.parametrize("value", ["", "plain", "$HOME", "${HOME}", "100%", "{env:X}", "${env}"])
def test_other_values_stay_as_they_are(value: str) -> None:
    assert references(value) == ""
    assert resolve(value) == value


def test_unresolvable_reference_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("NOT_THERE", raising=False)
    secrets = tmp_path / "secrets.properties"
    secrets.write_text("password=hunter2\n", "utf-8")
    for value, reason in (
        ("${env:NOT_THERE}", "environment variable NOT_THERE is not set"),
        (f"${{file:{secrets}:pasword}}", "has no key 'pasword'"),
        (f"${{file:{tmp_path}/none:password}}", "cannot be read on this machine"),
        ("${file:nokey}", "${file:/path:key}"),
        ("${vault:a/b:password}", "no provider 'vault'"),
    ):
        assert references(value) == value
        with pytest.raises(ConfigurationError) as caught:
            resolve(value)
        assert caught.value.code == "UNRESOLVED_REFERENCE"
        assert value in caught.value.message
        assert reason in caught.value.message
        assert "hunter2" not in caught.value.message


@pytest.mark.parametrize("value", ["none", " NONE ", "of"])
def test_references_are_refused_when_switched_off(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("SOME_SECRET", "hunter2")
    monkeypatch.setenv("KAFKA_EOS_REFERENCES", value)
    with pytest.raises(ConfigurationError, match="KAFKA_EOS_REFERENCES") as caught:
        resolve("${env:SOME_SECRET}")
    assert caught.value.code == "UNRESOLVED_REFERENCE"
    assert resolve("no reference") == "no reference"
    monkeypatch.setenv("KAFKA_EOS_REFERENCES", "all")
    assert resolve("${env:SOME_SECRET}") == "hunter2"


def test_begins_without_an_end_take_linear_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A", "1")
    value = "${env:A}" + "${a:" * 50_000
    began = time.process_time()
    assert references(value) == "${env:A}"
    assert resolve(value) == "1" + "${a:" * 50_000
    assert time.process_time() - began < 2
