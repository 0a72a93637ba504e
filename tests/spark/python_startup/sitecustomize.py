"""Run by each Python that starts with this folder on its PYTHONPATH: those that Spark starts in tests.

Spark puts its own packages before all others as archives, of which Python keeps no byte code: each of the five processes that a small
streaming job needs compiled PySpark anew, a third of the time that the job took. The same files lie beside them, installed.
"""

import sys

sys.path[:] = [entry for entry in sys.path if not entry.endswith(("/pyspark.zip", "-src.zip"))]
