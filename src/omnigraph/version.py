"""The version of the package, and of the formats it writes."""

__version__ = "0.2.0.dev0"

INTERNAL_SCHEMA_VERSION = 5
