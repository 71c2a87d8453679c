"""The Model Context Protocol: the operations of a graph as tools, for agents."""
