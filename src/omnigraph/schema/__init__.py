"""Create a graph from a schema, and change the schema of a graph that has data."""
