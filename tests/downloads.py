"""What tests take from package indexes: jars with their hashes, and environments of Python with other versions than the tests' own."""

from __future__ import annotations

import fcntl
import hashlib
import subprocess
import venv
from collections.abc import Mapping
from pathlib import Path

from kafka_eos_sink.embedded.distribution import cache_directory, resolve_coordinates

PIP = "pip==26.3"
UPLOADED_PRIOR_TO = "2026-11-29T00:00:00Z"
"""Pins everything that the named packages need, without a list of it."""


def pinned_jars(jars: Mapping[str, str]) -> list[Path]:
    """The jars with these coordinates and SHA-256s, without dependencies."""
    paths = resolve_coordinates(list(jars))
    for path, expected in zip(paths, jars.values(), strict=True):
        with path.open("rb") as file:
            assert hashlib.file_digest(file, "sha256").hexdigest() == expected, path
    return paths


def python_with(*packages: str) -> Path:
    """The ``bin`` folder of an environment with these packages, which the first call makes: it stays in the cache of the jars."""
    cache = cache_directory()
    cache.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder = cache / f"python-{hashlib.sha256(repr((packages, UPLOADED_PRIOR_TO)).encode()).hexdigest()[:16]}"
    ready = folder / "ready"
    with (cache / "python.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not ready.exists():
            venv.create(folder, clear=True, symlinks=True, with_pip=True)
            for options in ([PIP], ["--uploaded-prior-to", UPLOADED_PRIOR_TO, *packages]):
                subprocess.run([folder / "bin" / "python", "-m", "pip", "install", "--quiet", *options], check=True)
            ready.touch()
    return folder / "bin"
