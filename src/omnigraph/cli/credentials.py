"""Stored bearer tokens, and the choice of the token for a server."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from omnigraph.errors import ConfigError

_HEADING = re.compile(r"\[(.+)\]")
_OTHERS = 0o077  # the permissions of group and others


def home() -> Path:
    """The directory of the operator configuration and the stored tokens."""
    return Path(os.environ.get("OMNIGRAPH_HOME") or Path.home() / ".omnigraph")


def credentials_file() -> Path:
    return home() / "credentials"


def store_token(name: str, token: str) -> None:
    _write({**_read(), name: token})


def remove_token(name: str) -> None:
    kept = _read()
    if kept.pop(name, None) is not None:
        _write(kept)


def token_for(url: str, servers: Mapping[str, str], variable: str | None = None) -> str | None:
    """The token for a URL: that of its server, else of the variable of its target, else OMNIGRAPH_BEARER_TOKEN."""
    name = _server_of(url, servers)
    own = _of_server(name) if name else None
    return own or (_variable(variable) if variable else None) or _variable("OMNIGRAPH_BEARER_TOKEN")


def _server_of(url: str, servers: Mapping[str, str]) -> str | None:
    """The server whose URL is the longest prefix of this one; `http://a` is not a prefix of `http://a.example`."""
    fitting = [name for name, base in servers.items() if f"{url}/".startswith(f"{base.rstrip('/')}/")]
    return max(fitting, key=lambda name: len(servers[name].rstrip("/")), default=None)


def _of_server(name: str) -> str | None:
    return _variable(f"OMNIGRAPH_TOKEN_{name.upper().replace('-', '_')}") or _read().get(name)


def _variable(name: str) -> str | None:
    return os.environ.get(name, "").strip() or None


def _read() -> dict[str, str]:
    path = credentials_file()
    try:
        if path.stat().st_mode & _OTHERS:
            message = f"others can read {path}"
            raise ConfigError(message, path=str(path), hint=f"run `chmod 600 {path}`")
        lines = path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read {path}: {error}", path=str(path)) from None
    found: dict[str, str] = {}
    name = ""
    for line in map(str.strip, lines):
        if heading := _HEADING.fullmatch(line):
            name = heading[1].strip()
        key, sign, value = line.partition("=")
        if sign and key.strip() == "token" and value.strip():
            found[name] = value.strip()
    return found


def _write(tokens: Mapping[str, str]) -> None:
    """Replace the file as a whole. It never exists with permissions that let others read it."""
    path = credentials_file()
    text = "\n".join(f"[{name}]\ntoken = {token}\n" for name, token in sorted(tokens.items()))
    fresh = path.with_name(f"credentials.{os.getpid()}")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
            file.write(text)
        fresh.replace(path)
    except OSError as error:
        fresh.unlink(missing_ok=True)
        raise ConfigError(f"cannot write {path}: {error.strerror or error}", path=str(path)) from None
