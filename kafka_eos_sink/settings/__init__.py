"""Read options of Java's clients and of the sink; no Spark, no sockets."""
