"""The Spark data source: the only package that imports pyspark."""
