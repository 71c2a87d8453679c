"""The parsers that the package ships: made from the grammars beside them, and used only if they are."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from omnigraph.lang import parsing, query_parser, schema_parser
from omnigraph.lang.parsing import Grammar
from omnigraph.lang.source import Source
from tests.support.cases import load_cases

CASES = Path(__file__).parent / "cases"
LANGUAGES = [(query_parser.GRAMMAR, "*.gq"), (schema_parser.GRAMMAR, "*.pg")]


def _unbuilt(_: Grammar) -> None:
    pytest.fail("the saved parser is not that of the grammar: run scripts/save_parsers.py")


@pytest.mark.parametrize("grammar, _", LANGUAGES)
def test_a_saved_parser_is_made_from_its_grammar(grammar: Grammar, _: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Grammar, "build", _unbuilt)
    assert replace(grammar).lark.parse("")


@pytest.mark.slow
@pytest.mark.parametrize("grammar, files", LANGUAGES)
def test_a_saved_parser_builds_the_tree_of_its_grammar(
    grammar: Grammar, files: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sources = [Source(case.source) for path in CASES.glob(files) for case in load_cases(path)]
    saved = [_parsed(grammar, source) for source in sources]
    # Another lark may read other tables: the parser is then built.
    monkeypatch.setattr(parsing, "lark_version", "1.99")
    built = replace(grammar)
    assert [_parsed(built, source) for source in sources] == saved
    assert len(saved) > 100


def _parsed(grammar: Grammar, source: Source) -> object:
    trees, problems = grammar.parse_all(source)
    return trees, [(problem.message, problem.span, problem.hint) for problem in problems]
