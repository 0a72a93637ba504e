"""References to secrets, so that the options of a write contain no password.

``${env:NAME}`` is an environment variable, ``${file:/path:key}`` the value of a key in a Java properties file.
Spark ships a reference as the user wrote it, and the process that uses the value resolves it. A service that passes on the options
of other people must set ``KAFKA_EOS_REFERENCES=none``. It switches off references and ``kafka.properties.file``, which read this
process's environment and files.
"""

from __future__ import annotations

import os
import re

from kafka_eos_sink.errors import ConfigurationError
from kafka_eos_sink.settings.java_properties import read_properties

_REFERENCE = re.compile(r"\$\{([A-Za-z][A-Za-z0-9_-]*):([^}]*)\}")

HIDDEN = "[hidden]"
"""Messages and reprs show this instead of a value that may be secret."""


VARIABLE = "KAFKA_EOS_REFERENCES"


def switched_off() -> bool:
    # Any value but "" and "all" counts as "none": a misspelt value must not leave references on.
    return os.environ.get(VARIABLE, "").strip().lower() not in ("", "all")


def references(value: str) -> str:
    """Return only the references in `value`: the text around them may be secret."""
    return " ".join(found[0] for found in _REFERENCE.finditer(value, 0, _end(value)))


def resolve(value: str) -> str:
    """Replace every reference in `value` by its value.

    The replacement is not resolved again: a secret may look like a reference.

    Raises:
        ConfigurationError: UNRESOLVED_REFERENCE, naming the reference and never a value.
    """
    end = _end(value)
    return _REFERENCE.sub(_resolved, value[:end]) + value[end:]


def _end(value: str) -> int:
    # Without this check, many "${" without "}" would take quadratic time.
    return value.rfind("}") + 1


def _resolved(reference: re.Match[str]) -> str:
    provider, argument = reference[1], reference[2]
    if switched_off():
        raise _unresolved(reference, f"{VARIABLE} switches references off in this process")
    if provider == "env":
        # An executor has other variables than the driver. A user must set them there too.
        value = os.environ.get(argument)
        if value is None:
            raise _unresolved(reference, f"the environment variable {argument} is not set in this process")
        return value
    if provider == "file":
        return _from_file(reference, argument)
    raise _unresolved(reference, f"there is no provider {provider!r}; use ${{env:NAME}} or ${{file:/path:key}}")


def _from_file(reference: re.Match[str], argument: str) -> str:
    # The last colon: a path may hold colons, a key may not.
    path, _, key = argument.rpartition(":")
    if not path or not key:
        raise _unresolved(reference, "write a file reference as ${file:/path:key}")
    try:
        properties = read_properties(path)
    except OSError as error:
        raise _unresolved(reference, f"{path} cannot be read on this machine ({error.strerror})") from None
    except UnicodeDecodeError:
        raise _unresolved(reference, f"{path} is not a text file in UTF-8") from None
    if key not in properties:
        raise _unresolved(reference, f"{path} has no key {key!r}")
    return properties[key]


def _unresolved(reference: re.Match[str], reason: str) -> ConfigurationError:
    return ConfigurationError("UNRESOLVED_REFERENCE", f"{reference[0]} cannot be resolved: {reason}")
