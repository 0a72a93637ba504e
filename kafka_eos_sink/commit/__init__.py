"""Two-phase commit on the driver: the commit log, the decision, its recovery."""
