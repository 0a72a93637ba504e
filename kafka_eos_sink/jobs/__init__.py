"""Code of spark_jobs/: arguments, expressions, topics as DataFrames, comparisons."""
