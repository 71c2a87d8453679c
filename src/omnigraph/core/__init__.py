"""Building blocks without an engine: addresses, names of states, values, execution of many tasks."""
