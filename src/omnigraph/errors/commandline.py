"""What a person who types commands can get wrong before a graph is touched."""

from __future__ import annotations

from omnigraph.errors.base import OmnigraphError


class AddressError(OmnigraphError):
    """A command that names no graph, or names it in a way that does not go with it."""

    code = "bad_address"
    http_status = 400


class ConfigError(OmnigraphError):
    """A file of settings that cannot be used, or a name that should be in it and is not."""

    code = "bad_config"
    http_status = 400
    path: str


class AliasError(OmnigraphError):
    """An alias that nobody has defined, or that is called in a way that does not suit it."""

    code = "bad_alias"
    http_status = 400
    alias: str
