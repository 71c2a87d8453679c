"""Changing the graph: the rows a change brings, the rules they must keep, and mutations."""
