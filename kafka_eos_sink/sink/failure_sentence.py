"""What Spark raised, in one sentence: the stack traces and wrappings of several processes stay out of it."""

from __future__ import annotations

import re

_OURS = re.compile(r"\[KAFKA_EOS\.([A-Z_]+)\] ([^\n]*)")


def code_and_sentence(error: BaseException) -> tuple[str | None, str]:
    """The stable code and the sentence of ours in what Spark raised, else None and what Spark said first.

    To be called while the JVM lives, out of which the text of Spark's errors comes.
    """
    text = str(error)
    if ours := _OURS.search(text):
        return ours[1], ours[2].strip()
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    # Py4J puts a line of its own first: what the JVM said follows ": ".
    said = next((line[2:] for line in lines if line.startswith(": ")), lines[0] if lines else "")
    return None, said


def one_sentence(error: BaseException) -> str:
    """What went wrong, our code first where there is one."""
    code, sentence = code_and_sentence(error)
    return f"[KAFKA_EOS.{code}] {sentence}" if code else sentence or type(error).__name__
