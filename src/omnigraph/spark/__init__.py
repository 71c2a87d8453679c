"""Spark: the session, the executor and the data source. The only package that imports pyspark."""
