"""Random graphs and damaged files, in numbers that no test suite has the time for. See docs/reliability.md."""
