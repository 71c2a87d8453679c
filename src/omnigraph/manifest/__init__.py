"""`__manifest`: the table versions that the graph consists of, on each branch, and the history of commits."""
