"""The file system of a checkpoint, opened by the location that Spark uses."""

from __future__ import annotations

import functools
import subprocess
import sys
from typing import TYPE_CHECKING
from urllib.parse import quote

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

ARROW_SCHEMES = {"s3a": "s3"}
"""Hadoop's scheme -> the scheme of ``pyarrow.fs``."""
AZURE_SCHEMES = ("abfs", "abfss")
RETRY_OPTIONS = {"gs": "retry_limit_seconds=5"}
"""Options of the URI. Without them, Arrow retries for more than a minute if the network or the credentials are missing."""
AZURE_PROBE_S = 60.0


@functools.cache
def open_location(location: str) -> tuple[FileSystem, str]:
    """Return the file system of a location, and the path in it.

    Raises:
        OSError, ValueError, NotImplementedError, ImportError: The file system is not known or cannot be opened.
    """
    from pyarrow.fs import FileSystem, LocalFileSystem

    scheme, colon, rest = location.partition(":")
    # Spark resolves a path without scheme against fs.defaultFS, which this process does not know.
    if not colon or "/" in scheme:
        return LocalFileSystem(), location.rstrip("/")
    if scheme == "file":
        path = f"/{rest[2:].partition('/')[2]}" if rest.startswith("//") else rest
        return LocalFileSystem(), path.rstrip("/")
    # A path of Spark is not a URI: a blank or "%20" in it stands for itself.
    authority, slash, path = rest.removeprefix("//").partition("/")
    uri = f"{ARROW_SCHEMES.get(scheme, scheme)}://{authority}{slash}{quote(path)}"
    if scheme in RETRY_OPTIONS:
        uri += f"?{RETRY_OPTIONS[scheme]}"
    if scheme in AZURE_SCHEMES:
        _require_azure(uri)
    filesystem, path = FileSystem.from_uri(uri)
    return filesystem, path.rstrip("/")


def _require_azure(uri: str) -> None:
    """Raise OSError if Arrow would end the process (seen: 26.0, no credentials)."""
    # Try it in a child process, because Arrow's Azure client ends its process instead of raising. With -P, that process imports nothing
    # from the working directory, to which others may write.
    program = "import sys; from pyarrow.fs import FileSystem as F; f, p = F.from_uri(sys.argv[1]); f.open_input_stream(p + '/metadata')"
    try:
        tried = subprocess.run(
            [sys.executable, "-P", "-c", program, uri],
            capture_output=True,
            text=True,
            timeout=AZURE_PROBE_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise OSError(f"no response within {AZURE_PROBE_S:g} s") from None
    # Negative: a signal ended the process. Other failures come back as exceptions when this process opens the file.
    if tried.returncode < 0:
        reason = (
            " ".join(line.strip() for line in tried.stderr.splitlines() if "what():" in line) or tried.stderr.strip()
        )
        raise OSError(
            f"pyarrow cannot log in to Azure: {reason.removeprefix('what():').strip()} Give the Python processes of the driver credentials "
            "too, for instance AZURE_CLIENT_ID, AZURE_TENANT_ID and AZURE_CLIENT_SECRET"
        )
