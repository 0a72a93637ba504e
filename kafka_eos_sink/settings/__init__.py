"""Option names of Java's clients and of the sink, read into configuration values; no Spark, no sockets."""
