"""Run by each Python that starts with this folder on its PYTHONPATH: those that Spark starts in tests.

Spark puts its own packages before all others as archives, of which Python keeps no byte code: each of the five processes that a small
streaming job needs compiled PySpark anew, a third of the time that the job took. The same files lie beside them, installed.

And each worker and planner process takes a second of processor time to import Arrow and this package, after the daemon has forked it. A
daemon that has them already saves another third; not where the package comes as a zip, which is added to the path after the fork.
"""

import os
import sys
from pathlib import Path

sys.path[:] = [entry for entry in sys.path if not entry.endswith(("/pyspark.zip", "-src.zip"))]

if "pyspark.daemon" in sys.orig_argv:
    import pyspark.sql.datasource  # noqa: F401

    if str(Path(__file__).parents[3]) in os.environ["PYTHONPATH"].split(os.pathsep):
        import kafka_eos_sink.spark.stream_writer
        import kafka_eos_sink.spark.writer  # noqa: F401
