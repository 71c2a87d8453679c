"""Changing the schema of a graph that has data."""
