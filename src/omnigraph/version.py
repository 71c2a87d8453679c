"""The version of the package, and of the formats it writes."""

__version__ = "0.1.0"

INTERNAL_SCHEMA_VERSION = 4
