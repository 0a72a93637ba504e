"""User partitioners, interceptors and token providers as ``package.module:name``."""

from __future__ import annotations

import importlib
from typing import Any

from kafka_eos_sink.errors import ConfigurationError


def load_callable(spec: str, option: str, *, show_cause: bool = True) -> Any:
    """Import the callable that ``package.module:name`` names.

    Args:
        spec: The value of the option.
        option: The name of the option, for the error message.
        show_cause: Whether the message may contain the text of what the module raises on import.

    Raises:
        ConfigurationError: NOT_LOADABLE, whatever the module raises.
    """
    module, _, name = spec.partition(":")
    try:
        found: Any = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError, ValueError) as error:
        # The module itself may have raised it: the ValueError of int() shows the text that is no number.
        raise ConfigurationError(
            "NOT_LOADABLE",
            f"{option}: {spec!r} cannot be loaded ({error if show_cause else type(error).__name__}). Ship the module to the executors, "
            "for example with --py-files",
        ) from (error if show_cause else None)
    except Exception as error:  # Importing runs the user's module, which may raise anything.
        cause = f"{type(error).__name__}: {error}" if show_cause else type(error).__name__
        raise ConfigurationError("NOT_LOADABLE", f"{option}: importing {spec!r} raised {cause}") from None
    if not callable(found):
        raise ConfigurationError("NOT_LOADABLE", f"{option}: {spec!r} is not callable")
    return found
