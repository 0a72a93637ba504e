"""Which test runs each block of code in README and docs.

Four kinds of blocks need no row here, because tests find them by their form:

    python, sql          run in one Spark application: spark/test_snippets.py
    kafka-eos ...        run on a broker: broker/test_documented_commands.py
    submit[-local] ...   read by the job's own parser, files and options included: unit/spark_jobs/test_documented_jobs.py
    text                 directly below one of the first two: compared with what it prints: broker/test_shown_output.py says how

Every other block has a row: the test that runs it, or the reason why none does. `unit/test_documents.py` counts them.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby

from documents import Block, all_blocks, is_kafka_eos, output_blocks, submitted

PAGE_OF_A_CLUSTER = "docs/standalone.md"
_MESSAGES = "unit/test_error_codes_are_documented.py::test_page_shows_messages_as_the_code_makes_them"
_DECIDED = "unit/test_error_codes_are_documented.py::test_runbook_shows_the_message_of_a_decided_batch"
_AFTER_ANOTHER_SINK = "unit/test_error_codes_are_documented.py::test_page_on_the_change_of_a_sink_shows_the_message"
_EXPLAINED = "unit/cli/test_explain.py::test_page_shows_what_the_command_prints"
_FIRST_PAGE = "spark/test_snippets.py::test_first_page_is_done_step_by_step"
_DELTA = "spark/test_delta.py::test_each_change_of_a_table_is_written_once"
_BENCH_OPTIONS = "unit/spark_jobs/test_documented_jobs.py::test_benchmarks_have_the_options_that_the_page_names"
_PIPELINE = "spark/test_pipelines.py::test_killed_pipeline_writes_once_and_refuses_full_refresh"
_KILLED_ON_YARN = "spark/test_yarn.py::test_killed_application_continues_when_submitted_again"
RUNS_IN = {
    "docs/deploy.md#yarn:2": "spark/test_yarn.py::test_check_connection_runs_with_the_archive",
    "docs/deploy.md#a-batch-in-cluster-mode:4": "spark/test_yarn.py::test_batch_in_cluster_mode_writes_once",
    "docs/deploy.md#a-stream-with-its-checkpoint-on-hdfs:2": _KILLED_ON_YARN,
    "README.md#kafka-eos:2": "spark/test_demo.py::test_demo_compares_exactly_once_with_at_least_once",
    "README.md#60-seconds": "spark/test_notebooks.py::test_readme_program_writes_each_row_once",
    "README.md#60-seconds:2": "spark/test_notebooks.py::test_readme_program_writes_each_row_once",
    "docs/stream.md#a-delta-table-as-the-source": _DELTA,
    **{f"docs/stream.md#a-delta-table-as-the-source:{number}": _DELTA for number in range(2, 5)},
    "docs/batch.md#from-airflow": "spark/test_airflow.py::test_cleared_task_writes_nothing_twice",
    "docs/read.md#java": "broker/test_documented_commands.py::test_java_consumer_shows_only_committed_rows",
    "docs/read.md#share-groups": "broker/test_readers.py::test_share_group_reads_aborted_rows_unless_its_group_reads_committed",
    "docs/migrate.md#prepare:2": "unit/test_acl_scripts_are_shown.py::test_page_shows_what_the_script_prints",
    "docs/migrate.md#prepare:3": "unit/test_acl_scripts_are_shown.py::test_page_shows_what_the_script_prints",
    "docs/migrate.md#a-stream:4": _AFTER_ANOTHER_SINK,
    "docs/read.md#python": "spark/test_snippets.py::test_consumer_of_librdkafka_reads_the_rows",
    "docs/stream.md#declarative-pipelines": _PIPELINE,
    "docs/stream.md#declarative-pipelines:2": _PIPELINE,
    "docs/stream.md#declarative-pipelines:3": _PIPELINE,
    "docs/stream.md#a-full-refresh": _PIPELINE,
    "docs/records.md#json": "spark/test_record_recipes.py::test_json_recipe_writes_json",
    "docs/records.md#avro": "spark/test_record_recipes.py::test_avro_recipe_writes_the_registrys_format",
    "docs/records.md#protobuf": "spark/test_record_recipes.py::test_protobuf_recipe_writes_the_registrys_format",
    "docs/services.md#confluent-cloud": "unit/settings/test_services.py::test_block_is_read_without_a_problem_or_warning",
    "docs/services.md#amazon-msk-with-iam:2": "unit/settings/test_services.py::test_block_is_read_without_a_problem_or_warning",
    "docs/services.md#amazon-msk-with-iam:3": "unit/settings/test_services.py::test_policy_for_iam_is_valid_json",
    "docs/services.md#aiven": "unit/settings/test_services.py::test_block_is_read_without_a_problem_or_warning",
    "docs/services.md#aiven:2": "unit/settings/test_services.py::test_block_is_read_without_a_problem_or_warning",
    "docs/services.md#microsoft-entra-id": "unit/settings/test_services.py::test_block_is_read_without_a_problem_or_warning",
    "docs/records.md#dead-letters:4": "unit/runtime/test_batch_record.py::test_page_shows_the_warning_of_dead_letters",
    **{f"docs/start.md#{name}": _FIRST_PAGE for name in ("start-a-broker", "write-a-batch", "write-a-stream")},
    **{f"docs/start.md#{name}:2": _FIRST_PAGE for name in ("start-a-broker", "write-a-stream")},
    **{f"docs/start.md#write-a-batch:{number}": _FIRST_PAGE for number in range(2, 11)},
    **{f"docs/start.md#kill-it:{number}": _FIRST_PAGE for number in range(2, 9)},
    "docs/start.md#if-something-fails": _FIRST_PAGE,
    # The steps in shell; the test takes the same ones in Python.
    f"{PAGE_OF_A_CLUSTER}#pack-the-environment": "spark/test_standalone.py::test_executors_run_the_package_of_the_archive",
    f"{PAGE_OF_A_CLUSTER}#start-the-cluster-and-the-broker": "spark/test_standalone.py::test_executors_run_the_package_of_the_archive",
    f"{PAGE_OF_A_CLUSTER}#connect": "spark/test_standalone.py::test_executors_run_the_package_of_the_archive",
    f"{PAGE_OF_A_CLUSTER}#connect:3": "spark/test_standalone.py::test_executors_run_the_package_of_the_archive",
    f"{PAGE_OF_A_CLUSTER}#write:2": "spark/test_standalone.py::test_executors_run_the_package_of_the_archive",
    f"{PAGE_OF_A_CLUSTER}#write:3": "spark/test_standalone.py::test_executors_run_the_package_of_the_archive",
    f"{PAGE_OF_A_CLUSTER}#write:7": "spark/test_stream_jobs.py::test_late_files_go_to_a_topic_once",
    f"{PAGE_OF_A_CLUSTER}#stream:2": "spark/test_stream_jobs.py::test_late_files_go_to_a_topic_once",
    "docs/jobs.md#check_connectionpy:2": "spark/test_standalone.py::test_executors_run_the_package_of_the_archive",
    "docs/jobs.md#batch_to_kafkapy:2": "spark/test_spark_submit.py::test_files_go_to_a_topic_with_their_keys_and_headers",
    "docs/jobs.md#stream_to_kafkapy:2": "spark/test_stream_jobs.py::test_late_files_go_to_a_topic_once",
    "docs/jobs.md#verify_exactly_oncepy:2": "spark/test_stream_jobs.py::test_late_files_go_to_a_topic_once",
    "docs/runbooks.md#a-job-says-decided_not_finished": _DECIDED,
    "docs/errors.md#read-a-message": _MESSAGES,
    "docs/errors.md#read-a-message:2": _EXPLAINED,
    "docs/errors.md#read-a-message:3": _EXPLAINED,
    "docs/errors.md#invalid_options": _MESSAGES,
    "docs/errors.md#unknown_topic": _MESSAGES,
    "docs/errors.md#clock_skew": _MESSAGES,
    "docs/errors.md#transaction_too_old": _MESSAGES,
    "docs/errors.md#producer_fenced": _MESSAGES,
    "docs/errors.md#checkpoint_rolled_back": _MESSAGES,
    "docs/errors.md#different_batch": _MESSAGES,
    "docs/errors.md#nothing_to_resolve": _MESSAGES,
    "docs/errors.md#commit_log_lost": _MESSAGES,
    "docs/errors.md#lost_parts": _MESSAGES,
    "docs/internals/benchmarks.md#how-to-measure": "spark/test_bench.py::test_benchmark_measures_all_sinks",
    "docs/internals/benchmarks.md#how-to-measure:2": _BENCH_OPTIONS,
    "docs/performance.md#measure-your-own-write:3": "spark/test_bench.py::test_benchmark_measures_all_sinks",
    "docs/secure.md#certificates": "unit/settings/test_secure_page.py::test_properties_are_read_without_problem_or_warning",
    "docs/secure.md#tokens": "unit/settings/test_secure_page.py::test_properties_are_read_without_problem_or_warning",
    "docs/secure.md#kerberos:2": "unit/settings/test_secure_page.py::test_properties_are_read_without_problem_or_warning",
    "docs/secure.md#kerberos:4": "spark/test_kerberos.py::test_executors_log_in_with_a_keytab_from_files",
    "docs/secure.md#kerberos:5": "broker/test_kerberos.py::test_page_shows_the_error_of_a_keytab_without_the_principal",
    "docs/secure.md#kerberos:6": "unit/settings/test_secure_page.py::test_properties_are_read_without_problem_or_warning",
    "docs/secure.md#try-it-on-your-machine": "broker/test_cli_broker_security.py::test_secured_broker_prints_what_the_page_shows",
    "docs/secure.md#try-it-on-your-machine:2": "broker/test_cli_broker_security.py::test_secured_broker_prints_what_the_page_shows",
    "docs/access.md#rights-that-a-write-needs": "unit/test_acl_scripts_are_shown.py::test_page_shows_what_the_script_prints",
    "docs/access.md#rights-that-a-write-needs:2": "unit/test_acl_scripts_are_shown.py::test_page_shows_what_the_script_prints",
    "docs/access.md#rights-of-readers-and-operators": "unit/test_acl_scripts_are_shown.py::test_page_shows_what_the_script_prints",
    "docs/access.md#rights-of-readers-and-operators:2": "unit/test_acl_scripts_are_shown.py::test_page_shows_what_the_script_prints",
    "docs/access.md#rights-of-readers-and-operators:3": "broker/test_acl_scripts.py::test_pages_command_denies_deletion",
    "docs/deploy.md#the-environment": "spark/test_standalone.py::test_executors_run_the_package_of_the_archive",
    "docs/deploy.md#kubernetes": "unit/test_kubernetes_manifest.py::test_page_shows_the_arguments_of_the_job",
    "docs/cli.md#kafka-eos-broker": "broker/test_documented_commands.py::test_documented_broker_serves_the_other_commands",
    "docs/cli.md#kafka-eos-broker:2": "broker/test_documented_commands.py::test_documented_broker_serves_the_other_commands",
    "docs/cli.md#kafka-eos-demo": "spark/test_demo.py::test_demo_compares_exactly_once_with_at_least_once",
    "docs/cli.md#kafka-eos-demo:2": "spark/test_demo.py::test_demo_compares_exactly_once_with_at_least_once",
    "docs/alerts.md#alerts": "unit/test_monitoring.py::test_command_of_the_page_replaces_the_base_of_every_link",
    "docs/cli.md#kafka-eos-jars": "unit/cli/test_jars.py::test_the_jars_are_printed_as_spark_submit_takes_them",
    "docs/cli.md#kafka-eos-jars:2": "unit/cli/test_jars.py::test_the_jars_are_printed_as_spark_submit_takes_them",
}
"""Block -> the test that runs it, below ``tests/``."""

_NO_TOOLS = "Kafka's shell tools are not among the jars that the tests have"
NOT_RUN = {
    "CONTRIBUTING.md#set-up": "sets up the environment that the test runs in; the targets are checked to exist",
    "CONTRIBUTING.md#test": "runs these tests",
    "CONTRIBUTING.md#release": "takes two minutes and the index; `make release-check` before a release is its test",
    "CONTRIBUTING.md#release:2": "uploads a release",
    "README.md#install": "clones and installs: what every run of the tests has done before",
    f"{PAGE_OF_A_CLUSTER}#start-the-cluster-and-the-broker:2": "docs/start.md shows the output of this command in a test",
    f"{PAGE_OF_A_CLUSTER}#write:4": "reads the two rows that the page wrote",
    f"{PAGE_OF_A_CLUSTER}#write:5": "shows the two rows that the page wrote",
    "docs/clusters.md#what-a-copy-contains": "configures MirrorMaker 2",
    "docs/clusters.md#move-a-batch-job:4": _NO_TOOLS,
    "docs/upgrade.md#brokers": f"{_NO_TOOLS}; broker/test_transaction_version_changes.py raises the feature while writes run",
    "docs/performance.md#six-settings": "starts the reader's own program",
    "docs/compatibility.md#the-commit-log": _NO_TOOLS,
    "docs/deploy.md#kubernetes:2": "needs Kubernetes; spark/test_kubernetes.py runs the command of the Job with a stand-in for it",
    "docs/read.md#flink": "needs Flink",
    "docs/deploy.md#a-batch-in-cluster-mode": "needs Hadoop's commands; the rows of spark/test_yarn.py are local files",
    "docs/deploy.md#a-batch-in-cluster-mode:3": "needs Hadoop's commands",
    "docs/deploy.md#a-stream-with-its-checkpoint-on-hdfs:3": "needs two applications; docs/stream.md shows the same command in a test",
    "docs/deploy.md#a-stream-with-its-checkpoint-on-hdfs:4": "shows two applications; docs/stream.md shows the same columns in a test",
    "docs/migrate.md#prepare": "installs what the environment of the tests has",
    "docs/migrate.md#a-stream": "lists two folders of the reader",
    "docs/stream.md#consumer-lag-in-kafkas-own-tools": "needs a topic to read; spark/test_lost_checkpoint.py runs such a query",
    "docs/changes.md#move-a-checkpoint": "copies a folder of the reader",
    "docs/read.md#kafka-connect": "needs Kafka Connect",
    "docs/read.md#kcat": "needs kcat",
    "docs/runbooks.md#before-you-begin": "sets variables that every test of a command sets",
    "docs/monitor.md#watch-your-writes": "sets a variable that every test of a command sets",
    "docs/monitor.md#prometheus": "installs a package",
    "docs/monitor.md#logs": "sets a variable; unit/test_logs.py tests its values",
    "docs/monitor.md#prometheus:4": "configures Prometheus; the file of rules that it names is loaded by the tests",
    "docs/services.md#amazon-msk-with-iam": "installs a package",
    "docs/services.md#microsoft-entra-id:2": "needs azure-identity and an account",
    "docs/secure.md#kerberos": "installs packages",
    "docs/start.md#set-up": "sets up the environment that the test runs in, and variables that the test of the page sets",
    "docs/start.md#kill-it": "finds the process by its name; the test of the page knows its number",
    "docs/start.md#clean-up-or-continue-tomorrow": "deletes the folders of the reader",
    "docs/jobs.md#four-jobs-that-need-no-code": "defines the alias of the blocks below it; the files that it names are checked",
}
"""Block -> why no test runs it."""

PICTURES = {
    "docs/internals/architecture.md#the-picture",
    "docs/internals/architecture.md#the-path-of-a-commit",
    "docs/internals/architecture.md#the-path-of-a-commit:2",
    "docs/runbooks.md#from-symptom-to-command",
    "docs/internals/protocol.md#the-procedure",
}
"""Blocks that are no code."""

SHOWN_AFTER: dict[str, str] = {
    "docs/clusters.md#move-a-batch-job:5": "new_cluster",
    "docs/stream.md#kill-it-and-watch": "killed_query",
    "docs/stream.md#kill-it-and-watch:3": "~ next_start",
    "docs/changes.md#start-with-a-new-checkpoint": "group",
    "docs/records.md#dead-letters:2": "dead_letter",
    "docs/batch.md#an-empty-source:2": "without_rows",
    "docs/cli.md#kafka-eos-top": "decided",
    "docs/cli.md#kafka-eos-recover": "decided",
    "docs/cli.md#kafka-eos-offsets": "group",
    "docs/runbooks.md#consumers-stand-still": "prepared",
    "docs/runbooks.md#if-the-job-is-a-stream": "prepared_query",
    "docs/runbooks.md#a-job-says-decided_not_finished:2": "decided",
    "docs/runbooks.md#if-the-query-has-failed": "killed_query",
    "docs/runbooks.md#the-commit-log": "no_commit_log",
    "docs/runbooks.md#the-commit-log-of-a-stream": "query_without_commit_log",
    "docs/runbooks.md#a-transaction-that-no-coordinator-lists": "hanging",
    "docs/runbooks.md#a-checkpoint": "group",
    "docs/alerts.md#kafkaeosrowscopied": "copied",
    "docs/migrate.md#prepare:4": "empty",
    "docs/migrate.md#a-stream:5": "query_of_another_sink",
    "docs/migrate.md#a-stream:7": "~ next_batch",
    "docs/metrics.md#json-of-status": "foreign",
    "docs/monitor.md#status": "prepared",
    "docs/monitor.md#status:3": "~ next_run",
}
"""Block -> the state of the broker before it, a function of broker/test_shown_output.py; ``~ name``: what happened since the block above.

Without a row, the first block of a section follows ``finished``."""


def runs_in_spark(block: Block) -> bool:
    return block.language in ("python", "sql") and not has_row(block)


def runs_on_a_broker(block: Block) -> bool:
    """Whether the block runs `kafka-eos`, and beyond that only sets its variables."""
    commands = [command for command in block.commands() if not command.startswith("export KAFKA_EOS_")]
    return not block.language and not has_row(block) and bool(commands) and all(map(is_kafka_eos, commands))


def submits(block: Block) -> bool:
    """Whether the block submits jobs, and beyond that only prepares it."""
    prepares = ("export ", "alias ", "mkdir ")
    jobs = [command for command in block.commands() if not command.startswith(prepares)]
    return not block.language and not has_row(block) and bool(jobs) and all(map(submitted, jobs))


def has_row(block: Block) -> bool:
    return block.name in RUNS_IN or block.name in NOT_RUN or block.name in PICTURES


@dataclass(frozen=True)
class Story:
    """Blocks of a section that run one after the other, from a state on; at least one of them has an output."""

    state: str
    blocks: list[Block]


def stories() -> list[Story]:
    found: list[Story] = []
    for _, section in groupby(ON_A_BROKER, key=lambda block: (block.document, block.section)):
        first = len(found)
        for block in section:
            row = SHOWN_AFTER.get(block.name, "")
            if len(found) == first or (row and not row.startswith("~")):
                found.append(Story(row or "finished", []))
            found[-1].blocks.append(block)
    return [story for story in found if any(block.name in OUTPUTS for block in story.blocks)]


IN_SPARK = [block for block in all_blocks() if runs_in_spark(block)]
ON_A_BROKER = [block for block in all_blocks() if runs_on_a_broker(block)]
SUBMITTED = [block for block in all_blocks() if submits(block)]
OUTPUTS = output_blocks()
STORIES = stories()
SHOWN = [OUTPUTS[block.name] for block in (*IN_SPARK, *ON_A_BROKER) if block.name in OUTPUTS]
