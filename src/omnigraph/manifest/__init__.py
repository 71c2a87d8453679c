"""`__manifest`: which version of each table the graph consists of, on each branch, and the history of commits."""
