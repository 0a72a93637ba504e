"""The files of a checkpoint, opened by the location that Spark uses.

Python opens local paths, and with ``pyarrow.fs`` the object stores that it knows. All others, and a store that rejects Python's
credentials, are read as the driver reads them (``driver_jvm.py``).
"""

from __future__ import annotations

import functools
import subprocess
import sys
from typing import TYPE_CHECKING
from urllib.parse import quote

from kafka_eos_sink.spark.driver_jvm import HadoopFiles, find_driver_jvm

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

ARROW_SCHEMES = {"s3": "s3", "s3a": "s3", "gs": "gs", "abfs": "abfs", "abfss": "abfss"}
"""Hadoop's scheme -> the scheme of ``pyarrow.fs``, which opens it without a JVM."""
AZURE_SCHEMES = ("abfs", "abfss")
RETRY_OPTIONS = {"gs": "retry_limit_seconds=5"}
"""Options of the URI. Without them, Arrow retries for more than a minute if the network or the credentials are missing."""
AZURE_PROBE_S = 60.0
PROBED = "metadata"
"""A file that every checkpoint holds before the first batch."""


NOT_READABLE = (OSError, ValueError, KeyError, TypeError, NotImplementedError, ImportError)
"""What a read raises if the file system fails, or if Spark did not write the file."""


class ArrowFiles:
    """The files below a path of a file system of ``pyarrow.fs``."""

    def __init__(self, filesystem: FileSystem, path: str) -> None:
        self._filesystem, self.path = filesystem, path.rstrip("/")

    def read(self, name: str) -> bytes:
        """Return a file's content."""
        with self._filesystem.open_input_stream(f"{self.path}/{name}") as stream:
            return bytes(stream.read())

    def exists(self, name: str) -> bool:
        """Return whether there is such a file."""
        from pyarrow.fs import FileType

        return bool(self._filesystem.get_file_info(f"{self.path}/{name}").type == FileType.File)

    def names(self, folder: str) -> list[str]:
        """Return the names in a folder, of which there are none if it does not exist."""
        from pyarrow.fs import FileSelector

        found = self._filesystem.get_file_info(FileSelector(f"{self.path}/{folder}", allow_not_found=True))
        return [info.base_name for info in found]


Files = ArrowFiles | HadoopFiles
"""The files below a location. Each method raises one of NOT_READABLE if the file system fails."""


@functools.cache
def open_location(location: str) -> Files:
    """Return the files below a checkpoint's location.

    Raises one of NOT_READABLE if a store lets neither Python nor the classes of Spark's driver in.
    """
    from pyarrow.fs import LocalFileSystem

    scheme, colon, rest = location.partition(":")
    if not colon or "/" in scheme:
        return _without_scheme(location)
    if scheme == "file":
        return ArrowFiles(LocalFileSystem(), f"/{rest[2:].partition('/')[2]}" if rest.startswith("//") else rest)
    if scheme not in ARROW_SCHEMES:
        return HadoopFiles(location)
    try:
        files = _open_store(scheme, rest)
        files.read(PROBED)
    except NOT_READABLE as error:
        try:
            found = HadoopFiles(location)
            found.read(PROBED)
        except NOT_READABLE as also:
            raise OSError(f"{error}; by the classes of Spark's driver: {also}") from None
        return found
    return files


def _without_scheme(path: str) -> Files:
    """Return the files below a path of ``fs.defaultFS``, by default a local one."""
    from pyarrow.fs import LocalFileSystem

    try:
        is_local = not find_driver_jvm().mentions_default_fs()
    except OSError:
        is_local = True
    return ArrowFiles(LocalFileSystem(), path) if is_local else HadoopFiles(path)


def _open_store(scheme: str, rest: str) -> ArrowFiles:
    from pyarrow.fs import FileSystem

    # A path of Spark is not a URI: a blank or "%20" in it stands for itself.
    authority, slash, path = rest.removeprefix("//").partition("/")
    uri = f"{ARROW_SCHEMES[scheme]}://{authority}{slash}{quote(path)}"
    if scheme in RETRY_OPTIONS:
        uri += f"?{RETRY_OPTIONS[scheme]}"
    if scheme in AZURE_SCHEMES:
        _require_azure(uri)
    return ArrowFiles(*FileSystem.from_uri(uri))


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
