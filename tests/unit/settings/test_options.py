"""The sink's own options, alone and together."""

from __future__ import annotations

from pathlib import Path

import pytest

from kafka_eos_sink.errors import ConfigurationError
from kafka_eos_sink.settings.options import read_options, readable, resolve_own_options
from kafka_eos_sink.settings.table import SinkOptions


def read(**options: str) -> SinkOptions:
    return read_options({"kafka.bootstrap.servers": "localhost:9092"} | dotted(options))


def dotted(options: dict[str, str]) -> dict[str, str]:
    return {name.replace("__", "."): value for name, value in options.items()}


def problems(**options: str) -> str:
    with pytest.raises(ConfigurationError) as caught:
        read_options({"kafka.bootstrap.servers": "localhost:9092"} | dotted(options), check_imports=True)
    assert str(caught.value).startswith("[KAFKA_EOS.INVALID_OPTIONS] ")
    return caught.value.message


def test_every_option_arrives_under_its_lower_case_name_too() -> None:
    given = {
        "topic": " orders ",
        "transactional.id.prefix": "team/a",
        "txnAppId": "daily",
        "txnVersion": "7",
        "delivery.guarantee": "Exactly-Once",
        "commit.log.topic": "__log",
        "dead.letter.topic": "dead",
        "partitioner": "round-robin",
        "interceptors": "collections:OrderedDict, json:JSONDecoder",
        "onCheckpointRollback": "skip",
        "kafka.bootstrap.servers": "localhost:9092",
        "kafka.transaction.timeout.ms": "1000",
    }
    options = read_options({name.lower(): value for name, value in given.items()}, check_imports=True)
    assert options == read_options(given)
    assert options.topic == "orders"
    assert options.transactional_id_prefix == "team/a"
    assert (options.txn_app_id, options.txn_version) == ("daily", 7)
    assert options.delivery_guarantee == "exactly-once"
    assert options.commit_log_topic == "__log"
    assert options.on_checkpoint_rollback == "skip"
    assert options.producer.dead_letter_topic == "dead"
    assert options.producer.partitioner == "round-robin"
    assert options.producer.interceptors == ("collections:OrderedDict", "json:JSONDecoder")
    assert options.producer.transaction_timeout_ms == 1000


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"txnAppId": "a"}, "txnAppId is given without txnVersion"),
        ({"txnVersion": "1"}, "txnVersion is given without txnAppId"),
        ({"txnAppId": " ", "txnVersion": "1"}, "txnAppId must be text that is not empty, not ' '"),
        ({"transactional__id__prefix": ""}, "transactional.id.prefix must be text that is not empty, not ''"),
        ({"txnAppId": "a", "txnVersion": "-1"}, "txnVersion must be an integer from 0 to"),
        ({"txnAppId": "a", "txnVersion": "1.0"}, "not '1.0'"),
        ({"txnAppId": "a", "txnVersion": "9223372036854775808"}, "txnVersion must be an integer"),
        ({"delivery__guarantee": "exactly_once"}, "must be one of exactly-once, at-least-once, not 'exactly_once'"),
        ({"onCheckpointRollback": "ignore"}, "must be one of fail, skip, rewrite, not 'ignore'"),
        ({"topic": "a b"}, "topic must be a topic name (1 to 249 letters, digits, '.', '_' and '-'), not 'a b'"),
        ({"topic": ".."}, "topic must be a topic name"),
        ({"topic": "x" * 250}, "topic must be a topic name"),
        ({"topic": "__kafka_eos_commits"}, "is the commit log"),
        ({"dead__letter__topic": "__kafka_eos_commits", "commit__log__topic": "mine"}, "is the commit log"),
        (
            {"commit__log__topic": "a/b"},
            "commit.log.topic must be a topic name (1 to 249 letters, digits, '.', '_' and '-'), not 'a/b'",
        ),
        ({"topic": "__kafka_eos_history"}, "is the history topic"),
        ({"dead__letter__topic": "mine", "history__topic": "mine"}, "dead.letter.topic 'mine' is the history topic"),
        ({"history__topic": "__kafka_eos_commits"}, "are the same topic"),
        ({"history__topic": "a/b"}, "history.topic must be a topic name, or empty for none, not 'a/b'"),
        ({"topic": "orders", "dead__letter__topic": "orders"}, "dead.letter.topic is the option topic"),
        ({"source__offsets__group": "g"}, "source.offsets.group is for streaming queries"),
        ({"path": "/tmp/x"}, "save(path) has no meaning for Kafka"),
        ({"partitioner": "murmur"}, "partitioner must be default, round-robin or package.module:callable"),
        ({"partitioner": "no_such_module:f"}, "no_such_module"),
        ({"partitioner": "json:no_such_function"}, "no_such_function"),
        ({"interceptors": "json"}, "interceptors must be package.module:Class"),
        ({"topic": "${env:NOT_SET_ANYWHERE}"}, "topic: ${env:NOT_SET_ANYWHERE} cannot be resolved"),
        (
            {"delivery__guarantee": "at-least-once", "txnAppId": "a", "txnVersion": "1"},
            "txnAppId needs delivery.guarantee=exactly-once",
        ),
        (
            {"delivery__guarantee": "at-least-once", "kafka__transaction__timeout__ms": "1"},
            "kafka.transaction.timeout.ms needs delivery.guarantee=exactly-once",
        ),
        (
            {"kafka__transaction__two__phase__commit__enable": "true"},
            "Kafka does not offer two-phase commit without unstable APIs (KIP-939)",
        ),
    ],
)
def test_wrong_option_is_rejected_with_the_remedy(options: dict[str, str], reason: str) -> None:
    assert reason in problems(**options)


def test_sink_options_are_resolved_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUTER", "${env:INNER}")
    monkeypatch.setenv("INNER", "wrong")
    part = resolve_own_options(
        {"txnAppId": "${env:OUTER}", "txnVersion": "1", "kafka.bootstrap.servers": "localhost:9092"}
    )
    options = read_options(part, resolved=True)
    assert options.txn_app_id == "${env:INNER}"
    assert ("txnAppId", "${env:INNER}") in options.producer.interceptor_options


def test_readable_options_hold_no_secret() -> None:
    shown = readable(
        {
            "topic": "orders",
            "kafka.linger.ms": "5",
            "kafka.sasl.password": "hunter2",
            "kafka.sasl.pasword": "hunter2",
            "kafka.sasl.jaas.config": "${env:JAAS}",
            "pasword": "hunter2",
        }
    )
    assert "hunter2" not in shown
    for part in ("topic='orders'", "kafka.linger.ms='5'", "kafka.sasl.jaas.config='${env:JAAS}'"):
        assert part in shown


def test_interceptors_see_only_the_references_of_a_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HALF", "horse")
    options = read(kafka__sasl__password="hunter2-${env:HALF}")
    assert ("kafka.sasl.password", "${env:HALF}") in options.producer.interceptor_options


def test_stream_accepts_sparks_options_and_rejects_batch_options() -> None:
    base = {"kafka.bootstrap.servers": "localhost:9092", "checkpointLocation": "/checkpoint", "queryName": "orders"}
    options = read_options(base | {"source.offsets.group": "g"}, streaming=True)
    assert (options.checkpoint_location, options.source_offsets_group) == ("/checkpoint", "g")
    with pytest.raises(ConfigurationError) as caught:
        read_options(
            base | {"txnAppId": "a", "txnVersion": "1", "asyncProgressTrackingEnabled": "TRUE", "path": "x"},
            streaming=True,
        )
    for part in ("txnAppId is for batch", "txnVersion is for batch", "cannot be exactly once", "start(path)"):
        assert part in caught.value.message
    assert "checkpointLocation is an option of streaming queries" in problems(checkpointLocation="/checkpoint")


def test_options_win_over_the_properties_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "client.properties"
    path.write_text(
        "bootstrap.servers = a:1\n! comment\nlinger.ms: 9\nbatch.size=77\ngroup.id=g\nacks=all\n"
        "sasl.mechanism=PLAIN\nsecurity.protocol=SASL_SSL\nsasl.username=u\nsasl.password=${env:PASSWORD}\n",
        "utf-8",
    )
    monkeypatch.setenv("PASSWORD", "hunter2")
    monkeypatch.setenv("FOLDER", str(tmp_path))
    given = {"KAFKA.properties.FILE": "${env:FOLDER}/client.properties", "kafka.linger.ms": "5", "topic": "t"}
    options = read_options(given)
    assert options.client.bootstrap_servers == (("a", 1),)
    assert options.client.security.sasl is not None
    assert (options.producer.linger_ms, options.producer.batch_size) == (5, 77)
    assert options.warnings == (f"{path}: not for this client: group.id",)
    assert resolve_own_options(given)["kafka.properties.file"] == "${env:FOLDER}/client.properties"
    assert "kafka.properties.file='${env:FOLDER}/client.properties'" in readable(given)
    for text in (readable(given), repr(options), str(options.producer.interceptor_options)):
        assert "hunter2" not in text
    path.write_text("bootstrap.servers=b:2\n", "utf-8")
    assert read_options(given).client.bootstrap_servers == (("b", 2),)


def test_problems_of_the_properties_file_are_named(tmp_path: Path) -> None:
    missing = problems(kafka__properties__file=str(tmp_path / "missing"))
    assert (
        missing
        == f"kafka.properties.file: {tmp_path}/missing cannot be read on this machine: No such file or directory"
    )
    assert "UNSET" in problems(kafka__properties__file="${env:UNSET_VARIABLE}")
    path = tmp_path / "client.properties"
    path.write_text("acks=1\nsasl.jaas.config=hunter2\n", "utf-8")
    wrong = problems(kafka__properties__file=str(path))
    assert "kafka.acks=1 contradicts exactly-once" in wrong
    assert "hunter2" not in wrong


@pytest.mark.parametrize("name", ["ssl.keystore.location", "ssl.truststore.location", "ssl.ca.location"])
def test_files_are_refused_when_references_are_off(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are this process's own: a key store would let the options log in with its key."""
    given = {"kafka.bootstrap.servers": "b:2", "topic": "t", "kafka.security.protocol": "SSL", f"kafka.{name}": "/x"}
    with pytest.raises(ConfigurationError, match=rf"kafka\.{name}: .*/x"):
        read_options(given)
    monkeypatch.setenv("KAFKA_EOS_REFERENCES", "none")
    with pytest.raises(ConfigurationError, match=rf"kafka\.{name} is rejected: KAFKA_EOS_REFERENCES") as raised:
        read_options(given)
    assert "/x" not in str(raised.value)


def test_properties_file_is_refused_when_references_are_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "client.properties"
    path.write_text("bootstrap.servers=a:1\n", "utf-8")
    given = {"kafka.properties.file": str(path), "kafka.bootstrap.servers": "b:2", "topic": "t"}
    assert read_options(given).client.bootstrap_servers == (("b", 2),)
    monkeypatch.setenv("KAFKA_EOS_REFERENCES", "none")
    with pytest.raises(ConfigurationError, match=r"kafka\.properties\.file is rejected: KAFKA_EOS_REFERENCES"):
        read_options(given)


@pytest.mark.parametrize("history", ["ours", ""])
def test_rows_may_not_go_to_topics_of_the_sink(history: str) -> None:
    """The write has topics of its own; others believe what is in the default ones."""
    given = {"kafka.bootstrap.servers": "b:1", "commit.log.topic": "mine", "history.topic": history}
    defaults = {"__kafka_eos_commits", "__kafka_eos_history"}
    assert read_options(given).producer.own_topics == {"mine", *defaults, *([history] if history else [])}


LONGEST = 32_767
"""Bytes of a transactional id, a group or a client id: a string of Kafka's protocol."""
OF_TASKS = len(".2147483647.7")


@pytest.mark.parametrize("character", ["x", "%", "/", "ü", "\N{GRINNING FACE}"])
def test_id_too_long_for_kafka_is_refused_with_the_limit(character: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytes count, and percent signs and slashes as the three that their escapes have."""
    size = {"x": 1, "%": 3, "/": 3, "ü": 2}.get(character, 4)

    def of(room: int) -> str:
        return character * (room // size) + "x" * (room % size)

    room = LONGEST - OF_TASKS - len("kafka-eos/") - len("/orders")
    base = {"kafka.bootstrap.servers": "localhost:9092"}
    batch = base | {"txnVersion": "1", "topic": "orders"}
    assert read_options(batch | {"txnAppId": of(room)}).txn_app_id == of(room)
    too_long = f"has {LONGEST - OF_TASKS + 1} bytes in UTF-8, where each / and % counts 3"
    with pytest.raises(
        ConfigurationError, match=rf"txnAppId, topic: .*{too_long}.* leave it 32754; shorten txnAppId"
    ) as caught:
        read_options(batch | {"txnAppId": of(room + 1)})
    assert character * 10 not in caught.value.message
    monkeypatch.setenv("LONG_ID", of(room + 1))
    with pytest.raises(ConfigurationError, match=too_long):
        read_options(batch | {"txnAppId": "${env:LONG_ID}"})
    # A random id and the id of a query have 36 characters, which the prefix must leave.
    for prefix_room, given, streaming in (
        (LONGEST - OF_TASKS - len("/app/orders"), batch | {"txnAppId": "app"}, False),
        (LONGEST - OF_TASKS - 37, base | {"topic": "orders"}, False),
        (LONGEST - OF_TASKS, base | {"topic": "orders", "checkpointLocation": "/c"}, True),
    ):
        longest = given | {"transactional.id.prefix": of(prefix_room)}
        assert read_options(longest, streaming=streaming).transactional_id_prefix == of(prefix_room)
        longer = given | {"transactional.id.prefix": of(prefix_room + 1)}
        with pytest.raises(ConfigurationError, match=rf"transactional\.id\.prefix.*{too_long}"):
            read_options(longer, streaming=streaming)
        # Without transactions no id comes from the prefix.
        if "txnAppId" not in given:
            read_options(longer | {"delivery.guarantee": "at-least-once"}, streaming=streaming)


@pytest.mark.parametrize(
    ("name", "most", "streaming"),
    [("source.offsets.group", LONGEST, True), ("kafka.client.id", LONGEST, False), ("userMetadata", 500_000, False)],
)
def test_text_too_long_for_kafka_is_refused_with_the_limit(name: str, most: int, streaming: bool) -> None:
    base = {"kafka.bootstrap.servers": "localhost:9092", "topic": "orders"}
    text = "ü" * (most // 2) + "x" * (most % 2)
    read_options(base | {name: text}, streaming=streaming)
    with pytest.raises(ConfigurationError, match=rf"{name} must be .*, at most {most} bytes in UTF-8") as caught:
        read_options(base | {name: f"{text}x"}, streaming=streaming)
    # The value itself is cut: it may be a file that somebody read into the option.
    assert len(caught.value.message) < 500


@pytest.mark.parametrize("name", ["max.block.ms", "request.timeout.ms", "delivery.timeout.ms"])
def test_wait_of_zero_is_refused_by_name(name: str) -> None:
    """Java accepts it, but no request can succeed by it."""
    given = {"kafka.request.timeout.ms": "1", "kafka.linger.ms": "0", f"kafka.{name}": "0"}
    assert f"kafka.{name} must be an integer from 1 to" in problems(
        **{k.replace(".", "__"): v for k, v in given.items()}
    )
