"""Pickles that another version of this package can read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields
from typing import Any

from kafka_eos_sink.errors import ConfigurationError


class PickledByName:
    """Base of a dataclass whose pickle holds its fields by name.

    Values travel between driver and executors, which may run different versions while the package is upgraded. Python pickles a frozen
    dataclass with slots by position: one field more or less would make the pickles of another version unreadable.
    """

    __slots__ = ()

    def __reduce__(self) -> tuple[Any, ...]:
        value: Any = self
        return unpickled, (type(self), {each.name: getattr(self, each.name) for each in fields(value)})


def unpickled(kind: Any, values: Mapping[str, Any]) -> Any:
    """Make a value from its pickled fields.

    An unknown field is ignored, a missing one has its default.

    Pickles name this function, so it keeps its name and its place.

    Raises:
        ConfigurationError: DIFFERENT_VERSIONS, naming the missing fields without a default.
    """
    known = fields(kind)
    required = [each.name for each in known if each.default is MISSING and each.default_factory is MISSING]
    if missing := [name for name in required if name not in values]:
        raise ConfigurationError(
            "DIFFERENT_VERSIONS",
            f"a {kind.__name__} from another process lacks {', '.join(missing)}: driver and executors run different versions of "
            "kafka-eos-sink. Install the same version on all of them",
        )
    return kind(**{each.name: values[each.name] for each in known if each.name in values})
