"""What the programs in spark_jobs/ share: arguments, expressions, a topic as a DataFrame, comparison of records."""
