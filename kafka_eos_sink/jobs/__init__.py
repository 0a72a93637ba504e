"""Shared by spark_jobs/: arguments, expressions, topics as DataFrames, comparisons."""
