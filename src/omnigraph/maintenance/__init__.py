"""Maintenance: indices and compaction, cleanup, repair, and the health report."""
