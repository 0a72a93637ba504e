"""The folder of a cluster is its user's alone."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kafka_eos_sink.embedded.kept import lock_folder
from kafka_eos_sink.errors import KafkaEosError


def test_folder_of_another_user_is_refused(tmp_path: Path) -> None:
    folder = tmp_path
    if os.geteuid() == 0:
        os.chown(folder, 1, 1)
    else:
        folder = Path("/")
    with pytest.raises(KafkaEosError, match="Other users can write"):
        lock_folder(folder)
    assert not (folder / "lock").exists()


@pytest.mark.parametrize("mode", [0o720, 0o702, 0o1777])
def test_folder_that_others_can_write_is_refused(tmp_path: Path, mode: int) -> None:
    tmp_path.chmod(mode)
    with pytest.raises(KafkaEosError, match="chmod go-w"):
        lock_folder(tmp_path)
    tmp_path.chmod(0o755)
    lock_folder(tmp_path).close()


def test_folder_that_others_could_replace_is_refused(tmp_path: Path) -> None:
    parent = tmp_path / "shared"
    parent.mkdir()
    parent.chmod(0o777)
    with pytest.raises(KafkaEosError, match=f"Other users can write to {parent}"):
        lock_folder(parent / "kept")
    parent.chmod(0o1777)  # as /tmp: only the owner of a folder can move it
    lock_folder(parent / "kept").close()


def test_lock_follows_no_link_and_truncates_nothing(tmp_path: Path) -> None:
    victim, lock = tmp_path / "victim", tmp_path / "kept" / "lock"
    victim.write_text("rows", "utf-8")
    lock.parent.mkdir(mode=0o700)
    lock.symlink_to(victim)
    with pytest.raises(KafkaEosError, match="cannot be written"):
        lock_folder(lock.parent)
    lock.unlink()
    lock.hardlink_to(victim)
    lock_folder(lock.parent).close()
    assert victim.read_text("utf-8") == "rows"


def test_created_parents_are_their_owners_alone(tmp_path: Path) -> None:
    before = os.umask(0o002)
    try:
        lock_folder(tmp_path / "one" / "two" / "kept").close()
    finally:
        os.umask(before)
    made = (tmp_path / "one", tmp_path / "one" / "two", tmp_path / "one" / "two" / "kept")
    assert [folder.stat().st_mode & 0o777 for folder in made] == [0o700] * 3
