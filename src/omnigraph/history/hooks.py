"""Hooks before and after a merge: a command or a URL of this process, never of the graph.

They are settings of the process and not of the graph: those who may write to the storage of a graph must not choose
what runs where it is merged.
"""

from __future__ import annotations

import json
import logging
import os
import shlex
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Any
from urllib.parse import urlsplit

from omnigraph.core.http import HttpFailure, HttpPool, HttpRequest
from omnigraph.errors import HookError, OptionError

BEFORE, AFTER = "OMNIGRAPH_BEFORE_MERGE", "OMNIGRAPH_AFTER_MERGE"
HOSTS, SECONDS = "OMNIGRAPH_HOOK_HOSTS", "OMNIGRAPH_HOOK_SECONDS"
_PATIENCE = 30.0
_SHOWN = 400  # characters of what a hook says
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class MergeHooks:
    """What is called before a merge is published, and after it."""

    before: str | None = None
    after: str | None = None
    hosts: frozenset[str] = frozenset()
    seconds: float = _PATIENCE

    @classmethod
    def of_environment(cls) -> MergeHooks:
        given = {name: os.environ.get(name, "").strip() or None for name in (BEFORE, AFTER, HOSTS, SECONDS)}
        hosts = frozenset(one.strip().lower() for one in (given[HOSTS] or "").split(",") if one.strip())
        return cls(given[BEFORE], given[AFTER], hosts, _seconds(given[SECONDS]))

    def run_before(self, about: Mapping[str, Any]) -> None:
        """Call the hook before a merge; raise if it refuses."""
        if self.before is not None:
            self._call(self.before, {"event": "before_merge", **about})

    def run_after(self, about: Mapping[str, Any]) -> None:
        """Call the hook after a merge, which stands whatever the hook does."""
        if self.after is None:
            return
        try:
            self._call(self.after, {"event": "after_merge", **about})
        except HookError as error:
            _LOG.warning("after the merge %s: %s", about.get("commit_id"), error.message)

    def _call(self, hook: str, about: Mapping[str, Any]) -> None:
        document = json.dumps(about, ensure_ascii=False).encode()
        if hook.lower().startswith(("http://", "https://")):
            self._post(hook, document)
        else:
            self._run(hook, document)

    def _run(self, command: str, document: bytes) -> None:
        try:
            words = shlex.split(command)
            # No shell: the document comes on stdin, and nothing in it becomes part of a command.
            done = subprocess.run(  # noqa: S603 - the operator of the process has set it
                words, input=document, capture_output=True, timeout=self.seconds, check=False
            )
        except subprocess.TimeoutExpired:
            raise self._late(command) from None
        except (OSError, ValueError, IndexError) as error:
            raise HookError(f"the hook `{command}` cannot be run: {error}", hook=command, hint="fix it") from error
        if done.returncode:
            said = _shown(done.stderr or done.stdout)
            message = f"the hook `{command}` refused the merge with the exit code {done.returncode}{said}"
            raise HookError(message, hook=command, hint="correct what it reports, then merge again")

    def _post(self, url: str, document: bytes) -> None:
        parts = urlsplit(url)
        shown = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
        host = (parts.hostname or "").lower()
        if not _is_loopback(host) and host not in self.hosts:
            message = f"the hook {shown} is on a host that is not allowed"
            raise HookError(message, hook=shown, hint=f"name '{host}' in {HOSTS}")
        ends = time.monotonic() + self.seconds
        headers = ["Content-Type: application/json"]
        pool = HttpPool(url)
        try:
            # No redirect is followed: it could lead to a host that is not allowed.
            with pool.send(HttpRequest("POST", url, headers, document, self.seconds, self.seconds)) as answer:
                said = b""
                for chunk in answer:
                    said = (said + chunk)[: 4 * _SHOWN]
                    if time.monotonic() > ends:
                        raise self._late(shown)
                status = answer.status
        except HttpFailure as error:
            if error.timed_out:
                raise self._late(shown) from None
            raise HookError(f"the hook {shown} cannot be reached: {error}", hook=shown, hint="start it") from error
        finally:
            pool.close()
        if not 200 <= status < 300:  # noqa: PLR2004 - the success codes
            message = f"the hook {shown} refused the merge with the status {status}{_shown(said)}"
            raise HookError(message, hook=shown, hint="correct what it reports, then merge again")

    def _late(self, hook: str) -> HookError:
        message = f"the hook {hook} took longer than {self.seconds:g} s"
        return HookError(message, hook=hook, hint=f"fix it, or raise {SECONDS}")


def _seconds(given: str | None) -> float:
    try:
        seconds = _PATIENCE if given is None else float(given)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= 3600:  # noqa: PLR2004 - an hour
        raise OptionError(f"{SECONDS} is {given!r:.40}", option=SECONDS, hint="give seconds, up to 3600")
    return seconds


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def _shown(said: bytes) -> str:
    text = said[: 4 * _SHOWN].decode("utf-8", "replace")
    line = " ".join("".join(letter if letter.isprintable() else " " for letter in text).split())
    return f": {line[:_SHOWN]}" if line else ""
