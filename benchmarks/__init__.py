"""Measurements, never asserted: ``make bench``, and programs that measure one part each; not in the wheel.

Start each from the repository, for example ``python -m benchmarks.bench_commit --help``.
"""
