import pytest

import omnigraph
from omnigraph.commit.store import Store
from omnigraph.errors import CorruptGraphError, FormatError, FormatTooNewError, FormatTooOldError
from omnigraph.manifest.migrations import OLDEST_ACCEPTED, guard, read_stamp
from omnigraph.manifest.publisher import Changes, Lineage
from omnigraph.manifest.rows import STAMP_KEY
from omnigraph.version import INTERNAL_SCHEMA_VERSION

modes = pytest.mark.parametrize("read_only", [True, False], ids=["read-only", "read-write"])


def _stamp(store: Store, text: str | None, branch: str | None = None) -> int:
    """Stamp by hand; return the version of `__manifest` then."""
    handle = store.manifest.table.open(branch)
    handle.update_schema_metadata({STAMP_KEY: text})
    return int(handle.version)


def test_a_new_graph_has_the_current_stamp_as_a_decimal_in_its_first_version(store: Store) -> None:
    handle = store.manifest.table.open()

    assert handle.version == 1
    assert (handle.schema.metadata or {})[b"omnigraph:internal_schema_version"] == b"5"
    assert read_stamp(handle) == INTERNAL_SCHEMA_VERSION == 5


def test_no_stamp_means_the_first_format(store: Store) -> None:
    _stamp(store, None)

    assert not store.manifest.table.open().schema.metadata
    assert read_stamp(store.manifest.table.open()) == 1


def test_the_guard_lets_pass_what_lies_between_the_bounds() -> None:
    for stamp in range(OLDEST_ACCEPTED, INTERNAL_SCHEMA_VERSION + 1):
        guard(stamp)
    for stamp, refusal in ((OLDEST_ACCEPTED - 1, FormatTooOldError), (INTERNAL_SCHEMA_VERSION + 1, FormatTooNewError)):
        with pytest.raises(refusal):
            guard(stamp)


@pytest.mark.once_on_s3
@modes
@pytest.mark.parametrize(
    "stamp, refusal, remedy, supported",
    [
        (INTERNAL_SCHEMA_VERSION + 1, FormatTooNewError, "upgrade", INTERNAL_SCHEMA_VERSION),
        (OLDEST_ACCEPTED - 1, FormatTooOldError, "older release", OLDEST_ACCEPTED),
    ],
)
def test_a_stamp_beyond_a_bound_is_refused_in_every_mode(
    store: Store, stamp: int, refusal: type[FormatError], remedy: str, supported: int, *, read_only: bool
) -> None:
    version = _stamp(store, str(stamp))

    with pytest.raises(refusal) as failure:
        omnigraph.open(store.location.uri, read_only=read_only)

    assert remedy in (failure.value.hint or "")
    assert (failure.value.found, failure.value.supported) == (stamp, supported)
    assert store.manifest.table.open().version == version


def test_the_two_refusals_read_differently() -> None:
    texts = set()
    for stamp in (OLDEST_ACCEPTED - 1, INTERNAL_SCHEMA_VERSION + 1):
        with pytest.raises(FormatError) as failure:
            guard(stamp)
        texts.add(str(failure.value).replace(str(stamp), ""))

    assert len(texts) == 2


def test_a_handle_that_was_open_before_notices_the_new_stamp(store: Store) -> None:
    graph = omnigraph.open(store.location.uri)
    version = _stamp(store, str(INTERNAL_SCHEMA_VERSION + 1))

    with pytest.raises(FormatTooNewError):
        graph.snapshot()
    with pytest.raises(FormatTooNewError):
        store.manifest.publish(None, Changes(), {}, Lineage.new())
    assert store.manifest.table.open().version == version


def test_a_state_from_before_the_new_stamp_cannot_be_published_on(store: Store) -> None:
    state = store.manifest.load()
    version = _stamp(store, str(INTERNAL_SCHEMA_VERSION + 1))

    with pytest.raises(FormatTooNewError):
        store.manifest.publish(None, Changes(), {}, Lineage.new(), first=state)
    assert store.manifest.table.open().version == version


@modes
def test_a_branch_is_refused_by_its_own_stamp(store: Store, *, read_only: bool) -> None:
    store.manifest.table.open().create_branch("side", storage_options=store.location.storage_options)
    _stamp(store, str(INTERNAL_SCHEMA_VERSION + 1), "side")

    graph = omnigraph.open(store.location.uri, read_only=read_only)

    assert graph.snapshot().entries
    with pytest.raises(FormatTooNewError):
        graph.snapshot("side")


_GARBAGE = {text: text for text in ["four", "", "-1", " 4", "4.0"]} | {
    "squared": "\N{SUPERSCRIPT TWO}",
    "long": "9" * 5000,
}


@pytest.mark.once_on_s3
@modes
@pytest.mark.parametrize("text", _GARBAGE.values(), ids=_GARBAGE)
def test_a_stamp_that_is_no_number_is_damage(store: Store, text: str, *, read_only: bool) -> None:
    version = _stamp(store, text)

    with pytest.raises(CorruptGraphError) as failure:
        omnigraph.open(store.location.uri, read_only=read_only)

    assert failure.value.path == store.manifest.table.uri()
    assert len(str(failure.value)) < 500
    assert store.manifest.table.open().version == version


def test_damage_of_the_stamp_comes_with_a_remedy(store: Store) -> None:
    _stamp(store, "four")

    with pytest.raises(CorruptGraphError) as failure:
        omnigraph.open(store.location.uri)

    assert failure.value.hint
