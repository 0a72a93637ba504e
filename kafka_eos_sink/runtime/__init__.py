"""Runs the procedures of commit/ on a cluster: executors, the session that the sink calls, failpoints."""
