"""Speed and memory, measured: each script prints a table and writes JSON. Run one as `python -m benchmarks.<name>`."""
