"""Measurements, never asserted: ``make bench``, and programs for one part each.

Start each from the repository, for example ``python -m benchmarks.bench_commit --help``.
"""
