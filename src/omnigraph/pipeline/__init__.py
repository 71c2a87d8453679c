"""The data pipeline: bulk load and export, in-process or on Spark."""
