"""Benchmarks: `python -m bench NAME` runs one, `python -m bench` runs all and writes docs/benchmarks.md."""
