"""How storage is reached, as the environment says: a worker may have been started long before that changed."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

Credentials = tuple[tuple[str, str], ...]

_VARIABLES = re.compile(r"AWS_\w+|(?:NO|HTTPS?|ALL)_PROXY", re.IGNORECASE)


def credentials() -> Credentials:
    """The variables that say how storage is reached."""
    return tuple(sorted((name, value) for name, value in os.environ.items() if _VARIABLES.fullmatch(name)))


def set_credentials(variables: Mapping[str, str]) -> None:
    """Reach storage in this way from now on."""
    for name, _ in credentials():
        if name not in variables:
            del os.environ[name]
    os.environ.update(variables)
