"""The folder of a cluster, and its description for later starts.

``lock`` is locked while a cluster runs. ``cluster/`` appears by one rename when every node is formatted; it holds
``cluster.json``, ``users`` and a folder per node.
"""

from __future__ import annotations

import fcntl
import json
import os
import stat
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

from kafka_eos_sink.client.security import Secret
from kafka_eos_sink.embedded.broker_security import BrokerSecurity
from kafka_eos_sink.embedded.node import NodeAddress, failed, write_properties
from kafka_eos_sink.settings.java_properties import read_properties

_DESCRIPTION = "cluster.json"
_USERS = "users"


@dataclass(frozen=True, slots=True)
class Description:
    """The arguments of a cluster, kept in ``cluster.json``."""

    cluster_id: str
    transaction_version: int | None
    nodes: tuple[NodeAddress, ...]

    def write(self, cluster: Path) -> None:
        (cluster / _DESCRIPTION).write_text(json.dumps(asdict(self), indent=1), encoding="utf-8")


def make_private(folder: Path) -> None:
    """Create the folder, and the missing ones above it, open to their owner alone."""
    # mkdir(parents=True) gives the mode to the last folder only, and a umask of 002 opens the others to the group.
    for each in (*reversed(folder.absolute().parents), folder):
        each.mkdir(mode=0o700, exist_ok=True)


def lock_folder(folder: Path) -> IO[str]:
    """Create the folder and lock it until the returned file is closed."""
    try:
        make_private(folder)
        found = folder.stat()
        # Another user could put links and a configuration into it.
        if found.st_uid != os.geteuid() or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise failed(
                f"Other users can write to the folder {folder}; run chmod go-w on your own, or choose another folder."
            )
        # Another user could move the folder and put another one in its place.
        for parent in folder.resolve().parents:
            mode = parent.stat().st_mode
            if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
                raise failed(f"Other users can write to {parent}, and so replace {folder}; choose another folder.")
        lock = os.fdopen(os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600), "r+")
    except OSError as failure:
        raise failed(f"The folder {folder} cannot be written ({failure.strerror}); choose another folder.") from failure
    try:
        # The kernel releases the lock with the process, so a killed start cannot leave a stale lock.
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.close()
        reason = f"Another embedded Kafka is running on {folder}"
        raise failed(f"{reason}; stop it or choose another folder.") from None
    return lock


def read_description(folder: Path, *, brokers: int, transaction_version: int | None) -> Description | None:
    """Return the arguments of the folder's cluster, None for an empty folder.

    Raises:
        KafkaEosError: ``EMBEDDED_KAFKA_FAILED`` if the folder holds other files, or its cluster differs.
    """
    file = folder / "cluster" / _DESCRIPTION
    if not file.is_file():
        # A start that was killed while it formatted the nodes leaves "formatting".
        others = sorted(entry.name for entry in folder.iterdir() if entry.name not in ("lock", "formatting"))
        if others:
            raise failed(f"The folder {folder} holds other files ({', '.join(others[:3])}); choose an empty folder.")
        return None
    content: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    addresses = tuple(NodeAddress(**each) for each in content["nodes"])
    found = Description(content["cluster_id"], content["transaction_version"], addresses)
    version = ("transaction.version", transaction_version, found.transaction_version)
    for name, wanted, made in (("nodes", brokers, len(found.nodes)), version):
        if wanted is not None and wanted != made:
            other = f"The folder {folder} was made with {name} {made}, not {wanted}"
            raise failed(f"{other}; use {made} or choose another folder.")
    return found


def write_users(cluster: Path, users: Mapping[str, Secret]) -> None:
    write_properties(cluster / _USERS, {name: password.reveal() for name, password in users.items()})


def read_users(cluster: Path, security: BrokerSecurity) -> dict[str, Secret]:
    """Return the users that the cluster was made with.

    Raises:
        KafkaEosError: ``EMBEDDED_KAFKA_FAILED`` if ``security`` names other users.
    """
    file = cluster / _USERS
    users = {name: Secret(value) for name, value in read_properties(file).items()} if file.is_file() else {}
    # Kafka keeps SCRAM credentials in its data: other users would seem to work and be rejected.
    if not users or (security.users and dict(security.users) != users):
        raise failed(
            f"The folder {cluster.parent} was made with {'other' if users else 'no'} users, which cannot be changed; "
            "use the same users or choose another folder."
        )
    return users
