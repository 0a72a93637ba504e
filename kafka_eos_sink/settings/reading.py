"""Read options by the rows of the settings table; report every problem at once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kafka_eos_sink.client.config import with_prefix
from kafka_eos_sink.errors import ConfigurationError
from kafka_eos_sink.settings.secrets import HIDDEN, references, resolve
from kafka_eos_sink.settings.table import JAVA, PREFIX, SINK, Setting
from kafka_eos_sink.settings.unknown_names import about_unknown, written_name

_SHOWN_CHARACTERS = 200


def shown(name: str, value: str) -> str:
    """Return `value` for messages: of a possible secret, only the references.

    Args:
        name: With ``kafka.`` or without it. The value of an unknown name is hidden too: it may be a misspelt password.
        value: The value as the user wrote it.
    """
    row = SINK.get(written_name(name)) or JAVA.get(name.removeprefix(PREFIX))
    return _shown_by(row, value)


def read_values(
    texts: Mapping[str, str],
    table: Mapping[str, Setting],
    prefix: str,
    problems: list[str],
    warnings: list[str],
    *,
    resolved: bool = False,
) -> dict[str, Any]:
    """Parse each option by its row, with its references resolved.

    Args:
        texts: The options by the names of `table`.
        table: The rows by name.
        prefix: Precedes each name in messages.
        problems: Receives one sentence per option that is wrong.
        warnings: Receives one sentence per option without effect.
        resolved: Whether the references in `texts` are resolved already: a value that looks like one then stays.

    Returns:
        The parsed values by name. An option with a problem or without effect is missing.
    """
    values: dict[str, Any] = {}
    # Sorted: Spark keeps options in a map, and the same mistakes must give the same message in every process.
    for name in sorted(texts):
        row = table.get("config.providers" if name.startswith("config.providers.") else name)
        label = f"{prefix}{name}"
        if row is None:
            problems.append(about_unknown(label))
        elif row.group == "refused":
            problems.append(f"{label} is not possible: {with_prefix(prefix, row.meaning)}")
        elif row.group == "without effect":
            warnings.append(f"{label} has no effect: {with_prefix(prefix, row.meaning)}")
        else:
            try:
                values[name] = _parsed(row, texts[name], resolved)
            except ConfigurationError as error:
                problems.append(f"{label}: {error.message}")
            except ValueError as error:
                problems.append(f"{label}{error}")
    return values


def _parsed(row: Setting, text: str, is_resolved: bool) -> Any:
    """Return the value. The ValueError's text follows the option's name in a message."""
    # Resolve references before the checks: a value from a file obeys the same rules as a value in the program.
    resolved = text if is_resolved else resolve(text)
    # An environment variable whose bytes are not UTF-8, or an escape in a file, can give text that no request can hold.
    if not _is_text(resolved):
        raise ValueError(
            f" is not text in UTF-8: {_cut(_shown_by(row, text))}; correct the value, or encode its file or variable in UTF-8"
        )
    for value, reason in row.refused:
        if resolved.strip().upper() == value:
            raise ValueError(f"={value} is not possible: {reason}")
    try:
        value = row.kind.parse(resolved)
    except ValueError:
        # Show the text as the user wrote it, without the cause ("from None"): the resolved text may be a secret.
        raise ValueError(f" must be {row.kind.expected}, not {_cut(_shown_by(row, text))}") from None
    if row.contradiction is not None and not row.contradiction.allows(value):
        raise ValueError(f"={_shown_by(row, text)} contradicts exactly-once: {row.contradiction.reason}")
    return value


def _is_text(value: str) -> bool:
    return not any("\ud800" <= one <= "\udfff" for one in value)


def _shown_by(row: Setting | None, text: str) -> str:
    return text if row is not None and not row.secret else references(text) or HIDDEN


def _cut(text: str) -> str:
    """Return the beginning of `text` in quotes: it may be a whole file."""
    return repr(text) if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]!r}... ({len(text)} characters)"
