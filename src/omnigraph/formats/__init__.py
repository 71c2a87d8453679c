"""Input and output formats: JSONL, CSV and Parquet, read as columns, split for tasks and written."""
