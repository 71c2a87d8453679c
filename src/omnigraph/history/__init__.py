"""History: branches, merge, diff, the change feed."""
