"""Properties files are read as java.util.Properties reads them."""

from __future__ import annotations

import pytest

from kafka_eos_sink.settings.java_properties import parse_properties


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a=b", {"a": "b"}),
        ("  a  =  b  ", {"a": "b  "}),
        ("a:b", {"a": "b"}),
        ("a b c", {"a": "b c"}),
        ("a = = b", {"a": "= b"}),
        ("a", {"a": ""}),
        ("a=1\na=2", {"a": "2"}),
        ("# no\n! no\n  # no\n\na=#yes", {"a": "#yes"}),
        ("a=b\\\n   c\\\r\n d", {"a": "bcd"}),
        ("a=b\\\\\nc=d", {"a": "b\\", "c": "d"}),
        ("a=b\\\n# not a comment", {"a": "b# not a comment"}),
        ("a\\ b\\=c\\:=d", {"a b=c:": "d"}),
        ("a=\\t\\n\\u00e9\\q\\\\", {"a": "\t\n\u00e9q\\"}),
        ("a=\\ud83d\\ude00", {"a": "\N{GRINNING FACE}"}),
        ("a=b\\", {"a": "b"}),
        ("a=x\u2028y", {"a": "x\u2028y"}),
        (
            'sasl.jaas.config=X required \\\n  username="u" \\\n  password="p=1";',
            {"sasl.jaas.config": 'X required username="u" password="p=1";'},
        ),
    ],
)
def test_properties_are_read_as_java_reads_them(text: str, expected: dict[str, str]) -> None:
    assert parse_properties(text) == expected
