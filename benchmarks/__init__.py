"""Measurements against other tools, each made in the same run: `python -m benchmarks.files`."""
