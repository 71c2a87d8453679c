"""Upkeep of a graph: indices and compaction, removal of what nobody needs, repair, and a report of its health."""
