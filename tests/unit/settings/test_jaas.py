"""``sasl.jaas.config`` as Java reads it; nothing of it is in a message."""

from __future__ import annotations

import pytest

from kafka_eos_sink.settings.jaas import parse_jaas

PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"


@pytest.mark.parametrize(
    ("text", "options"),
    [
        (f'{PLAIN} required username="alice" password="s3cret";', {"username": "alice", "password": "s3cret"}),
        (f"{PLAIN} required username=alice password=s3-cret ;", {"username": "alice", "password": "s3-cret"}),
        (f"  {PLAIN}\n  REQUIRED\n  username='alice'\n  password='a b;=c'\n;\n", {"username": "alice", "password": "a b;=c"}),
        (rf'{PLAIN} required password="a\"b\\c\tdA\'";', {"password": "a\"b\\c\tdA'"}),
        (rf'{PLAIN} required password="\101\60x";', {"password": "A0x"}),
        (f'{PLAIN} required /* who */ username="a//b" // rest\n;', {"username": "a//b"}),
        (f'{PLAIN} required username="" password="ü€";', {"username": "", "password": "ü€"}),
        (f"{PLAIN} required;", {}),
        (f'kafkashaded.{PLAIN} sufficient username = "a";', {"username": "a"}),
    ],
)  # fmt: skip
def test_module_and_options_are_read(text: str, options: dict[str, str]) -> None:
    module = parse_jaas(text)
    assert (module.name, module.options) == ("PlainLoginModule", options)
    assert "s3cret" not in repr(module)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "hunter2",
        ";",
        f'{PLAIN} username="alice" password="hunter2";',
        f'{PLAIN} required username="alice" password="hunter2"',
        f'{PLAIN} required username="alice" password="hunter2',
        f"{PLAIN} required password=hunter2!;",
        f"{PLAIN} required password hunter2;",
        f"{PLAIN} required password=;",
        f"{PLAIN} required =hunter2;",
        f'{PLAIN} required password="a"hunter2="b";',
        f'{PLAIN} required password="hunter2"; {PLAIN} required password="hunter2";',
        f"KafkaClient {{ {PLAIN} required password=hunter2; }};",
        "/* hunter2",
    ],
)
def test_invalid_login_module_is_rejected_without_showing_it(text: str) -> None:
    with pytest.raises(ValueError) as refused:
        parse_jaas(text)
    assert "hunter2" not in str(refused.value)
