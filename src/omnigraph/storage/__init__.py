"""Where a graph lives: tables with staged writes only, small control files, request counters."""
