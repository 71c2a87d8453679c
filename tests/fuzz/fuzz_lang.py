"""Coverage-guided fuzzing of both languages: `python tests/fuzz/fuzz_lang.py -max_total_time=60`.

Every text must give a result or a typed error, and formatting must keep its tree; a crash or a text that takes
longer than ten seconds is written to a file `crash-*` or `timeout-*`, which runs again when it is named instead of
the time. Other options are those of libFuzzer.
"""

from __future__ import annotations

import importlib
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
SCHEMA, QUERIES = b"p", b"g"  # one even, one odd
_SEEDS = (
    SCHEMA + b"interface I { a: [I32]? @index }\nnode N @note(x, y=1.5) implements I { k: String @key @unique(k, a) }",
    SCHEMA
    + b'node N { e: enum(a-b, c)? t: String @check(t, "^x") @range(a, -1..) v: Vector(3) @embed("t", model="m") }',
    SCHEMA + b'edge E: N -> N @card(0..1) @description("d") { d: Date }  // c\n/* c */ edge F: N -> N',
    QUERIES + b'query q($x: String, $v: Vector(2)?) @description("d") { match { $p: Person { name: $x, }\n'
    b'$p $w:knows $f  // c\nnot { $f <knows>{1,3} $p $p.age > 1.5 } search($p.bio, "\\n") }\n'
    b"return { $p.name as n, count($f) now() } order { n desc, $p.age } limit 3 }",
    QUERIES + b'query q() { match { $p: Person } return { $p [1, true] date("2020-01-31") }'
    b'order { rrf(nearest($p.face, [1, 2]), bm25($p.bio, "x"), 60) } limit 1 }',
    QUERIES + b'query q($t: DateTime) { insert Person { name: "a" age: 1 }'
    b'update Person set { age: 2, } where name != "b" }  query r() { delete Knows where from = "a" }',
)


def main() -> None:
    try:
        atheris: Any = importlib.import_module("atheris")
    except ImportError:
        raise SystemExit("The fuzzer needs atheris; `make fuzz` installs it.") from None
    sys.path.insert(0, str(ROOT))
    with atheris.instrument_imports(include=["omnigraph", "lark"]):
        oracle = importlib.import_module("tests.lang.oracle")
    strategies = importlib.import_module("tests.lang.strategies")

    corpus = Path(tempfile.gettempdir()) / "omnigraph-fuzz"  # what one run has found, the next starts from
    corpus.mkdir(exist_ok=True)
    for number, seed in enumerate(_SEEDS):
        (corpus / f"seed-{number}").write_bytes(seed)
    words = corpus.with_suffix(".dict")
    words.write_text("".join(f'"{_escaped(word)}"\n' for word in (*strategies.KEYWORDS, *strategies.PUNCTUATION)))
    inputs = [] if any(not argument.startswith("-") for argument in sys.argv[1:]) else [str(corpus)]
    atheris.Setup([sys.argv[0], "-timeout=10", f"-dict={words}", *sys.argv[1:], *inputs], oracle.check_bytes)
    atheris.Fuzz()


def _escaped(word: str) -> str:
    """Spell a word as a libFuzzer dictionary wants it."""
    return "".join(f"\\x{byte:02x}" for byte in word.encode())


if __name__ == "__main__":
    main()
