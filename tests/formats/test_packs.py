"""Small files packed into one split: the same records, in the same order, at the same places."""

import gzip
import io
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from omnigraph.errors import InputColumnsError, InputUnreadableError
from omnigraph.formats import packs, sources
from omnigraph.formats.files import Split
from omnigraph.formats.packs import part_of
from omnigraph.formats.sources import convert_split, discover, packed
from omnigraph.lang import Source, compile_schema
from omnigraph.write.pending import RECORD
from tests.support.inbox import Inbox

CATALOG = compile_schema(Source("node Person { name: String @key  age: I32? }\nedge Knows: Person -> Person"))


def _parquet(*names: str) -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.table({"name": pa.array(names, pa.string())}), sink)
    return sink.getvalue()


def _lines(*names: str) -> bytes:
    return b"".join(b'{"type":"Person","data":{"name":"%s"}}\n' % name.encode() for name in names)


FILES = {
    "a/1.jsonl": _lines("a", "b"),
    "a/2.jsonl": b"\xef\xbb\xbf" + _lines("c")[:-1],
    "a/3.jsonl": b"",
    "a/4.jsonl": b"\n" + _lines("d") + b"nothing\n\n",
    "a/5.jsonl.gz": gzip.compress(b"wrong\n" + _lines("e")),
    "a/6.ndjson": _lines("f"),
    "b/Person/1.csv": b"name,age\n",
    "b/Person/2.csv": b'name,age\n"g\n1",1\n\nh,x\n',
    "b/Person/3.csv": b"name,age\r\ni,x\r\nj,2\rk,x",
    "b/Person/4.csv": b"age,name\n3,l\nx,m",
    "b/Person/5.csv": b'age,name\n4,n\n5,"o\n6,p\n',
    "b/Person/6.csv.gz": gzip.compress(b"age,name\n7,q\nx,r\n"),
    "b/Person/7.csv": b"age,name\n8,s\n9\n",
    "c/Person/1.parquet": _parquet("t", "u"),
    "c/Person/2.parquet": _parquet(),
    "c/Person/3.parquet": _parquet("v"),
    "c/knows/4.csv": b"from,to\na,b\n",
    "d.jsonl": _lines("w") + b"wrong",
}


def _seen(splits: list[Split]) -> tuple[list[tuple[str, str, int]], list[tuple[str, str, int]]]:
    """Rows and problems, each with its file and the number of its record there."""
    rows, problems = [], []
    for split in splits:
        found = convert_split(split, CATALOG)
        for problem in found.problems:
            part, record = part_of(split, problem.record or 0)
            problems.append((problem.message, part.file, record))
        for table in found.tables.values():
            name = "name" if "name" in table.column_names else "src"
            for value, number in zip(table[name].to_pylist(), table[RECORD].to_pylist(), strict=True):
                part, record = part_of(split, number)
                rows.append((value, part.file, record))
    return rows, problems


@pytest.mark.once_on_s3
@pytest.mark.parametrize("size", [1, 100, 400, 2**24])
def test_packed_files_bring_the_same_records_in_the_same_order_from_the_same_places(
    inbox: Inbox, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, data in FILES.items():
        inbox.put(name, data)
    apart = discover(inbox.uri, CATALOG)
    monkeypatch.setattr(sources, "SPLIT", size)

    together = packed(apart)

    assert [part for split in together for part in split.parts or (split,)] == apart
    assert sum(split.size for split in together) == sum(split.size for split in apart)
    assert len(together) == {1: len(FILES), 2**24: 1}.get(size, len(together))
    rows, problems = _seen(together)
    assert (sorted(rows), sorted(problems)) == tuple(map(sorted, _seen(apart)))
    assert problems == sorted(problems, key=lambda problem: problem[1:])


def test_parts_of_a_large_file_stay_splits_of_their_own(inbox: Inbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "SPLIT", 100)
    for name, data in {"1": _lines("a"), "2": _lines(*"bcdefgh"), "3": _lines("i"), "4": _lines("j")}.items():
        inbox.put(f"{name}.jsonl", data)

    found = packed(discover(inbox.uri, CATALOG))

    assert [len(split.parts) for split in found] == [0, 0, 0, 0, 2]
    assert [row[0] for row in _seen(found)[0]] == list("abcdefghij")


def test_files_of_one_kind_are_converted_at_once(tmp_path: Path) -> None:
    for at in range(50):
        (tmp_path / f"{at:02}.jsonl").write_bytes(_lines(f"p{at}"))

    (split,) = packed(discover(tmp_path, CATALOG))

    assert [batch.lines for batch in sources.split_batches(split, CATALOG)] == [50]


def test_the_columns_of_a_packed_file_are_checked_and_the_error_names_it(tmp_path: Path) -> None:
    for name, header in {"1": "name", "2": "name,wrong", "3": "name"}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "Person.csv").write_text(header + "\n")

    (split,) = packed(discover(tmp_path, CATALOG))

    with pytest.raises(InputColumnsError, match="'wrong'") as caught:
        convert_split(split, CATALOG)
    assert caught.value.path == str(tmp_path / "2" / "Person.csv")


def test_a_compressed_file_with_more_lines_than_it_has_numbers_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packs, "_LINES", 10)
    monkeypatch.setattr(packs, "_LINES_PER_BYTE", 0)
    (tmp_path / "1.jsonl.gz").write_bytes(gzip.compress(b"\n" * 11))
    (tmp_path / "2.jsonl").write_bytes(_lines("a"))

    (split,) = packed(discover(tmp_path, CATALOG))

    with pytest.raises(InputUnreadableError, match="more than 10 lines") as caught:
        convert_split(split, CATALOG)
    assert (caught.value.path, caught.value.hint) == (str(tmp_path / "1.jsonl.gz"), "decompress it")
