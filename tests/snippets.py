"""Which test runs each block of code in README and docs.

Three kinds of blocks need no row here, because tests find them by their form:

    python, sql          run in one Spark application: spark/test_snippets.py
    kafka-eos ...        run on a broker: broker/test_documented_commands.py
    submit[-local] ...   read by the job's own parser, files and options included: unit/spark_jobs/test_documented_jobs.py

Every other block has a row: the test that runs it, or the reason why none does. `unit/test_documents.py` counts them.
"""

from __future__ import annotations

from documents import Block, all_blocks, is_kafka_eos, submitted

PAGE_OF_A_CLUSTER = "docs/deploy.md#a-standalone-cluster-with-an-archive"
RUNS_IN = {
    "README.md#kafka-eos": "spark/test_demo.py::test_demo_compares_exactly_once_with_at_least_once",
    "README.md#60-seconds": "spark/test_notebooks.py::test_readme_program_writes_each_row_once",
    "README.md#a-stream-killed-and-resumed": "spark/test_snippets.py::test_readme_stream_is_killed_and_resumed",
    "README.md#a-stream-killed-and-resumed:2": "spark/test_snippets.py::test_readme_stream_is_killed_and_resumed",
    "README.md#a-stream-killed-and-resumed:3": "spark/test_snippets.py::test_readme_stream_is_killed_and_resumed",
    "README.md#a-stream-killed-and-resumed:4": "spark/test_snippets.py::test_readme_stream_is_killed_and_resumed",
    "docs/batch.md#from-airflow": "unit/spark_jobs/test_documented_jobs.py::test_task_of_airflow_submits_a_job",
    "docs/consume.md#java": "broker/test_documented_commands.py::test_java_consumer_shows_only_committed_rows",
    "docs/consume.md#python": "spark/test_snippets.py::test_consumer_of_librdkafka_reads_the_rows",
    "docs/records.md#json": "spark/test_record_recipes.py::test_json_recipe_writes_json",
    "docs/records.md#avro": "spark/test_record_recipes.py::test_avro_recipe_writes_the_registrys_format",
    "docs/records.md#protobuf": "spark/test_record_recipes.py::test_protobuf_recipe_writes_the_registrys_format",
    "docs/services.md#confluent-cloud": "unit/settings/test_services.py::test_block_is_read_without_a_problem_or_warning",
    "docs/services.md#amazon-msk-with-iam:2": "unit/settings/test_services.py::test_block_is_read_without_a_problem_or_warning",
    "docs/services.md#amazon-msk-with-iam:3": "unit/settings/test_services.py::test_policy_for_iam_is_valid_json",
    "docs/services.md#aiven": "unit/settings/test_services.py::test_block_is_read_without_a_problem_or_warning",
    "docs/services.md#aiven:2": "unit/settings/test_services.py::test_block_is_read_without_a_problem_or_warning",
    "docs/services.md#microsoft-entra-id": "unit/settings/test_services.py::test_block_is_read_without_a_problem_or_warning",
    "docs/start.md#a-broker-and-a-topic": "broker/test_documented_commands.py::test_broker_of_the_first_page_serves_the_others",
    # The steps in shell; the test takes the same ones in Python.
    f"{PAGE_OF_A_CLUSTER}": "spark/test_standalone.py::test_executors_run_the_package_of_the_archive",
    f"{PAGE_OF_A_CLUSTER}:2": "spark/test_standalone.py::test_executors_run_the_package_of_the_archive",
    f"{PAGE_OF_A_CLUSTER}:3": "spark/test_standalone.py::test_executors_run_the_package_of_the_archive",
    f"{PAGE_OF_A_CLUSTER}:9": "spark/test_standalone.py::test_executors_run_the_package_of_the_archive",
    f"{PAGE_OF_A_CLUSTER}:10": "spark/test_standalone.py::test_executors_run_the_package_of_the_archive",
    "docs/performance.md#performance": "spark/test_bench.py::test_benchmark_measures_all_sinks",
    "docs/performance.md#performance:2": "unit/spark_jobs/test_documented_jobs.py::test_benchmarks_have_the_options_that_the_page_names",
    "docs/cli.md#kafka-eos-broker": "broker/test_documented_commands.py::test_broker_of_the_first_page_serves_the_others",
    "docs/cli.md#kafka-eos-demo": "spark/test_demo.py::test_demo_compares_exactly_once_with_at_least_once",
    "docs/cli.md#kafka-eos-metrics": "broker/test_cli_metrics.py::test_write_and_its_open_transactions_are_scraped",
    "docs/cli.md#kafka-eos-offsets": "broker/test_cli_offsets.py::test_group_is_printed_as_starting_offsets_with_its_writes",
    "docs/monitor.md#prometheus": "broker/test_cli_metrics.py::test_write_and_its_open_transactions_are_scraped",
    "docs/cli.md#kafka-eos-jars": "unit/cli/test_jars.py::test_the_jars_are_printed_as_spark_submit_takes_them",
}
"""Block -> the test that runs it, below ``tests/``."""

_NO_TOOLS = "Kafka's shell tools are not among the jars that the tests have"
NOT_RUN = {
    "CONTRIBUTING.md#set-up": "sets up the environment that the test runs in; the targets are checked to exist",
    "README.md#install": "clones and installs: what every run of the tests has done before",
    f"{PAGE_OF_A_CLUSTER}:4": _NO_TOOLS,
    "docs/compatibility.md#the-commit-log": _NO_TOOLS,
    "docs/secure.md#rights-that-a-write-needs": _NO_TOOLS,
    "docs/operate.md#recover:3": f"{_NO_TOOLS}; broker/test_missing_markers.py does with another client what the command does",
    "docs/consume.md#flink": "needs Flink",
    "docs/consume.md#kafka-connect": "needs Kafka Connect",
    "docs/consume.md#kcat": "needs kcat",
    "docs/monitor.md#prometheus:2": "configures Prometheus; the file of rules that it names is loaded by the tests",
    "docs/services.md#amazon-msk-with-iam": "installs a package",
    "docs/services.md#microsoft-entra-id:2": "needs azure-identity and an account",
    "docs/start.md#a-batch": "sets a variable that every test with Spark sets",
    "docs/deploy.md#four-jobs-that-need-no-code": "defines the alias of the blocks below it; the files that it names are checked",
}
"""Block -> why no test runs it."""

PICTURES = {
    "docs/architecture.md#the-picture",
    "docs/operate.md#from-symptom-to-command",
    "docs/operate.md#which-run-wrote-this-row:3",
    "docs/protocol.md#the-procedure",
}
"""Blocks that are no code."""


def runs_in_spark(block: Block) -> bool:
    return block.language in ("python", "sql") and not has_row(block)


def runs_on_a_broker(block: Block) -> bool:
    return not block.language and not has_row(block) and all(map(is_kafka_eos, block.commands()))


def submits(block: Block) -> bool:
    """Whether the block submits jobs, and beyond that only prepares it."""
    prepares = ("export ", "alias ", "mkdir ")
    jobs = [command for command in block.commands() if not command.startswith(prepares)]
    return not block.language and not has_row(block) and bool(jobs) and all(map(submitted, jobs))


def has_row(block: Block) -> bool:
    return block.name in RUNS_IN or block.name in NOT_RUN or block.name in PICTURES


IN_SPARK = [block for block in all_blocks() if runs_in_spark(block)]
ON_A_BROKER = [block for block in all_blocks() if runs_on_a_broker(block)]
SUBMITTED = [block for block in all_blocks() if submits(block)]
