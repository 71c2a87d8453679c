"""Reading the graph: the steps of a query over one snapshot, on columns of row positions."""
