"""The indices of a table: what can be built, building it over some fragments, and naming what it replaces."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import lance

INDEX_KINDS = ("BTREE", "INVERTED", "IVF_FLAT")


@dataclass(frozen=True, slots=True)
class IndexSpec:
    """An index to build: BTREE, INVERTED or IVF_FLAT on one column."""

    column: str
    kind: str

    @property
    def name(self) -> str:
        return f"{self.column}_{self.kind.lower()}"


def build_index(dataset: lance.LanceDataset, index: IndexSpec, fragments: Sequence[int]) -> lance.Index:
    """Write an index over some fragments; it counts once a commit names it."""
    options: dict[str, Any] = {"num_partitions": 1, "metric": "L2"} if index.kind == "IVF_FLAT" else {}
    built = dataset.create_index_uncommitted(
        index.column, index.kind, name=index.name, fragment_ids=list(fragments), replace=True, **options
    )
    # A text index is only readable once its parts are merged, and lance does not say so at commit.
    return dataset.merge_existing_index_segments([built]) if index.kind == "INVERTED" else built


def segments(dataset: lance.LanceDataset, chosen: Callable[[str, str], bool]) -> list[lance.Index]:
    """The present segments of indices, chosen by the name of the index and their uuid.

    Who builds them anew names them as removed: lance dies on a fragment that is covered twice.
    """
    return [
        lance.Index(part.uuid, index.name, index.fields, part.dataset_version_at_last_update, part.fragment_ids, 0)
        for index in dataset.describe_indices()
        for part in index.segments
        if chosen(index.name, str(part.uuid))
    ]
