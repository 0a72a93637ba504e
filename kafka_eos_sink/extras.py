"""Optional packages: which are missing, and the command that installs them."""

from __future__ import annotations

import importlib.util
import re
import shlex
import sys

from kafka_eos_sink.errors import KafkaEosError

_DISTRIBUTION = "kafka-eos-sink"


def install_command(extra: str) -> str:
    """Return the command that installs the packages of an extra into this Python.

    It lists these packages, not ``kafka-eos-sink`` with its extra: no index has that, and the command must work wherever the package
    came from, a clone, a wheel or a zip file.
    """
    # Here, because every write imports this module, and hardly any needs that one.
    from importlib import metadata

    try:
        declared = metadata.requires(_DISTRIBUTION) or []
    except metadata.PackageNotFoundError:
        declared = []
    requirement = re.compile(rf"(.+?)\s*;.*\bextra == ['\"]{re.escape(extra)}['\"]")
    packages = [found[1] for each in declared if (found := requirement.match(each))]
    if not packages:
        # A zip of the sources, or a clone on PYTHONPATH.
        return f"pip install '.[{extra}]' (in a clone of kafka-eos)"
    # uv makes environments without pip.
    pip = [sys.executable, "-m", "pip", "install"]
    if importlib.util.find_spec("pip") is None:
        pip = ["uv", "pip", "install", "--python", sys.executable]
    return shlex.join([*pip, *packages])


def require_modules(what: str, modules: tuple[str, ...], extra: str, code: str) -> None:
    """Raise an error that lists all of these modules that are missing.

    Args:
        what: The subject of the message.
        modules: Top-level modules; they are found, not imported.
        extra: The extra that brings them.
        code: The code of the error.

    Raises:
        KafkaEosError: One is missing; nothing has been started.
    """
    missing = [module.replace("_", "-") for module in modules if importlib.util.find_spec(module) is None]
    if missing:
        *others, last = missing
        names = f"{', '.join(others)} and {last}" if others else last
        raise KafkaEosError(
            code,
            f"{what} needs {names}, and this Python does not have {'them' if others else 'it'}. Nothing was "
            f"started. Run: {install_command(extra)}",
        )
