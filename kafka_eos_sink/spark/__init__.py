"""The Spark data source: the only package of the sink that imports pyspark."""
