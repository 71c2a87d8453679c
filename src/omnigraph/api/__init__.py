"""Operations, results and options of a graph: values that every front end shares, without the engine."""
