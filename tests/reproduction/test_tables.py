"""Cells are stored one by one, and tables are written from them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, get_type_hints

import numpy as np
import pytest
import torch

from h3gnn.baselines import Progress
from h3gnn.evaluation.clustering import MEASURES
from h3gnn.evaluation.evaluator import PROBES
from h3gnn.evaluation.results import RepeatedScore, Result
from h3gnn.experiments import workers
from h3gnn.experiments.workers import Finished
from h3gnn.graphs.graph import Graph
from reproduction import cells as cells_module
from reproduction import running
from reproduction.__main__ import reproduce as command
from reproduction.cells import Cell, Line, Scope, lines_of
from reproduction.files import read_json, write_json
from reproduction.markdown import Row, document, made_at, markdown_of
from reproduction.origin import code, made_with, origin
from reproduction.results import Outcome, ResultStore, find_tables, percent_rows, plan, reproduce
from reproduction.search import CHOICES
from reproduction.specifications import printed, tables
from reproduction.theory import look_epochs
from tests.rejects import rejects

ROOT = Path(__file__).parent.parent.parent
QUICK = Scope(quick=True)


@pytest.fixture
def small_benchmarks(monkeypatch: pytest.MonkeyPatch, small_mixed: Graph) -> Iterator[Graph]:
    """Every benchmark is the small built-in graph, and the paper's probe makes few steps."""
    monkeypatch.setattr(running, "load", lambda name: small_mixed)
    monkeypatch.setitem(PROBES, "gradient", partial(PROBES["gradient"], steps=10, every=5))
    running.graph_of.cache_clear()
    yield small_mixed
    running.graph_of.cache_clear()


WHOLE, WITHOUT = tables()["ablation"].entries[:2]
TWO_CELLS = replace(
    tables()["ablation"],
    graphs=("texas",),
    entries=(replace(WHOLE, allowance="paper", parts="printed"), WITHOUT),
)
"""A table of two lines on one graph; of the first, every rule of choosing and every part is told."""


def run(out: Path) -> Outcome:
    return reproduce([TWO_CELLS], QUICK, out)


def test_a_second_call_runs_only_missing_cells(
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
    assert [len(some) for some in ResultStore(tmp_path / "cells").groups.values()] == [1]
    monkeypatch.setattr(workers, "attempt", attempt)
    second = run(tmp_path)
    assert (second.kept, second.run, second.failed) == (1, 1, [])
    third = run(tmp_path)
    assert (third.kept, third.run) == (2, 0)
    check_page(tmp_path, small_benchmarks)


def check_page(folder: Path, graph: Graph) -> None:
    """Compare every figure of the page with the stored values."""
    page, rows = document(folder), read_json(folder / "ablation.json")["rows"]
    paper, without = "the paper's method, Prob", "w/o DynMsk"
    assert [(row["method"], row["protocol"], row.get("part", "")) for row in rows] == [
        (paper, "nested", ""),
        (paper, "pooled", ""),
        (paper, "published", ""),
        (paper, "nested", "untrained"),
        (paper, "nested", "the paper's probe"),
        (without, "nested", ""),
    ]
    for row in rows:
        values = 100 * np.array(row["probe"]["per_split"])
        figure = f"{values.mean():.2f} ± {values.std():.2f}"
        line = f"| {row['method']} | here, `{row['protocol']}` | – | {figure} | – |"
        assert (line in page) or row.get("part")
        assert np.shape(values) == (1, QUICK.splits)
        assert all(np.shape(chosen) == (1, QUICK.splits) for chosen in row["chosen"].values())
        assert len(row["params"]["tried"]) == row["params"]["allowed"]["trials"] == 2
        assert row["sha256"] == graph.provenance.sha256
        assert row["origin"] == origin()
    assert [row["chosen"].get("trial") is None for row in rows] == [False, False, True, False, False, False]
    made = f"Rows made at commits {origin()['commit']} (6 rows); since then: training unchanged, "
    assert f"{made}evaluation unchanged, baselines unchanged, presets unchanged." in page
    assert "| w/o DynMsk | printed | 83.06 ± 2.20 | 90.16 ± 3.51 | 89.71 ± 3.21 |" in page
    assert f"| {paper} | 2 settings, each at 2 epochs | – | 2 (" in page
    assert (folder / "ablation.md").read_text().strip() in page


def made_row(method: str, graph: str, *values: float, protocol: str = "nested", **more: Any) -> Row:
    """Return a row as a table keeps it: one seed, one value for each split."""
    scores = RepeatedScore([list(values)])
    params = more.pop("params", {"tried": [{}], "allowed": {"trials": 1}})
    row = running.pack(
        Result(
            method=method,
            graph=graph,
            sha256="0" * 64,
            protocol=protocol,
            epoch_rule="last",
            params=params,
            seeds=[0],
            **made_with(),
            device="cpu",
            seconds=1.0,
            probe=scores,
            macro_f1=scores,
            roc_auc=None,
            validation=scores,
            chosen=[[{"trial": 0}] * len(values)],
        )
    )
    return {**row, **more}


def made_table(rows: list[Row], name: str = "classification") -> dict[str, Any]:
    """Return a stored result with some rows."""
    return {
        "experiment": name,
        "title": tables()[name].title,
        "quick": False,
        "seeds_at_most": None,
        "protocols": {},
        **made_with(),
        "missing": ["GREET on texas", "MUSE on texas", "GREET on cora", "MUSE on cora"],
        "rows": rows,
    }


def test_a_table_compares_the_protocols(tmp_path: Path) -> None:
    paper, ours, untuned = "the paper's method, Prob", "H3GNN, tuned", "H3GNN, untuned"
    given = {"tried": [{}] * 5, "allowed": {"trials": 8, "seconds": 20, "looks": []}, "searched_s": 20.4}
    searched = {"tried": [{}] * 9, "allowed": {"trials": 9, "looks": [5, 10]}}
    rows = [
        made_row(paper, "texas", 0.8, 0.82, params=searched),
        made_row(paper, "texas", 0.83, 0.83, protocol="pooled", params=searched),
        made_row(paper, "texas", 0.91, 0.91, protocol="published", params=searched),
        made_row(paper, "cornell", 0.7, params=searched),
        made_row(paper, "cornell", 0.75, protocol="published", params=searched),
        made_row(ours, "texas", 0.9, 0.86, params=given),
        made_row(ours, "texas", 0.7, 0.7, params=given, part="untrained"),
        made_row(untuned, "texas", 0.6),
        made_row(untuned, "texas", 0.6, protocol="pooled"),  # of one setting, nothing was chosen
        made_row("DGI", "texas", 0.5, protocol="validation", params={"epochs": 3}),
    ]
    write_json(tmp_path / "classification.json", made_table(rows))
    page, rest = document(tmp_path), " | – | – | – | – | – |"
    assert printed("classification")["H3GNN Prob"]["texas"] == (92.45, 3.78)
    for line in (
        "Not run yet: GREET, MUSE on texas, cora.",
        f"| {paper} | here, `nested` | 70.00 ± 0.00 | 81.00 ± 1.00{rest}",
        f"| {paper} | here, `pooled` | – | 83.00 ± 0.00{rest}",
        f"| {paper} | here, `published` | 75.00 ± 0.00 | 91.00 ± 0.00{rest}",
        f"| {ours} | all of it | – | 88.00 ± 2.00{rest}",
        f"| {ours} | untrained | – | 70.00 ± 0.00{rest}",
        f"| {paper} | Texas | 81.00 ± 1.00 | +2.00 | +10.00 | 92.45 ± 3.78 | yes |",
        f"| {paper} | Cornell | 70.00 ± 0.00 | – | +5.00 | 84.86 ± 2.48 | no, 9.86 below |",
        f"| {paper} | 9 settings, each at 2 epochs | 9 | 9{rest}",
        f"| {untuned} | here, `nested` | – | 60.00 ± 0.00{rest}",
        f"| {untuned} | its own settings | – | 1{rest}",
        f"| DGI | here, `validation` | – | 50.00 ± 0.00{rest}",
        f"| DGI | its own settings | – | 1{rest}",
        f"| {ours} | 8 settings, 20 s | – | 5 (20 s){rest}",
        "| its method here, chosen on test nodes | 75.00 | 91.00 | – | – | – | – | – |",
        "| its method here, `nested` | 70.00 | 81.00 | – | – | – | – | – |",
        "| ours, tuned, `nested` | – | 88.00 | – | – | – | – | – |",
    ):
        assert line in page, line
    assert f"| {ours} | here, `nested` | – | 70.00" not in page  # what is taken out is no row of its own
    assert f"| {untuned} | here, `pooled`" not in page


def test_the_radar_shows_nested_or_validation_results() -> None:
    rows = [
        made_row("H3GNN, tuned", "texas", 0.8, 0.9),
        made_row("H3GNN, tuned", "texas", 1.0, protocol="pooled"),
        made_row("H3GNN, tuned", "texas", 0.5, part="untrained"),
    ]
    line = Line("H3GNN, tuned", "texas", ())
    (found,) = percent_rows(line, [{"device": "cpu", "out": {"rows": rows}}])
    assert (found["percent"], found["protocol"]) == (85.0, "nested")
    others = [made_row("GREET", "texas", 0.7, protocol=one) for one in ("validation", "published")]
    (found,) = percent_rows(line, [{"device": "cpu", "out": {"rows": others}}])
    assert (found["percent"], found["protocol"]) == (70.0, "validation")


def test_clusterings_chosen_by_labels_have_their_own_table() -> None:
    values = {choice: [0.5 + 0.1 * place] * 2 for place, choice in enumerate(CHOICES)}
    choices = {
        choice: {"changes": {}, "values": dict.fromkeys(MEASURES, found)} for choice, found in values.items()
    }
    row = {
        "method": "H3GNN",
        "graph": "texas",
        "choices": choices,
        "tried": 8,
        "searched_s": 3.0,
        "params": {},
    }
    found = markdown_of({**made_table([row], "clustering"), "missing": []})
    first, by_labels, other = found.split("\n### ")
    texas = "{} | – | – | – |"
    assert texas.format("| H3GNN | here, defaults | 50.00 ± 0.00") in first
    assert texas.format("| H3GNN | here, without labels | 60.00 ± 0.00") in first
    assert "by validation labels" not in first
    assert texas.format("| H3GNN | by validation labels | 70.00 ± 0.00") in by_labels
    assert texas.format("| H3GNN | by all labels | 80.00 ± 0.00") in by_labels
    assert texas.format("| H3GNN | NMI | 60.00 ± 0.00") in other


def keys_of(name: str) -> set[str]:
    return set(plan(lines_of(tables()[name], QUICK), QUICK))


def test_shared_runs_are_planned_once(small_benchmarks: Graph) -> None:
    first = keys_of("classification")
    assert keys_of("radar") < first
    recent = plan(lines_of(tables()["recent"], QUICK), QUICK)
    others = {cell.params["method"] for key, cell in recent.items() if key not in first}
    assert others == {"pcnet", "aerognn", "g2"}  # its own systems
    assert len(recent.keys() & first) == 16  # ours and the paper's on four graphs
    for name in ("filtered", "clustering", "mask-ratio"):
        assert not keys_of(name) & first


def test_each_row_has_its_budget_and_protocols() -> None:
    lines = {(one.method, one.graph): one.cells[0] for one in lines_of(tables()["classification"], Scope())}
    tuned, untuned = lines["H3GNN, tuned", "texas"].params, lines["H3GNN, untuned", "texas"].params
    assert tuned["allowance"]["trials"] > 1
    assert (untuned["ranges"], untuned["allowance"]) == ({}, {})
    assert tuned["protocols"] == untuned["protocols"] == ["nested", "pooled", "published"]
    for name, protocols in (("GREET", ["validation"]), ("MUSE", ["validation", "published"])):
        other = lines[name, "texas"].params  # MUSE's authors choose on test nodes
        assert (other["protocols"], other["ranges"], other["allowance"]) == (protocols, {}, {})
    assert [len(lines["H3GNN, untuned", graph].seeds) for graph in ("texas", "cora")] == [3, 3]
    assert [len(lines["GREET", graph].seeds) for graph in ("texas", "cora")] == [1, 3]
    paper = lines["the paper's method, Prob", "pubmed"].params
    assert paper["ranges"]["channels"] == [128]
    assert paper["settings"]["epochs"] == max(paper["allowance"]["looks"]) == 50


def test_rows_that_are_compared_have_the_same_budget() -> None:
    for name in ("ablation", "mask-ratio"):
        cells = [line.cells[0].params for line in lines_of(tables()[name], Scope())]
        assert len({str(params["allowance"]) for params in cells}) == 1
        for params in cells:
            method = cells_module.method_of(params)
            assert params["changes"].items() <= dict(method.settings).items()
            assert not params["changes"].keys() & method.ranges.keys()  # a search leaves it as it is
    assert {params["changes"]["hard_fraction"] for params in cells} == {0.0, 0.2, 0.5, 0.8, 1.0}


@pytest.fixture(scope="module")
def store() -> ResultStore:
    return ResultStore(ROOT / "results" / "cells")


@pytest.mark.parametrize("name", [name for name in tables() if name != "efficiency"])
def test_stored_cells_have_the_keys_of_the_specifications(store: ResultStore, name: str) -> None:
    sha256 = {graph: next(iter(records.values()))["sha256"] for graph, records in store.groups.items()}
    missing = {
        f"{line.method} on {line.graph}"
        for line in lines_of(tables()[name], Scope())
        if any(store.get(cell.key(sha256.get(cell.graph, ""))) is None for cell in line.cells)
    }
    assert missing == set(read_json(ROOT / "results" / f"{name}.json")["missing"])


def test_a_changed_cell_has_another_key(monkeypatch: pytest.MonkeyPatch) -> None:
    cell = Cell("map", "texas", {"epochs": 3}, (0,), 2)
    others = [
        replace(cell, params={"epochs": 4}),
        replace(cell, seeds=(1,)),
        replace(cell, splits=None),
        replace(cell, graph="cornell"),
        replace(cell, kind="masks"),
    ]
    keys = {one.key("a") for one in (cell, *others)} | {cell.key("b")}
    monkeypatch.setattr(cells_module, "FORMAT", cells_module.FORMAT + 1)
    assert len(keys | {cell.key("a")}) == len(others) + 3


def test_a_new_setting_with_its_old_value_keeps_the_key() -> None:
    old, new = ({"settings": settings} for settings in ({"epochs": 3}, {"epochs": 3, "loss": "squared"}))
    assert Cell("method", "texas", old).key("a") == Cell("method", "texas", new).key("a")
    other = {"settings": {"epochs": 3, "loss": "cosine"}}
    assert Cell("method", "texas", old).key("a") != Cell("method", "texas", other).key("a")


def test_the_page_matches_the_results() -> None:
    results = ROOT / "results"
    page = (ROOT / "docs" / "reproduction.md").read_text()
    words = "is not what the results and today's code give: `make reproduce ARGS=--document` writes it"
    assert page == document(results), f"docs/reproduction.md {words}"
    for name in (name for name in tables() if (results / f"{name}.json").is_file()):
        stored = read_json(results / f"{name}.json")
        assert not stored["quick"]
        assert not stored["missing"] or "Not run yet" in markdown_of(stored)
        assert markdown_of(stored).strip() in page
        assert (results / f"{name}.md").read_text() == markdown_of(stored), f"results/{name}.md {words}"


def test_a_table_names_the_commits_of_its_rows_and_the_changed_code() -> None:
    here = {"commit": "a1", "code": code()}
    there = {"commit": "b2+changes", "code": {**code(), "training": "0", "presets": "0"}}
    rows: list[Row] = [{"origin": there}, {"origin": here}, {"origin": None}, {}, {"origin": here}]
    assert made_at(rows) == (
        "Rows made at commits b2+changes (1 row), a1 (2 rows), not recorded (2 rows); since then: training "
        "changed (for 1 of 3 rows), evaluation unchanged, baselines unchanged, presets changed (for 1 of 3 "
        "rows)."
    )
    assert "training changed, evaluation unchanged" in made_at([{"origin": there}])
    assert made_at([{}]) == "The commit at which these rows were made is not recorded."


def test_cells_without_an_origin_are_read(small_benchmarks: Graph, tmp_path: Path) -> None:
    table = replace(tables()["datasets"], graphs=("texas",))
    assert reproduce([table], QUICK, tmp_path).run == 1
    path = tmp_path / "cells" / "texas.json"
    cells = {key: {n: v for n, v in one.items() if n != "origin"} for key, one in read_json(path).items()}
    write_json(path, cells)
    assert reproduce([table], QUICK, tmp_path).run == 0
    assert "were made is not recorded." in document(tmp_path)


@pytest.mark.parametrize(
    ("epochs", "expected"), [(0, [0]), (3, [1, 2, 3]), (100, [1, 4, 9, 16, 25, 36, 49, 64, 81, 100])]
)
def test_evaluated_epochs_are_denser_at_the_start(epochs: int, expected: list[int]) -> None:
    assert look_epochs(epochs, 10) == expected


def test_untuned_methods_choose_on_validation_nodes(small_mixed: Graph) -> None:
    entry = next(one for one in tables()["classification"].entries if one.title == "MUSE")
    table = replace(tables()["classification"], graphs=("texas",), entries=(entry,))
    (line,) = lines_of(table, QUICK)
    out = running.run_searched(line.cells[0], small_mixed, torch.device("cpu"))
    assert [row["protocol"] for row in out["rows"]] == ["validation", "published"]
    assert (out["record"], out["chosen"]) == (None, {})
    assert all("tried" not in row["params"] for row in out["rows"])


def test_stored_cells_are_written_without_running_others(small_benchmarks: Graph, tmp_path: Path) -> None:
    one, two = (replace(tables()["datasets"], graphs=graphs) for graphs in (("texas",), ("texas", "cora")))
    reproduce([one], QUICK, tmp_path)
    outcome = reproduce([two], QUICK, tmp_path, run=False)
    assert (outcome.kept, outcome.run) == (1, 0)
    written = read_json(tmp_path / "datasets.json")
    assert [row["graph"] for row in written["rows"]] == ["texas"]
    assert written["missing"] == ["graph on cora"]


def test_help_lists_every_table() -> None:
    (name,) = get_type_hints(command, include_extras=True)["name"].__metadata__
    listed = name.help.partition("one of ")[2].rstrip(".").split(", ")
    assert listed == list(tables())


def test_an_unknown_table_is_rejected() -> None:
    with rejects("unknown-table"):
        find_tables("tabel")
