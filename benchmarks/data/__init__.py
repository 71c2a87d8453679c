"""Makes the graphs that the benchmarks ask."""
