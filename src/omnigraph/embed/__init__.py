"""Embed texts as vectors: the protocol, the built-in embedders, and the configured one."""

from omnigraph.embed.embedder import Embedder, Purpose
from omnigraph.embed.local import MockEmbedder
from omnigraph.embed.providers import Provider, ServiceSettings, embedder_from_environment

__all__ = ["Embedder", "MockEmbedder", "Provider", "Purpose", "ServiceSettings", "embedder_from_environment"]
