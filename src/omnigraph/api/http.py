"""The names that a server and its clients share: headers and media types."""

from __future__ import annotations

CONDITION_HEADER = "Omnigraph-If-Graph-Commit"
OPERATION_HEADER = "Omnigraph-Operation-Id"
JSON, NDJSON, ARROW = "application/json", "application/x-ndjson", "application/vnd.apache.arrow.stream"
CLIENT_HEADER = "Omnigraph-Client"
GRAPH_ID_PATTERN = "[A-Za-z0-9-]{1,64}"
