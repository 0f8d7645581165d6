"""The benchmark of graphs with several types: reading a folder, and scores that are stored once."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
import torch

from benchmarks import typed
from benchmarks.typed import Method, Problem, rival
from h3gnn.baselines.typed import PathMeans
from reproduction.files import read_json, write_json

CPU = torch.device("cpu")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Twenty papers of two classes, each by the author of its class, one of them twice."""
    folder = tmp_path / "acm"
    folder.mkdir()
    pairs = "\n".join(f"{paper}\t{paper % 2}" for paper in (*range(20), 3))
    (folder / "pa.txt").write_text(pairs + "\n")
    np.save(folder / "labels.npy", np.arange(20) % 2)
    sp.save_npz(folder / "p_feat.npz", sp.csr_matrix(np.ones((20, 2))))
    sp.save_npz(folder / "a_feat.npz", sp.csr_matrix(np.eye(2)))
    for rate in typed.RATES:
        for part, first, last in (("train", 0, 4), ("val", 4, 8), ("test", 8, 20)):
            np.save(folder / f"{part}_{rate}.npy", np.arange(first, last))
    return tmp_path


def test_a_folder_becomes_a_problem(data: Path) -> None:
    problem = Problem.read(data / "acm")
    (links,) = problem.graph.relations
    assert (links.source, links.target, links.ends.shape) == ("p", "a", (2, 20))
    assert {name: one.features.shape for name, one in problem.graph.types.items()} == {
        "p": (20, 2),
        "a": (2, 2),
    }
    assert problem.labels.tolist() == [0, 1] * 10
    assert [int(problem.masks[part][:, 1].sum()) for part in ("train", "val", "test")] == [4, 4, 12]


def test_scores_are_stored_and_not_computed_again(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran = list[int]()

    def right(problem: Problem, seed: int, device: torch.device) -> torch.Tensor:
        if not ran:  # another run stores a score in the meantime
            about = {"graph": "dblp", "method": "paths", "seed": 0, "data": "0", "settings": "none"}
            write_json(out, {"cells": [{**about, "val": [0.5] * 3, "seconds": 1.0}]})
        ran.append(seed)
        scores = torch.nn.functional.one_hot(problem.labels, 2).float()
        scores[8:11] = scores[8:11].flip(1)  # three of the twelve test nodes are wrong
        return scores.log_softmax(dim=1).expand(3, -1, -1)

    methods = {"right": Method("right", right, "a"), "paths": rival("paths", PathMeans())}
    monkeypatch.setattr(typed, "METHODS", methods)
    out = data / "typed.json"

    def run(*, test: bool = False) -> dict[tuple[str, int], typed.Cell]:
        found = typed.run(data, out, ["acm", "dblp"], ["right", "paths"], 2, CPU, test=test, again=False)
        return {(one["method"], one["seed"]): one for one in found["cells"] if one["graph"] == "acm"}

    assert set(run()) == {("right", 0), ("right", 1), ("paths", 0)}
    assert [one["graph"] for one in read_json(out)["cells"]].count("dblp") == 1
    assert "test" not in run()["right", 0]
    assert ran == [0, 1]
    cells = run(test=True)
    assert ran == [0, 1, 0, 1]
    assert cells["right", 0]["val"] == [1.0] * 3
    # papers 8 and 10 of class 0 and 9 of class 1: F1 = 2·4 / (2·4 + 1 + 2) and 2·5 / (2·5 + 2 + 1)
    assert cells["right", 1]["test"] == pytest.approx([(8 / 11 + 10 / 13) / 2] * 3, abs=1e-5)
    assert cells["paths", 0]["test"] == [1.0] * 3
    methods["right"] = Method("right", right, "b")
    run(test=True)
    assert ran == [0, 1, 0, 1, 0, 1]
    assert "| acm | right | 100.0 ± 0.0 |" in typed.markdown({"cells": list(cells.values())})
