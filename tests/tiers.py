"""Which tier a test belongs to, which lane it runs in, and how much a tier searches: all of it in this file.

A tier holds those below it:

    check        needs no broker; `make check`
    test         the strongest evidence per second; `make test`
    all          every test but the exhaustive tables; `make test-all`
    exhaustive   every case of every table, in hours; `make faults`

A test's tier is that of the first row of RULES that matches it. A row names a path below ``tests/`` or, behind ``::``, a test
function, and may ask for parameters. ``Sample`` spreads the cases of one table over tiers.

Four lanes run at once and share nothing: ``pure`` needs no broker; ``broker``, ``faults`` and ``spark`` have Kafkas of their own. Tests on
a broker wait most of the time, so two of these lanes keep a core busy.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any


class Tier(IntEnum):
    """How soon a test runs: the lowest tier that holds it."""

    CHECK = 0
    TEST = 1
    ALL = 2
    EXHAUSTIVE = 3

    @classmethod
    def of(cls, name: str) -> Tier:
        return cls[name.upper()]


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """How far tests search that can search for any time; they take it by the fixture ``effort``."""

    hypothesis_examples: int
    machine_examples: int
    """Random producers per kind (`model/test_producer_machine.py`)."""
    machine_examples_on_broker: int
    walk_steps: int
    searched_to_the_end: int | None
    """A setting of the model with at most so many states is searched to its end; None: all settings."""
    capped_at: int
    """States of a larger setting."""
    random: bool = False
    """Whether examples differ from run to run."""


EFFORTS = {
    Tier.CHECK: Effort(
        hypothesis_examples=10,
        machine_examples=5,
        machine_examples_on_broker=4,
        walk_steps=200,
        searched_to_the_end=1_000,
        capped_at=500,
    ),
    Tier.TEST: Effort(
        hypothesis_examples=25,
        machine_examples=10,
        machine_examples_on_broker=4,
        walk_steps=500,
        searched_to_the_end=5_000,
        capped_at=5_000,
    ),
    Tier.ALL: Effort(
        hypothesis_examples=100,
        machine_examples=40,
        machine_examples_on_broker=12,
        walk_steps=1_000,
        searched_to_the_end=100_000,
        capped_at=30_000,
    ),
    Tier.EXHAUSTIVE: Effort(
        hypothesis_examples=100,
        machine_examples=2_000,
        machine_examples_on_broker=150,
        walk_steps=100_000,
        searched_to_the_end=None,
        capped_at=300_000,
        random=True,
    ),
}

LANES = {
    "pure": ("unit", "conformance", "model", "campaign"),
    "broker": ("broker",),
    "faults": ("faults", "broker", "model"),
    "spark": ("spark", "campaign"),
}
"""Lane -> the folders below ``tests/`` that it collects."""
WITH_THE_FAULTS = ("test_write_deaths.py",)
"""Files of ``broker/`` that the lane of the faults takes, so that both end together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """Spreads the cases of one table: one per class into ``test``, one in ``every`` into ``all``, the rest is exhaustive."""

    of_class: Callable[[dict[str, Any]], Hashable]
    """A case's class, by its parameters. The member with the smallest hash of its id stands for the class."""
    every: int = 1


@dataclass(frozen=True, slots=True)
class Rule:
    """``where``: a folder, a file, or ``file::function``. ``given``: parameters that a test must have."""

    where: str
    tier: Tier | Sample
    given: Callable[[dict[str, Any]], bool] = lambda params: True

    def matches(self, case: Case) -> bool:
        place, _, function = self.where.partition("::")
        if function and function != case.function:
            return False
        return (case.path == place or case.path.startswith(place + "/")) and self.given(case.params)


@dataclass(slots=True)
class Case:
    """A collected test: its path below ``tests/``, its function and parameters, and the tier that `place` gives it."""

    nodeid: str
    path: str
    function: str
    params: dict[str, Any]
    takes_effort: bool
    tier: Tier = Tier.EXHAUSTIVE

    @property
    def number(self) -> int:
        """The same for a test in every run, and evenly spread."""
        return zlib.crc32(self.nodeid.encode())

    @property
    def lane(self) -> str:
        folder, _, file = self.path.partition("/")
        if folder == "spark" or self.function == "test_campaign_finds_nothing_wrong":
            return "spark"
        if folder == "broker" and file not in WITH_THE_FAULTS:
            return "broker"
        return "faults" if folder in ("broker", "faults") or self.path == "model/test_reality.py" else "pure"


CHECK, TEST, ALL, EXHAUSTIVE = Tier


def place(cases: Sequence[Case], rules: Sequence[Rule]) -> None:
    """Set each case's tier by the first rule that matches it. Raises ValueError for a rule without a test."""
    rows: list[list[Case]] = [[] for _ in rules]
    for case in cases:
        at = next((at for at, rule in enumerate(rules) if rule.matches(case)), None)
        if at is None:
            raise ValueError(f"tests/tiers.py: no rule for {case.nodeid}; add a row to RULES")
        rows[at].append(case)
    for rule, matched in zip(rules, rows, strict=True):
        if isinstance(rule.tier, Tier):
            for case in matched:
                case.tier = rule.tier
            continue
        classes: dict[Hashable, Case] = {}
        for position, case in enumerate(matched):
            case.tier = ALL if position % rule.tier.every == 0 else EXHAUSTIVE
            kind = rule.tier.of_class(case.params)
            classes[kind] = min(classes.get(kind, case), case, key=lambda each: each.number)
        for case in classes.values():
            case.tier = TEST


Params = dict[str, Any]


def below_version_2(params: Params) -> bool:
    """On the cluster with transaction.version 0."""
    kafka = str(params.get("any_kafka", params.get("sampled_kafka", "")))
    return kafka.endswith("=0") or kafka == "kafka_tv0" or 0 in map(params.get, ("bench", "version", "three"))


def one_of(name: str, *values: Any) -> Callable[[Params], bool]:
    return lambda params: params.get(name) in values


def in_both_versions(*names: str) -> Callable[[Params], Hashable]:
    """A class per value of the parameters with these names."""
    return lambda params: tuple(str(params[name]) for name in names)


RULES: tuple[Rule, ...] = (
    # No broker.
    Rule("unit/test_tiers.py", TEST),  # collects all tests
    Rule("unit/test_unit_mutations.py::test_each_mutation_is_caught", ALL),  # minutes
    Rule("unit/cli/test_jars.py", TEST),  # downloads
    Rule(
        "unit/cli/test_entry.py::test_installed_command_returns_its_exit_status",
        ALL,
        lambda params: "check" in params["arguments"],  # waits for a broker, as long as the command does
    ),
    Rule("unit/cli/test_entry.py::test_installed_command_returns_its_exit_status", TEST),
    Rule("unit/test_site.py::test_search_shows_the_section_first", ALL),  # needs a browser
    Rule("unit/test_site.py::test_no_block_scrolls_at_1280_pixels", ALL),  # needs a browser
    Rule("unit/test_site.py::test_input_has_a_copy_button_and_output_has_none", ALL),  # needs a browser
    Rule("unit/test_site.py::test_options_are_readable_on_a_phone", ALL),  # needs a browser
    Rule("unit", CHECK),
    Rule("conformance", CHECK),
    Rule("model/test_exhaustive.py", CHECK),
    Rule("model/test_kept_traces.py", CHECK),
    Rule("model/test_kept_traces_below_version_2.py", CHECK),
    Rule("model/test_procedures.py", CHECK),
    Rule("model/test_producer_machine.py", CHECK),
    Rule("model/test_mutations.py", Sample(of_class=lambda params: params["mutation"].name)),
    Rule("model/test_reality.py", TEST, one_of("seed", 0, 1, 2)),
    Rule("model/test_reality.py::test_random_requests_get_the_same_responses_as_from_a_broker", ALL),
    Rule("model", TEST),
    # Behind the proxy: one error case per class, one loss per stage and version, random faults and deadlines once.
    Rule(
        "faults/test_error_reactions.py::test_error_code_triggers_its_protocol_reaction",
        Sample(of_class=lambda params: params["case"].equivalence_class, every=5),
    ),
    Rule(
        "faults/test_lost_responses.py::test_write_survives_a_lost_message_at_any_stage",
        Sample(of_class=in_both_versions("stage", "version")),
    ),
    Rule(
        "faults/test_restore.py::test_restore_survives_a_lost_message_at_any_stage",
        Sample(of_class=in_both_versions("stage", "version")),
    ),
    Rule("faults/test_fail_over.py", EXHAUSTIVE),  # three nodes that end
    Rule("faults/test_partitions_without_leader.py", EXHAUSTIVE),
    Rule("faults/test_history.py", ALL),
    Rule("faults/test_lost_responses.py", ALL, below_version_2),
    Rule("faults/test_restore.py", ALL, below_version_2),
    Rule("faults/test_dropped_connections.py", ALL, below_version_2),
    Rule(
        "faults/test_quotas.py::test_request_that_waits_for_a_quota_is_not_sent_again",
        ALL,
        one_of("transactional_id", None),
    ),
    Rule("faults", TEST),
    # A real broker: what differs below transaction.version 2 on both, the rest on version 2. Clusters of their own are for test-all.
    Rule("broker/test_exhausted_numbers.py", EXHAUSTIVE),
    Rule(
        "broker/test_kafka_versions.py",
        EXHAUSTIVE,
        lambda params: params.get("point") not in (None, "commit.between_ends", "restore.copying"),
    ),
    Rule("broker/test_kafka_versions.py", ALL),
    Rule(
        "broker/test_transaction_version_changes.py",
        ALL,
        one_of("point", "task.initialised", "commit.decision_written", "commit.decided", "restore.copying"),
    ),
    Rule("broker/test_transaction_version_changes.py", EXHAUSTIVE),
    Rule("broker/test_embedded_kafka.py::test_failed_start_shows_the_reason_and_leaves_nothing", TEST),
    Rule("broker/test_embedded_kafka.py::test_folder_with_other_files_is_rejected_and_untouched", TEST),
    Rule("broker/test_embedded_kafka.py::test_port_in_use_fails_before_any_start", TEST),
    Rule("broker/test_embedded_kafka.py", ALL),
    Rule("broker/test_cli_broker_security.py", ALL),
    Rule("broker/test_acl_scripts.py", ALL),  # a JVM for each command
    Rule("broker/test_low_limits.py", ALL),
    Rule("broker/test_cli_broker_topics.py", ALL),
    Rule("broker/test_token_endpoint.py::test_response_without_token_fails_without_retry", TEST),
    Rule("broker/test_token_endpoint.py::test_provider_returns_token_and_expiry", TEST),
    Rule("broker/test_token_endpoint.py::test_token_request_goes_through_the_proxy_encrypted", TEST),
    Rule("broker/test_token_endpoint.py", ALL),
    Rule("broker/test_kerberos.py::test_transactional_write_succeeds_with_keytab", TEST),
    Rule("broker/test_kerberos.py::test_connection_outlives_session_and_ticket", TEST),
    Rule("broker/test_kerberos.py::test_clock_skew_is_reported", TEST),
    Rule("broker/test_kerberos.py", ALL),
    Rule("broker/test_documented_commands.py", ALL),
    Rule(
        "broker/test_shown_output.py::test_page_shows_what_its_commands_print",
        TEST,
        lambda params: params["story"].blocks[0].name == "docs/runbooks.md#consumers-stand-still",
    ),
    Rule("broker/test_shown_output.py", ALL),
    Rule("broker/test_task_memory.py", ALL),
    Rule("broker/test_missing_coordinators.py", ALL),
    Rule("broker/test_without_pyspark.py::test_embedded_kafka_and_commands_run", ALL),
    Rule("broker/test_admin.py::test_end_txn_succeeds_after_coordinator_fail_over", ALL),
    Rule("broker/test_network_client.py::test_client_rebootstraps_when_all_brokers_are_gone", ALL),
    # Kafka's own share consumer needs a JVM.
    Rule("broker/test_readers.py::test_share_group_reads_aborted_rows_unless_its_group_reads_committed", ALL),
    Rule("broker/test_group_members.py::test_share_group_holds_no_offsets_of_a_query", ALL),
    Rule("broker/test_cleaned_topics.py", ALL),
    Rule(
        "broker/test_missing_markers.py::test_what_hangs_is_discarded_and_copied",
        ALL,
        lambda params: params["by"] != "the next run" or params["taken"],
    ),
    Rule("broker/test_commit_log_creation.py", ALL),
    Rule("broker/test_history.py::test_history_topic_is_created_with_retention", ALL),
    Rule("broker/test_cli_metrics.py::test_write_and_its_open_transactions_are_scraped", TEST),
    Rule("broker/test_cli_metrics.py", ALL),
    Rule("broker/test_cli_audit.py::test_rows_of_deleted_topic_are_not_readable", ALL),
    Rule("broker/test_cli_audit.py::test_missing_rows_of_compacted_topic_are_not_readable", ALL),
    Rule("broker/test_verified_appends.py", ALL),
    Rule("broker/test_hostile_broker.py", ALL, lambda params: params["api"].__name__ != "MetadataRequest"),
    Rule("broker/test_hostile_broker.py", Sample(of_class=lambda params: params["harm"].__name__)),
    Rule("broker/test_commit_log_topic.py::test_compaction_and_restart_keep_commit_log_start_offset", ALL),
    Rule(
        "broker/test_deleted_topics.py::test_decided_rows_of_deleted_topic_raise_topic_gone",
        ALL,
        lambda params: params["says"] != "created again",  # waits for the topic
    ),
    Rule(
        "broker/test_straggler.py::test_a_straggler_fails_long_before_its_last_row",
        ALL,
        one_of("first_row_after_s", 7.0),
    ),
    Rule(
        "broker/test_producer.py::test_every_row_is_read_once_and_in_order_with_each_codec",
        ALL,
        one_of("codec", "gzip", "snappy", "zstd"),
    ),
    Rule(
        "broker/test_write_deaths.py::test_killed_write_is_complete_after_the_next_run",
        TEST,
        one_of("point", "task.prepared", "commit.decision_written", "commit.decided", "commit.between_ends"),
    ),
    # The model's drivers die at every step: here those after which the next run has something else to do.
    Rule(
        "broker/test_write_deaths.py::test_killed_write_is_complete_after_the_next_run",
        ALL,
        lambda params: params["point"] != "task.writing",
    ),
    Rule(
        "broker/test_write_deaths.py::test_killed_recovery_is_finished_by_the_next", TEST, one_of("second", "plan.read")
    ),
    Rule("broker/test_write_deaths.py::test_killed_recovery_is_finished_by_the_next", ALL),
    Rule(
        "broker/test_write_deaths.py::test_recover_finishes_a_restore_that_was_killed",
        Sample(of_class=lambda params: params["point"]),
    ),
    Rule("broker/test_lost_parts.py::test_recover_restores_aborted_rows_without_spark", ALL, one_of("lose", "timeout")),
    Rule("broker", ALL, below_version_2),
    Rule("broker", TEST),
    # The checker without a broker; a campaign.
    Rule("campaign/test_campaign.py::test_campaign_finds_nothing_wrong", ALL),
    Rule("campaign", CHECK),
    # Real Spark: batch and stream in one application, a driver that dies before and after the decision, a killed worker, one spark-submit.
    Rule("spark/test_fake_broker.py", ALL),  # needs Go
    Rule("spark/test_kubernetes.py", ALL),
    Rule("spark/test_yarn.py", ALL),  # YARN and HDFS of their own
    Rule("spark/test_hadoop_checkpoint.py", ALL),  # an HDFS of its own, and 65 MB of jars
    Rule("spark/test_airflow.py", ALL),  # downloads Airflow
    Rule("spark/test_delta.py", ALL),  # downloads another Spark
    Rule("spark/test_lost_checkpoint.py::test_query_without_its_checkpoint_continues_at_the_group", TEST),
    Rule("spark/test_lost_checkpoint.py", ALL),
    Rule("spark/test_checkpoint_changes.py", ALL),
    Rule(
        "spark/test_partition_for_topic.py::test_each_task_writes_one_partition_as_java_would",
        TEST,
        one_of("spark_version", "this Spark"),
    ),
    Rule("spark/test_partition_for_topic.py", ALL),
    Rule("spark/test_standalone.py", ALL),  # a cluster of its own, to which jobs bring 80 MB
    Rule("spark/test_connect.py", ALL),
    Rule("spark/test_pipelines.py", ALL),  # two JVMs for each run of a pipeline
    Rule("spark/test_sql.py", ALL),
    Rule("spark/test_migrate.py", ALL),
    Rule(
        "spark/test_snippets.py::test_block_runs_and_writes_its_rows_once",
        TEST,
        lambda params: params["block"].name == "docs/batch.md#batch-writes",
    ),
    Rule("spark/test_snippets.py", ALL),
    Rule("spark/test_demo.py", ALL),
    Rule("spark/test_bench.py", ALL),
    Rule("spark/test_notebooks.py", ALL),
    Rule("spark/test_record_comparison.py", ALL),
    Rule("spark/test_batch_security.py", ALL),
    Rule("spark/test_check_connection.py", ALL),
    Rule("spark/test_kerberos.py", ALL),
    Rule("spark/test_plan_redaction.py", ALL),
    Rule("spark/test_stream_jobs.py", ALL),
    Rule("spark/test_foreach_batch.py::test_write_without_id_logs_one_warning_on_the_driver", ALL),  # two applications
    Rule("spark/test_foreach_batch.py", ALL, one_of("column", True)),
    Rule("spark/test_spark_submit.py::test_a_failure_is_one_sentence_and_status_1", ALL),
    Rule("spark/test_batch_failures.py::test_the_driver_dies", TEST),
    Rule(
        "spark/test_batch_failures.py::test_a_task_dies_and_spark_runs_it_again", TEST, one_of("point", "task.writing")
    ),
    Rule("spark/test_batch_failures.py", ALL),
    Rule("spark/test_streaming_failures.py::test_commit_failing_after_decision_is_finished_by_abort", TEST),
    Rule("spark/test_streaming_failures.py", ALL),
    Rule(
        "spark/test_batch_exactly_once.py::test_order_is_kept_per_spark_partition_and_topic_partition",
        ALL,
        one_of("codec", "gzip", "snappy", "zstd", "none"),
    ),
    Rule(
        "spark/test_batch_versions.py::test_lost_commit_log_is_refused_until_the_user_decides",
        ALL,
        one_of("with_history", True),
    ),
    Rule(
        "spark/test_streaming.py::test_deleted_commit_log_is_refused_until_the_user_decides", ALL, one_of("batches", 0)
    ),
    Rule("spark", ALL, below_version_2),
    Rule("spark", TEST),
)
