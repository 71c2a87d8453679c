"""Texts become vectors: what an embedder is, those that come along, and which one is configured."""

from omnigraph.embed.embedder import Embedder, Purpose
from omnigraph.embed.local import MockEmbedder
from omnigraph.embed.providers import Provider, ServiceSettings, embedder_from_environment

__all__ = ["Embedder", "MockEmbedder", "Provider", "Purpose", "ServiceSettings", "embedder_from_environment"]
