"""The address of a graph: a local directory or a prefix in an S3 bucket."""

from __future__ import annotations

import os
import re
import urllib.parse
from dataclasses import dataclass

from omnigraph.errors import StorageError, UnsupportedUriError

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/+")
_S3, _FILE = "s3://", "file://"
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
# Lance reads an S3 address as a URL, obstore as plain text. These characters mean something only in a URL.
_AMBIGUOUS = re.compile(r"[?#%\\]")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_TEMPORARY = re.compile(r"#\d+\Z")
_ENDPOINT = re.compile(r"https?://(?:[\w.-]+|\[[0-9A-Fa-f:.]+\])(?::(\d{1,5}))?(?:/[^\s?#]*)?", re.ASCII)

_OPTIONS = {
    "access_key_id": ("AWS_ACCESS_KEY_ID",),
    "secret_access_key": ("AWS_SECRET_ACCESS_KEY",),
    "session_token": ("AWS_SESSION_TOKEN",),
    "region": ("AWS_REGION",),
    "endpoint": ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"),
    "allow_http": ("AWS_ALLOW_HTTP",),
}


@dataclass(frozen=True, slots=True)
class Location:
    """A directory, by its absolute path, or a prefix in an S3 bucket. Created by `parse`."""

    uri: str

    @classmethod
    def parse(cls, uri: str | os.PathLike[str]) -> Location:
        """Parse an address as users write it. It need not exist."""
        text = os.fspath(uri)
        if not text:
            raise UnsupportedUriError("the address of the graph is empty", uri=text, hint="give a path or an s3:// URI")
        _check_characters(text, text)
        scheme = _SCHEME.match(text)
        if scheme is None:
            return cls(_absolute(text, text))
        if text.lower().startswith(_S3):
            return cls(_s3(text))
        if text.lower().startswith(_FILE):
            return cls(_file(text))
        raise UnsupportedUriError(
            f"'{text}' is not a supported address for a graph", uri=text, hint=_remedy(scheme[1].lower())
        )

    @property
    def is_local(self) -> bool:
        return not self.uri.startswith(_S3)

    @property
    def bucket(self) -> str:
        """The bucket; empty for a directory."""
        return "" if self.is_local else self.uri.removeprefix(_S3).partition("/")[0]

    @property
    def key(self) -> str:
        """The root in the terms of an object store: below the bucket, or below the root of the file system."""
        return self.uri.strip("/") if self.is_local else self.uri.removeprefix(_S3).partition("/")[2]

    def child(self, *parts: str) -> str:
        """Return the address of something below the root, in the form that `lance.dataset` takes."""
        return "/".join((self.uri.rstrip("/"), *filter(None, parts))) or "/"

    @property
    def storage_options(self) -> dict[str, str] | None:
        """The settings to reach the bucket, from the environment as it is now, for Lance and obstore."""
        if self.is_local:
            return None
        options = {}
        for option, variables in _OPTIONS.items():
            # The first that is set wins, and an empty one counts as unset: containers pass variables on without a
            # value.
            for variable in variables:
                if option not in options and (value := os.environ.get(variable, "").strip()):
                    options[option] = self._checked(variable, value)
        if os.environ.get("AWS_S3_FORCE_PATH_STYLE", "").lower() in ("false", "0", "no", "off"):
            options["virtual_hosted_style_request"] = "true"
            if "endpoint" in options:  # both libraries use it unchanged, so it must contain the bucket
                options["endpoint"] = options["endpoint"].replace("://", f"://{self.bucket}.", 1)
                options["aws_endpoint_url_s3"] = options["endpoint"]  # otherwise they prefer the environment variable
        return options

    def _checked(self, variable: str, value: str) -> str:
        """Return the value, or raise if it would make obstore panic."""
        if _CONTROL.search(value):
            problem = "contains control characters"
        elif variable in _OPTIONS["endpoint"] and not _is_endpoint(value):
            problem = f"is not an http:// or https:// URL: {value}"
        else:
            return value
        hint = "correct the environment variable"
        raise StorageError(f"{variable} {problem}", path=self.uri, operation="configure", hint=hint)


def is_temporary(name: str) -> bool:
    """Return whether a name has the form `<name>#<digits>`: a local store writes to such files before renaming them."""
    return bool(_TEMPORARY.search(name))


def _is_endpoint(value: str) -> bool:
    found = _ENDPOINT.fullmatch(value)
    return found is not None and int(found[1] or 0) < 2**16


def _absolute(path: str, uri: str) -> str:
    absolute = os.path.abspath(path).replace("//", "/", 1)  # noqa: PTH100 - `..` must go, links must stay
    if is_temporary(absolute):
        message = f"'{uri}' ends in # and digits, like a temporary file"
        raise UnsupportedUriError(message, uri=uri, hint="choose another name")
    return absolute


def _file(uri: str) -> str:
    # A file URL is percent-encoded, a plain path is not: `%20` in a path is three characters of a name.
    path = urllib.parse.unquote(uri[len(_FILE) :], errors="surrogateescape")
    path = path.removeprefix("localhost") if path.startswith("localhost/") else path
    _check_characters(path, uri)
    if not path.startswith("/"):
        hint = f"write file:///{path} for an absolute path; a relative path goes without file://"
        raise UnsupportedUriError(f"'{uri}' is not an absolute local path", uri=uri, hint=hint)
    return _absolute(path, uri)


def _s3(uri: str) -> str:
    bucket, _, prefix = uri[len(_S3) :].partition("/")
    prefix = prefix.rstrip("/")
    if not _BUCKET.fullmatch(bucket):
        raise UnsupportedUriError(f"'{uri}' has no valid bucket name", uri=uri, hint="write s3://bucket/prefix")
    if _AMBIGUOUS.search(prefix):
        raise UnsupportedUriError(f"'{uri}' contains one of ? # % \\", uri=uri, hint="use a prefix without them")
    if prefix and not {"", ".", ".."}.isdisjoint(prefix.split("/")):
        hint = "write the prefix without empty parts, '.' and '..'"
        raise UnsupportedUriError(f"'{uri}' has empty, '.' or '..' parts", uri=uri, hint=hint)
    # Without a slash at the end. Two spellings of one graph would have two caches and two sets of locks.
    return f"{_S3}{bucket}/{prefix}" if prefix else f"{_S3}{bucket}"


def _check_characters(text: str, uri: str) -> None:
    if _CONTROL.search(text) or not is_unicode(text):
        message = f"{uri!a} contains control characters or bytes that are not text"
        raise UnsupportedUriError(message, uri=uri, hint="use a path of printable characters")


def is_unicode(text: str) -> bool:
    """Return whether the text has no lone surrogates, Python's form of undecodable bytes in a path."""
    return text.isascii() or not any("\ud800" <= char <= "\udfff" for char in text)


def _remedy(scheme: str) -> str:
    if scheme in ("s3", "file"):  # pathlib.Path collapses the slashes
        return f"write it as text with two slashes, {scheme}://..."
    return "use a local path, file:///path or s3://bucket/prefix"
