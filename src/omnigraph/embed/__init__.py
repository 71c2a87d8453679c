"""Texts become vectors: what an embedder is, those that come along, and which one is configured."""

from omnigraph.embed.embedder import Embedder, Purpose
from omnigraph.embed.mock import MockEmbedder
from omnigraph.embed.settings import Provider, Settings, embedder_from_environment

__all__ = ["Embedder", "MockEmbedder", "Provider", "Purpose", "Settings", "embedder_from_environment"]
