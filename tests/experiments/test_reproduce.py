"""Cells are kept one by one, and tables say what was kept."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from h3gnn.baselines import Progress
from h3gnn.errors import InputError
from h3gnn.experiments import workers
from h3gnn.experiments.scoring import Splits
from h3gnn.experiments.stored import check_cells
from h3gnn.experiments.tables import cells as cells_module
from h3gnn.experiments.tables import running
from h3gnn.experiments.tables.cells import Cell, Scope, lines_of
from h3gnn.experiments.tables.document import document
from h3gnn.experiments.tables.markdown import made_at, markdown_of
from h3gnn.experiments.tables.measures import look_epochs
from h3gnn.experiments.tables.reproduce import Outcome, find_tables, plan, reproduce
from h3gnn.experiments.tables.running import both_scores, judge_of
from h3gnn.experiments.tables.specifications import TABLES
from h3gnn.experiments.workers import Finished
from h3gnn.graphs.graph import Graph
from h3gnn.storage.files import ResultStore, read_json, write_json
from h3gnn.storage.origin import code, origin

ROOT = Path(__file__).parent.parent.parent
QUICK = Scope(quick=True)


@pytest.fixture
def small_benchmarks(monkeypatch: pytest.MonkeyPatch, small_mixed: Graph) -> Iterator[Graph]:
    """Every benchmark is the small built-in graph, without a preset."""
    monkeypatch.setattr(cells_module, "tuned_presets", dict)
    monkeypatch.setattr(running, "load", lambda name: small_mixed)
    running.graph_of.cache_clear()
    yield small_mixed
    running.graph_of.cache_clear()


TWO_CELLS = replace(TABLES["ablation"], graphs=("texas",), entries=TABLES["ablation"].entries[:2])
"""A table of two lines on one graph."""


def run(out: Path) -> Outcome:
    return reproduce([TWO_CELLS], QUICK, out)


def test_a_second_call_runs_only_what_is_missing_and_the_table_is_what_is_kept(
    small_benchmarks: Graph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempt, begun = workers.attempt, list[Cell]()

    def stop_after_one(cell: Cell, work: workers.Work, watch: Progress) -> Finished:
        if begun:
            raise KeyboardInterrupt
        begun.append(cell)
        return attempt(cell, work, watch)

    monkeypatch.setattr(workers, "attempt", stop_after_one)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path)
    assert [len(some) for some in ResultStore(tmp_path / "cells", check_cells).groups.values()] == [1]
    monkeypatch.setattr(workers, "attempt", attempt)
    second = run(tmp_path)
    assert (second.kept, second.run, second.failed) == (1, 1, [])
    third = run(tmp_path)
    assert (third.kept, third.run) == (2, 0)
    check_page(tmp_path, small_benchmarks)


def check_page(folder: Path, graph: Graph) -> None:
    """Compare every figure of the page with the stored values."""
    page, rows = document(folder), read_json(folder / "ablation.json")["rows"]
    assert [(row["method"], row["protocol"]) for row in rows] == [
        ("H3GNN (Full)", "validation"),
        ("H3GNN (Full)", "published"),
        ("w/o DynMsk", "validation"),
        ("w/o DynMsk", "published"),
    ]
    for row in rows:
        values = 100 * np.array(row["probe"]["per_split"])
        figure = f"{values.mean():.2f} ± {values.std():.2f}"
        assert f"| {row['method']} | ours, `{row['protocol']}` | – | {figure} | – |" in page
        assert np.shape(row["probe"]["per_split"]) == (1, QUICK.splits)
        assert [len(one) for one in row["chosen"]["epoch"]] == [QUICK.splits]
        assert row["sha256"] == graph.provenance.sha256
        assert row["origin"] == origin()
    made = f"Rows made at commits {origin()['commit']} (4 rows); since then: training unchanged, "
    assert f"{made}evaluation unchanged, baselines unchanged, presets unchanged." in page
    assert "| w/o DynMsk | paper | 83.06 ± 2.20 | 90.16 ± 3.51 | 89.71 ± 3.21 |" in page
    assert (folder / "ablation.md").read_text().strip() in page


def keys_of(name: str) -> set[str]:
    return set(plan(lines_of(TABLES[name], QUICK), QUICK))


def test_runs_that_tables_share_are_planned_once(small_benchmarks: Graph) -> None:
    first = keys_of("classification")
    for name in ("radar", "tsne"):
        assert keys_of(name) < first
    recent = plan(lines_of(TABLES["recent"], QUICK), QUICK)
    assert {cell.kind for key, cell in recent.items() if key not in first} == {"method"}  # its own systems
    assert len(recent.keys() & first) == 8  # ours on four graphs
    assert len(keys_of("tsne")) == 4
    assert not keys_of("filtered") & first
    assert not keys_of("clustering") & first  # k-means has presets of its own


def test_a_preset_has_all_seeds_and_a_variant_of_it_few() -> None:
    full = Scope()
    lines = {(line.method, line.graph): line for line in lines_of(TABLES["classification"], full)}
    own = "H3GNN Diffi" if full.settings_of("cora")["mask"] == "difficulty" else "H3GNN Prob"
    assert len(lines[own, "cora"].cells) == 10
    assert len(lines["untrained encoder", "cora"].cells) == 3
    for name in ("ablation", "mask-ratio"):
        models = {cell.params["n_models"] for line in lines_of(TABLES[name], full) for cell in line.cells}
        assert models == {4}


@pytest.mark.parametrize("name", [name for name in TABLES if name != "efficiency"])
def test_the_stored_cells_are_found_again(name: str) -> None:
    """What was run for hours lies under the keys that the specifications give; seconds are of one machine."""
    store = ResultStore(ROOT / "results" / "cells", check_cells)
    sha256 = {graph: next(iter(records.values()))["sha256"] for graph, records in store.groups.items()}
    missing = {
        f"{line.method} on {line.graph}"
        for line in lines_of(TABLES[name], Scope())
        if any(store.get(cell.key(sha256[cell.graph])) is None for cell in line.cells)
    }
    assert missing == set(read_json(ROOT / "results" / f"{name}.json")["missing"])


def test_a_changed_cell_has_another_key(monkeypatch: pytest.MonkeyPatch) -> None:
    cell = Cell("fit", "texas", {"epochs": 3}, (0,), 2)
    others = [
        replace(cell, params={"epochs": 4}),
        replace(cell, seeds=(1,)),
        replace(cell, splits=None),
        replace(cell, graph="cornell"),
        replace(cell, wants=("map",)),
    ]
    keys = {one.key("a") for one in (cell, *others)} | {cell.key("b")}
    monkeypatch.setattr(cells_module, "FORMAT", cells_module.FORMAT + 1)
    assert len(keys | {cell.key("a")}) == len(others) + 3


def test_a_stored_result_without_a_preset_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cells_module, "tuned_presets", dict)
    with pytest.raises(InputError, match="no shipped preset texas"):
        Scope().settings_of("texas")


def test_the_page_is_what_the_results_give() -> None:
    results = ROOT / "results"
    page = (ROOT / "docs" / "reproduction.md").read_text()
    words = "is not what the results and today's code give: `h3gnn reproduce --document` writes it"
    assert page == document(results), f"docs/reproduction.md {words}"
    for name in (name for name in TABLES if (results / f"{name}.json").is_file()):
        stored = read_json(results / f"{name}.json")
        assert not stored["quick"]
        assert not stored["missing"] or "Not run yet" in markdown_of(stored)
        assert markdown_of(stored).strip() in page
        assert (results / f"{name}.md").read_text() == markdown_of(stored), f"results/{name}.md {words}"


def test_a_table_says_where_its_rows_were_made_and_what_has_changed() -> None:
    here = {"commit": "a1", "code": code()}
    there = {"commit": "b2+changes", "code": {**code(), "training": "0", "presets": "0"}}
    rows = [{"origin": there}, {"origin": here}, {"origin": None}, {}, {"origin": here}]
    assert made_at(rows) == (
        "Rows made at commits b2+changes (1 row), a1 (2 rows), not recorded (2 rows); since then: training "
        "changed (for 1 of 3 rows), evaluation unchanged, baselines unchanged, presets changed (for 1 of 3 "
        "rows)."
    )
    assert "training changed, evaluation unchanged" in made_at([{"origin": there}])
    assert made_at([{}]) == "The commit at which these rows were made is not recorded."


def test_cells_of_before_there_was_an_origin_are_read(small_benchmarks: Graph, tmp_path: Path) -> None:
    run(tmp_path)
    path = tmp_path / "cells" / "texas.json"
    cells = {key: {n: v for n, v in one.items() if n != "origin"} for key, one in read_json(path).items()}
    write_json(path, cells)
    assert run(tmp_path).run == 0
    assert "were made is not recorded." in document(tmp_path)
    write_json(path, {key: {**one, "origin": "main"} for key, one in cells.items()})
    with pytest.raises(InputError, match=r"origin must be values by name"):
        run(tmp_path)


@pytest.mark.parametrize(
    ("epochs", "expected"), [(0, [0]), (3, [1, 2, 3]), (100, [1, 4, 9, 16, 25, 36, 49, 64, 81, 100])]
)
def test_looks_are_close_together_at_the_start(epochs: int, expected: list[int]) -> None:
    assert look_epochs(epochs) == expected


def looked(graph: Graph, seed: int = 0, *, groups: int = 1) -> dict[str, Any]:
    """Show three random embeddings of two models to a judge, in one group or in two."""
    judge, width = judge_of(graph, 2, 0), 8
    draw = torch.Generator().manual_seed(seed)
    shown = {epoch: torch.randn(graph.num_nodes, 2 * width, generator=draw) for epoch in (1, 2, 3)}
    for group in range(groups):
        for epoch, embedding in shown.items():
            columns = slice(None) if groups == 1 else slice(group * width, (group + 1) * width)
            models = range(2) if groups == 1 else range(group, group + 1)
            judge.take(epoch, models, embedding[:, columns])
    return both_scores(judge)


def test_models_trained_in_groups_are_joined(small_mixed: Graph) -> None:
    assert looked(small_mixed, groups=2) == looked(small_mixed)


def test_only_published_chooses_on_test_nodes(small_mixed: Graph) -> None:
    labels, train, val, test = Splits.of(small_mixed)
    once_test = test.any(dim=1) & ~(train | val).any(dim=1)
    assert once_test.any()
    other = replace(
        small_mixed, labels=torch.where(once_test, (labels + 1) % small_mixed.num_classes, labels)
    )
    one, two = looked(small_mixed), looked(other)
    for name in ("chosen", "validation"):
        assert one["validation"][name] == two["validation"][name]
    assert one["published"] != two["published"]
    assert all(epoch["epoch"] == 3 for epoch in one["validation"]["chosen"])
    pairs = zip(one["published"]["accuracy"], one["validation"]["accuracy"], strict=True)
    assert all(chosen >= honest for chosen, honest in pairs)


class Deadly(Cell):
    """A cell that ends the process that reads it."""

    def __reduce__(self) -> Any:
        return os._exit, (3,)


def test_what_ends_a_process_does_not_end_the_others() -> None:
    cells = [Deadly("statistics", "texas"), Cell("statistics", "nowhere")]
    work = partial(running._run_on, "cpu")
    finished = list(workers.in_processes(cells, work, jobs=1, threads=1))
    assert [one.fault for one in finished] == ["Lost", "InputError"]
    assert finished[0].failure == "its process ended with code 3"


def test_an_unknown_experiment_is_named() -> None:
    with pytest.raises(InputError, match="no experiment 'tabel'"):
        find_tables("tabel")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"experiment": "ablation"}, "experiment must be one of 'classification'"),
        ({"rows": [{"params": {}}]}, "holds rows that no run of ours has left"),
        ({"rows": [{"probe": {"test_mean": None}}]}, "holds rows that no run of ours has left"),
    ],
)
def test_a_table_that_was_changed_is_one_sentence(tmp_path: Path, change: dict[str, Any], words: str) -> None:
    content = read_json(ROOT / "results" / "classification.json")
    rows = [row for row in content["rows"] if row["protocol"] == "validation"]
    new = change.pop("rows", [{}])[0]
    nested = {"probe": rows[0]["probe"] | new.get("probe", {})}
    changed = [row | new | (nested if "probe" in new else {}) for row in rows]
    write_json(tmp_path / "classification.json", content | {"rows": changed} | change)
    with pytest.raises(InputError, match=words) as refused:
        document(tmp_path)
    assert len(str(refused.value).splitlines()) == 1
