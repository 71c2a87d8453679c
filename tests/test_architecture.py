"""Rules about the source itself, found by reading its syntax trees."""

import ast
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "omnigraph"

# What moves a head or writes files, wherever in pylance it is found.
_LANCE_METHODS = {
    "add_bases",
    "add_columns",
    "alter_columns",
    "cleanup_old_versions",
    "commit_batch",
    "compact_files",
    "create_index",
    "create_index_uncommitted",
    "create_scalar_index",
    "deep_clone",
    "delete_config_keys",
    "delete_rows",
    "drop_index",
    "execute_uncommitted",
    "merge_columns",
    "merge_existing_index_segments",
    "merge_insert",
    "optimize_indices",
    "replace_field_metadata",
    "restore",
    "shallow_clone",
    "truncate_table",
    "update_columns",
    "update_config",
    "update_field_metadata",
    "update_metadata",
    "update_schema_metadata",
}
_LANCE_NAMES = {"write_dataset", "write_fragments", "Transaction", "LanceOperation", "LanceDataset", "Compaction"}
# Methods that other objects have too: forbidden on what looks like a dataset.
_AMBIGUOUS_METHODS = {
    "commit",
    "create_branch",
    "delete",
    "drop_columns",
    "insert",
    "merge",
    "replace_schema_metadata",
    "update",
}
_DATASET_NAMES = {"dataset", "ds", "handle", "LanceDataset", "checkout_version", "branches", "tags"}
_OPENERS = {"open", "head"}  # on one of our tables they return a dataset
_TABLES = {"table", "_table", "tables"}


class Finding(NamedTuple):
    module: str
    line: int
    what: str


Rule = Callable[[str, ast.Module], Iterator[Finding]]


@cache
def modules() -> dict[str, ast.Module]:
    """Every module of the package, by its path below `src/omnigraph`."""
    files = sorted(SOURCE.rglob("*.py"))
    assert len(files) > 40, "the source was not found"
    return {str(file.relative_to(SOURCE)): ast.parse(file.read_text(), str(file)) for file in files}


@cache  # every rule walks every module
def nodes(tree: ast.Module) -> tuple[ast.AST, ...]:
    return tuple(ast.walk(tree))


def findings(rule: Rule, trees: dict[str, ast.Module] | None = None) -> list[Finding]:
    found = [finding for name, tree in (trees or modules()).items() for finding in rule(name, tree)]
    return sorted(found)


def _calls(tree: ast.Module) -> Iterator[tuple[ast.Call, str, str]]:
    """Each call with the last part of what is called, and the name that it is called on (`a.b().c()` is c on b)."""
    for node in nodes(tree):
        if isinstance(node, ast.Call):
            if isinstance(node.func, ast.Attribute):
                yield node, node.func.attr, _name(node.func.value)
            elif isinstance(node.func, ast.Name):
                yield node, node.func.id, ""


def _name(node: ast.expr) -> str:
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return node.attr
    return _name(node.func) if isinstance(node, ast.Call) else ""


# The rules


def heads_move_in_commit_only(name: str, tree: ast.Module) -> Iterator[Finding]:
    """`commit_staged` and `create` of the tables are for `commit/` and for making a graph; `storage/` defines them."""
    if name.startswith(("commit/", "storage/")):
        return
    for node in nodes(tree):
        if isinstance(node, ast.Attribute) and node.attr == "commit_staged":
            yield Finding(name, node.lineno, "commit_staged")
        if (
            isinstance(node, ast.Attribute)
            and node.attr == "create"
            and _name(node.value) in ("tables", "TableStorage")
        ):
            if name == "schema/apply.py" and node.lineno in _lines_of(tree, "_create_tables"):
                continue
            yield Finding(name, node.lineno, "TableStorage.create")


def _lines_of(tree: ast.Module, function: str) -> range:
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name == function:
            return range(node.lineno, (node.end_lineno or node.lineno) + 1)
    return range(0)


def lance_writes_in_storage_only(name: str, tree: ast.Module) -> Iterator[Finding]:
    if name.startswith("storage/"):
        return
    from_lance = set()
    for node in nodes(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "lance":
            from_lance |= {alias.asname or alias.name for alias in node.names}
            for alias in node.names:
                if alias.name in _LANCE_NAMES or alias.name == "*":
                    yield Finding(name, node.lineno, alias.name)
        if isinstance(node, ast.Attribute) and node.attr in _LANCE_NAMES - {"LanceDataset"} and _is_lance(node.value):
            yield Finding(name, node.lineno, node.attr)
        if isinstance(node, ast.Attribute) and node.attr in _LANCE_METHODS:
            yield Finding(name, node.lineno, node.attr)
    for call, method, on in _calls(tree):
        if method in _AMBIGUOUS_METHODS and (on in _DATASET_NAMES | from_lance or _on_opened_table(call)):
            yield Finding(name, call.lineno, f"{on}.{method}")


def _on_opened_table(call: ast.Call) -> bool:
    """Tell `store.tables.open(...).delete(...)` from `omnigraph.open(...).commit(...)`."""
    on = call.func.value if isinstance(call.func, ast.Attribute) else None
    opener = on.func if isinstance(on, ast.Call) else None
    return isinstance(opener, ast.Attribute) and opener.attr in _OPENERS and _name(opener.value) in _TABLES


def _is_lance(node: ast.expr) -> bool:
    if isinstance(node, ast.Attribute):
        return _is_lance(node.value)
    return isinstance(node, ast.Name) and node.id == "lance"


def no_error_is_swallowed(name: str, tree: ast.Module) -> Iterator[Finding]:
    """Catching everything is for those who raise it again or tell it to the log; nobody may carry on in silence."""
    for node in nodes(tree):
        if isinstance(node, ast.ExceptHandler) and _catches_everything(node.type) and not _is_told(node):
            yield Finding(name, node.lineno, "except everything")
        if isinstance(node, ast.Call) and _name(node.func) == "suppress" and any(map(_catches_everything, node.args)):
            yield Finding(name, node.lineno, "suppress everything")


def _is_told(node: ast.ExceptHandler) -> bool:
    """Return whether a handler raises, or passes what it caught to a log."""
    return any(isinstance(inner, ast.Raise) or _logs(inner, node.name) for inner in ast.walk(node))


def _logs(node: ast.AST, caught: str | None) -> bool:
    if not isinstance(node, ast.Call):
        return False
    if ast.unparse(node.func) == "_LOG.exception":
        return True
    if ast.unparse(node.func) != "logs.log":
        return False
    return any(isinstance(one, ast.Name) and one.id == caught for one in node.args)


def _catches_everything(caught: ast.expr | None) -> bool:
    if isinstance(caught, ast.Tuple):
        return any(map(_catches_everything, caught.elts))
    return caught is None or (isinstance(caught, ast.Name) and caught.id in ("Exception", "BaseException"))


def spark_in_its_package_only(name: str, tree: ast.Module) -> Iterator[Finding]:
    if name.startswith("spark/"):
        return
    for line, imported in _imports(tree):
        if imported.partition(".")[0] in ("pyspark", "py4j"):
            yield Finding(name, line, imported)


def _imports(tree: ast.Module) -> Iterator[tuple[int, str]]:
    for node in nodes(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.lineno, node.module or ""
        elif isinstance(node, ast.Call) and _name(node.func) in ("import_module", "__import__"):
            yield from ((node.lineno, str(given.value)) for given in node.args if isinstance(given, ast.Constant))


def every_module_says_what_it_is_for(name: str, tree: ast.Module) -> Iterator[Finding]:
    if not (ast.get_docstring(tree) or "").strip():
        yield Finding(name, 1, "no docstring")


def strings_of_lance_are_compared_in_one_place(name: str, tree: ast.Module) -> Iterator[Finding]:
    """What pylance raises is told apart by its text, and only there."""
    if name == "storage/lance_errors.py":
        return
    for node in nodes(tree):
        if not isinstance(node, ast.ExceptHandler) or node.name is None:
            continue
        for inner in ast.walk(node):
            if isinstance(inner, ast.Compare) and any(_is_text_of(node.name, part) for part in _operands(inner)):
                yield Finding(name, inner.lineno, f"str({node.name}) compared")


def _operands(node: ast.Compare) -> list[ast.expr]:
    return [node.left, *node.comparators]


def _is_text_of(error: str, node: ast.expr) -> bool:
    return (
        isinstance(node, ast.Call)
        and _name(node.func) in ("str", "repr")
        and bool(node.args)
        and isinstance(node.args[0], ast.Name)
        and node.args[0].id == error
    )


RULES: list[Rule] = [
    heads_move_in_commit_only,
    lance_writes_in_storage_only,
    no_error_is_swallowed,
    spark_in_its_package_only,
    every_module_says_what_it_is_for,
    strings_of_lance_are_compared_in_one_place,
]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_the_source_keeps_the_rule(rule: Rule) -> None:
    assert findings(rule) == []


# The rules themselves


BAD = """
import lance, pyspark.sql
from lance import LanceDataset, LanceOperation as Op
from lance.fragment import write_fragments as staged
from pyspark import SparkContext


def sneak(store, dataset, table):
    store.tables.commit_staged(table)
    move = store.tables.commit_staged
    store.tables.create("nodes/a", None)
    lance.write_dataset(table, "x")
    lance.fragment.write_fragments(table, "x")
    lance.LanceDataset.commit(dataset, lance.Transaction(1, lance.LanceOperation.Append([])))
    dataset.delete("true")
    lance.dataset("x").update({"a": "1"})
    store.tables.head("x").insert(table)
    dataset.merge_insert("id").execute(table)
    dataset.optimize.compact_files()
    dataset.restore()
    dataset.branches.delete("side")
    dataset.cleanup_old_versions()
    dataset.create_scalar_index("a", "BTREE")
    LanceDataset.commit(dataset, None)


def swallow():
    try:
        sneak(1, 2, 3)
    except Exception:
        pass
    try:
        sneak(1, 2, 3)
    except (KeyError, BaseException) as error:
        if "already exists" in str(error):
            return
    try:
        sneak(1, 2, 3)
    except Exception as error:
        logs.log(LOG, ERROR, "something failed")
    with contextlib.suppress(Exception):
        sneak(1, 2, 3)
    importlib.import_module("pyspark")
"""
GOOD = '''"""Only what is allowed."""
import contextlib
import lance


def fine(store, ids, dataset):
    ids.update({1})
    store.objects.delete("a")
    store.sidecars.delete("a")
    store.manifest.create([], [])
    rows = lance.dataset("x").to_table().replace_schema_metadata({})
    omnigraph.open("x").commit("id")
    try:
        ids.insert(0, "commit_staged")
    except (OSError, ValueError):
        pass
    except Exception:
        clean()
        raise
    try:
        ids.insert(0, 1)
    except Exception as error:
        logs.log(LOG, ERROR, "it failed", error)
    with contextlib.suppress(KeyError):
        ids.remove(1)
'''


def _in(text: str, rule: Rule, name: str = "query/bad.py") -> list[str]:
    return [found.what for found in findings(rule, {name: ast.parse(text)})]


def test_the_rules_find_what_they_forbid() -> None:
    assert _in(BAD, heads_move_in_commit_only) == ["commit_staged", "commit_staged", "TableStorage.create"]
    assert sorted(_in(BAD, lance_writes_in_storage_only)) == sorted(
        [
            "LanceDataset",
            "LanceDataset.commit",
            "LanceDataset.commit",
            "LanceOperation",
            "LanceOperation",
            "Transaction",
            "cleanup_old_versions",
            "compact_files",
            "create_scalar_index",
            "branches.delete",
            "dataset.delete",
            "dataset.update",
            "head.insert",
            "merge_insert",
            "restore",
            "write_dataset",
            "write_fragments",
            "write_fragments",
        ]
    )
    assert _in(BAD, no_error_is_swallowed) == ["except everything"] * 3 + ["suppress everything"]
    assert _in(BAD, spark_in_its_package_only) == ["pyspark.sql", "pyspark", "pyspark"]
    assert _in(BAD, every_module_says_what_it_is_for) == ["no docstring"]
    assert _in(BAD, strings_of_lance_are_compared_in_one_place) == ["str(error) compared"]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_the_rules_let_the_rest_pass(rule: Rule) -> None:
    assert _in(GOOD, rule) == []


@pytest.mark.parametrize(
    "rule, home",
    [
        (heads_move_in_commit_only, "commit/publish.py"),
        (lance_writes_in_storage_only, "storage/stage.py"),
        (spark_in_its_package_only, "spark/session.py"),
        (strings_of_lance_are_compared_in_one_place, "storage/lance_errors.py"),
    ],
)
def test_a_rule_does_not_bind_the_place_that_it_names(rule: Rule, home: str) -> None:
    assert _in(BAD, rule) != []
    assert _in(BAD, rule, home) == []


def test_making_a_graph_is_the_only_other_place_that_creates_tables() -> None:
    create = 'store.tables.create("a", None)'
    text = f"def _create_tables(store):\n    {create}\n\n\ndef other(store):\n    {create}\n"

    assert [found.line for found in findings(heads_move_in_commit_only, {"schema/apply.py": ast.parse(text)})] == [6]


def test_the_source_has_what_the_rules_are_about() -> None:
    """A rule about a name that is gone would hold for ever."""
    source = {name: ast.dump(tree) for name, tree in modules().items()}

    assert any("commit_staged" in text for name, text in source.items() if name.startswith("commit/"))
    assert "_create_tables" in source["schema/apply.py"]
    assert "'create'" in source["schema/apply.py"]
    for written in ("merge_insert", "write_dataset", "write_fragments", "LanceOperation", "compact_files"):
        assert any(written in text for name, text in source.items() if name.startswith("storage/")), written


# The size and the names of the whole


MOST_FILES = 309  # lower it when a module joins its only importer; raise it for a new capability only


def test_the_source_has_no_more_files_than_it_had() -> None:
    assert len(modules()) <= MOST_FILES


def test_of_a_hundred_class_names_at_most_one_is_in_two_modules() -> None:
    homes: dict[str, set[str]] = {}
    for name, tree in modules().items():
        for node in nodes(tree):
            if isinstance(node, ast.ClassDef):
                homes.setdefault(node.name, set()).add(name)

    repeated = {name: sorted(where) for name, where in homes.items() if len(where) > 1}

    assert len(repeated) <= len(homes) // 100, repeated


def test_of_a_hundred_lines_that_are_not_blank_three_or_more_are_comments() -> None:
    lines = [line.strip() for file in SOURCE.rglob("*.py") for line in file.read_text().splitlines()]
    comments = sum(line.startswith("#") for line in lines)

    assert comments >= 0.03 * sum(map(bool, lines)), comments
