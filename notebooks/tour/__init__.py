"""What the notebook beside this package uses: a Kafka and a Spark to break, and figures of what happened."""
