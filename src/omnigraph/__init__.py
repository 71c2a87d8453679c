"""Omnigraph: a typed property graph on open columnar storage, versioned like git."""

from omnigraph import errors
from omnigraph.version import __version__

__all__ = ["__version__", "errors"]
