"""Figures, never asserted: `make bench` and programs that measure one part each; not in the wheel."""
