"""Runs the procedures of commit/ on a cluster; ``session`` is the sink's entry."""
