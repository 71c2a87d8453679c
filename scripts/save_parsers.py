"""Write the parsers of the two languages that the package ships. Run it after changing a grammar."""

from __future__ import annotations

from pathlib import Path

from omnigraph.lang import query_parser, schema_parser

FOLDER = Path(__file__).parents[1] / "src" / "omnigraph" / "lang" / "grammar"

if __name__ == "__main__":
    for grammar in (query_parser.GRAMMAR, schema_parser.GRAMMAR):
        (FOLDER / grammar.saved_file).write_bytes(grammar.save())
