import os
from pathlib import Path

import lance
import pyarrow as pa
import pytest

from omnigraph.core.location import Location
from omnigraph.errors import StorageError, UnsupportedUriError
from omnigraph.storage.objects import ObjectStore

_SETTINGS = {
    "AWS_ACCESS_KEY_ID": "id",
    "AWS_SECRET_ACCESS_KEY": "secret",
    "AWS_SESSION_TOKEN": "token",
    "AWS_REGION": "eu-central-1",
    "AWS_ENDPOINT_URL": "http://storage.example:9000",
    "AWS_ALLOW_HTTP": "true",
}
_VARIABLES = [*_SETTINGS, "AWS_ENDPOINT_URL_S3", "AWS_S3_FORCE_PATH_STYLE"]


@pytest.fixture
def _bare(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in _VARIABLES:
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    "text, uri",
    [
        ("/graphs/one", "/graphs/one"),
        ("/graphs/one//", "/graphs/one"),
        ("//graphs//./two/../one", "/graphs/one"),
        ("/", "/"),
        ("/a b/ü%41#x?y", "/a b/ü%41#x?y"),
        ("/a/c:/b", "/a/c:/b"),
        ("file:///graphs/a%20b%C3%BC/", "/graphs/a bü"),
        ("FILE://localhost/graphs/one", "/graphs/one"),
        ("s3://bucket/graphs/one", "s3://bucket/graphs/one"),
        ("s3://bucket/graphs/one///", "s3://bucket/graphs/one"),
        ("S3://Bucket", "s3://Bucket"),
        ("s3://bucket/", "s3://bucket"),
        ("s3://bucket/a b/ü+=@:,&", "s3://bucket/a b/ü+=@:,&"),
    ],
)
def test_an_address_has_one_canonical_form(text: str, uri: str) -> None:
    location = Location.parse(text)

    assert location.uri == uri
    assert location.is_local == uri.startswith("/")
    assert Location.parse(uri) == location


@pytest.mark.parametrize(
    "text, hint",
    [
        ("", "give a path"),
        ("http://host/graph", "use a local path"),
        ("https://host/graph", "use a local path"),
        ("gs://bucket/graph", "use a local path"),
        ("s3:/bucket/graph", "two slashes, s3://"),
        ("file:/graph", "two slashes, file://"),
        ("file://host/graph", "file:///host/graph"),
        ("file://", "file:///"),
        ("file:///a%00b", "printable"),
        ("file:///a%FFb", "printable"),
        ("s3://", "s3://bucket/prefix"),
        ("s3:///graph", "s3://bucket/prefix"),
        ("s3://user@bucket:80/graph", "s3://bucket/prefix"),
        ("s3://bucket/a?b", "without them"),
        ("s3://bucket/a#b", "without them"),
        ("s3://bucket/a%20b", "without them"),
        ("s3://bucket/a//b", "empty parts"),
        ("s3://bucket/a/../b", "'..'"),
        ("/a\0b", "printable"),
        ("/a\nb", "printable"),
        (os.fsdecode(b"/a\xffb"), "printable"),
        ("/graphs/one#12", "another name"),
    ],
)
def test_what_cannot_hold_a_graph_is_refused_with_a_remedy(text: str, hint: str) -> None:
    with pytest.raises(UnsupportedUriError) as refusal:
        Location.parse(text)

    assert refusal.value.uri == text
    assert hint in (refusal.value.hint or "")
    assert str(refusal.value).isprintable() or "\n" in str(refusal.value)
    str(refusal.value).encode()


def test_a_relative_path_becomes_absolute_and_a_tilde_is_a_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    assert Location.parse("graphs/one").uri == f"{tmp_path}/graphs/one"
    assert Location.parse(".").uri == str(tmp_path)
    assert Location.parse("~/one").uri == f"{tmp_path}/~/one"
    assert Location.parse(Path("graphs")) == Location.parse("graphs")


def test_a_pathlib_path_made_of_a_uri_is_refused_not_taken_for_a_directory() -> None:
    with pytest.raises(UnsupportedUriError, match="as text with two slashes"):
        Location.parse(Path("s3://bucket/graph"))


@pytest.mark.parametrize(
    "text, parts, child",
    [
        ("/graphs/one", ("nodes", "abc"), "/graphs/one/nodes/abc"),
        ("/graphs/one", (), "/graphs/one"),
        ("/", ("nodes",), "/nodes"),
        ("/", ("",), "/"),
        ("s3://bucket/one", ("nodes/abc",), "s3://bucket/one/nodes/abc"),
        ("s3://bucket", ("nodes",), "s3://bucket/nodes"),
    ],
)
def test_a_child_is_below_the_root(text: str, parts: tuple[str, ...], child: str) -> None:
    assert Location.parse(text).child(*parts) == child


@pytest.mark.usefixtures("_bare")
def test_a_directory_needs_no_options() -> None:
    assert Location.parse("/graphs/one").storage_options is None
    assert Location.parse("s3://bucket/one").storage_options == {}


@pytest.mark.usefixtures("_bare")
def test_the_options_are_those_of_the_environment_as_it_is_now(monkeypatch: pytest.MonkeyPatch) -> None:
    location = Location.parse("s3://bucket/one")
    for name, value in _SETTINGS.items():
        monkeypatch.setenv(name, f"{value}\n")  # as a secret that was read from a file

    assert location.storage_options == {
        "access_key_id": "id",
        "secret_access_key": "secret",
        "session_token": "token",
        "region": "eu-central-1",
        "endpoint": "http://storage.example:9000",
        "allow_http": "true",
    }
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "https://s3.example")
    assert (location.storage_options or {})["endpoint"] == "https://s3.example"


@pytest.mark.usefixtures("_bare")
@pytest.mark.parametrize("variable", ["AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"])
@pytest.mark.parametrize(
    "path_style, host", [("true", "s3.invalid"), ("", "s3.invalid"), ("False", "bucket.s3.invalid")]
)
def test_a_virtual_host_has_the_bucket_in_it(
    path_style: str, host: str, variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in _SETTINGS.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv(variable, "http://s3.invalid")
    monkeypatch.setenv("AWS_S3_FORCE_PATH_STYLE", path_style)
    location = Location.parse("s3://bucket/one")

    assert (location.storage_options or {})["endpoint"] == f"http://{host}"
    with pytest.raises(StorageError) as failure:
        ObjectStore(location).create("a", b"")
    assert f" http://{host}/" in str(failure.value.__cause__)


@pytest.mark.usefixtures("_bare")
@pytest.mark.parametrize(
    "variable, value",
    [
        ("AWS_ENDPOINT_URL", "storage.example"),
        ("AWS_ENDPOINT_URL", "ftp://storage.example"),
        ("AWS_ENDPOINT_URL_S3", "http://a b"),
        ("AWS_ENDPOINT_URL", "http://[::1"),
        ("AWS_ENDPOINT_URL", "http://storage.example:99999"),
        ("AWS_ACCESS_KEY_ID", "a\nb"),
        ("AWS_REGION", "eu\x7fcentral"),
    ],
)
def test_a_setting_that_cannot_work_is_an_error_that_names_it(
    variable: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, value)

    with pytest.raises(StorageError, match=f"^{variable} ") as refusal:
        ObjectStore(Location.parse("s3://bucket/one"))
    assert refusal.value.path == "s3://bucket/one"


@pytest.mark.parametrize("name", ["plain", "a b", "ü", "a+b=c@d:e,&;'!()~$"])
def test_lance_and_the_object_store_agree_on_what_is_below_the_root(root_uri: str, name: str) -> None:
    allowed_in_paths_only = "%41#b?" if root_uri.startswith("/") else ""
    location = Location.parse(f"{root_uri}/{name}{allowed_in_paths_only}")
    options = location.storage_options

    lance.write_dataset(pa.table({"a": [1]}), location.child("nodes", "x"), storage_options=options)

    assert ObjectStore(location).list("nodes/x/_versions")
    assert lance.dataset(location.child("nodes", "x"), storage_options=options).count_rows() == 1
