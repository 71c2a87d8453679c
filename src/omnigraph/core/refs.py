"""The grammar for naming a state of a graph: text to `Ref`, and the rules for names of branches and tags.

A ref is `name`, `name~n`, `name@which` or `name@which~n`. The name is that of a branch or a tag, or the id of a commit
or a prefix of it. `~n` goes back n first parents; `@which` is a state of `name` by its manifest version or its commit.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import quote

from omnigraph.errors import RefNameError

MAIN = "main"
FOREIGN_LOCK = "__schema_apply_lock__"  # the branch by which other programs lock the schema while they change it
SHORTEST_PREFIX = 6

# At most 9 digits: `~n` is walked parent by parent, and a larger number is a mistake in any history.
_REF = re.compile(r"(?P<name>[^@~]*)(?:@(?P<at>[^@~]+))?(?:~(?P<back>[0-9]{1,9}))?", re.DOTALL)
_SEGMENT = re.compile(r"[\w.][\w.-]*\Z")
# 255 bytes are the limit of most file systems; Lance and object stores add prefixes and suffixes to the name.
_LONGEST = 180  # of a name as it stands in the name of a file
_CROCKFORD = "0-9A-HJKMNP-TV-Z"
_COMMIT_ID = re.compile(f"[0-7][{_CROCKFORD}]{{25}}", re.IGNORECASE)
# A prefix of a ULID of the years 2004 to 3084. Names of digits, such as the date 20261117, are none.
_COMMIT_PREFIX = re.compile(f"0[1-9A-HJKMNP-TV-Z][{_CROCKFORD}]{{{SHORTEST_PREFIX - 2},23}}", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Ref:
    """A state as text names it: `at` is a manifest version or a commit id; `back` counts first parents."""

    name: str
    at: str | None = None
    back: int = 0

    def __str__(self) -> str:
        at = "" if self.at is None else f"@{self.at}"
        return f"{self.name}{at}{f'~{self.back}' if self.back else ''}"


def parse_ref(text: str) -> Ref:
    """Parse the name of a state; raise RefNameError for a text that can name none."""
    found = _REF.fullmatch(text.strip())
    if found is None:
        hint = "write `name`, `name~2` or `name@12`, where name is a branch, a tag or a commit id"
        raise RefNameError(f"{text!r:.80} does not name a state", name=text, hint=hint)
    return Ref(checked_name(found["name"]), found["at"], int(found["back"] or 0))


_RANGE = re.compile(r"(?P<one>(?:.*[^.])?)(?P<dots>\.{2,3})(?P<other>[^.].*)", re.DOTALL)


def parse_range(text: str, dots: str) -> tuple[str, str] | None:
    """Split `a..b`, or `a...b`, into its two refs; None for another text. A side that is left out is main."""
    found = _RANGE.fullmatch(text.strip())
    if found is None or found["dots"] != dots:
        return None
    return found["one"].strip() or MAIN, found["other"].strip()


def checked_name(name: str) -> str:
    """Trim the name of a branch; raise RefNameError if no branch can have it."""
    trimmed = name.strip()
    problem = _problem(trimmed)
    if problem:
        hint = "use letters, digits, `.`, `-` and `_`, and `/` between parts"
        raise RefNameError(f"{name!r:.80} cannot name a branch: {problem}", name=name, hint=hint)
    return trimmed


def checked_tag(name: str) -> str:
    """Trim the name of a tag; raise RefNameError if no tag can have it. Unlike a branch, a tag has one part."""
    trimmed = name.strip()
    problem = _problem_of_tag(trimmed)
    if problem:
        hint = "use letters, digits, `.`, `-` and `_`"
        raise RefNameError(f"{name!r:.80} cannot name a tag: {problem}", name=name, hint=hint)
    return trimmed


def branch_of(name: str) -> str | None:
    """Return the branch as the storage knows it, which has no name for main."""
    # Lance has no branch called main: its own main is the absence of a branch.
    return None if name == MAIN else name


def is_commit_id(text: str) -> bool:
    """Whether a text has the form of a whole commit id."""
    return _COMMIT_ID.fullmatch(text) is not None


def reads_as_commit(name: str) -> bool:
    """Whether a name could be taken for the id of a commit, or for a prefix of one."""
    return is_commit_id(name) or _COMMIT_PREFIX.fullmatch(name) is not None


def _problem_of_tag(name: str) -> str | None:
    if "/" in name:
        return "it contains `/`"
    if not name.isascii():  # Lance writes such a tag, and then cannot list any tag
        return "it has a character that is not in ASCII"
    return _problem(name)


def _problem(name: str) -> str | None:
    if not name:
        return "it is empty"
    if len(quote(quote(name, safe=""), safe="")) > _LONGEST:  # Lance encodes it twice
        return "it is too long"
    if name == FOREIGN_LOCK:
        return "it is reserved: other programs lock the schema with it"
    if name.startswith(f"{MAIN}/"):  # Lance takes the directory above it for that of main, and removes it as well
        return f"names below `{MAIN}` are reserved"
    if ".." in name or name.endswith(".lock"):
        return "it must not contain `..` or end with `.lock`"
    if not all(_SEGMENT.match(part) and part != "." for part in name.split("/")):
        return "a part of it is empty, or has a character that is not allowed"
    return None
