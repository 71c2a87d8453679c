"""Change the graph: the rows that a change brings, the rules they must keep, and mutations."""
