"""User code by name: partitioners, interceptors and token providers as ``package.module:name``."""

from __future__ import annotations

import importlib
from typing import Any

from kafka_eos_sink.errors import ConfigurationError


def load_object(spec: str, option: str) -> Any:
    """The object that ``package.module:name`` names; ``ConfigurationError`` (``NOT_LOADABLE``) names ``option``.

    What the module itself raises while it is imported comes as it is: whether its text may be shown, the caller knows.
    """
    module, _, name = spec.partition(":")
    try:
        found: Any = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigurationError(
            "NOT_LOADABLE",
            f"{option}: {spec!r} cannot be loaded ({error}); ship the module to the executors, "
            "for example with --py-files",
        ) from error
    return found
