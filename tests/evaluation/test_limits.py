"""Warnings about labels and splits from which some scores cannot be computed."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from h3gnn.cli.app import app
from h3gnn.errors import InputError
from h3gnn.evaluation.metrics import LabelWarning, label_problems, usable_splits


def split(text: str) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the masks of one split from a letter per node: t, v and s for training, validation and test."""
    train, val, test = (torch.tensor([[one == mask] for one in text]) for mask in "tvs")
    return train, val, test


@pytest.mark.parametrize(
    ("labels", "words"),
    [
        ([0, 0, 0, 0], "one class"),
        ([0, 1, -1, 1], "no labelled test node"),
        ([0, -1, 1, 0], "no labelled validation node"),
        ([-1, 0, 1, -1], "no labelled training node"),
        ([0, 1, 2, 1], "c have test nodes but no training node"),
    ],
)
def test_each_problem_is_reported(labels: list[int], words: str) -> None:
    problems = label_problems(torch.tensor(labels), *split("tvst"), ("a", "b", "c"))
    assert any(words in one for one in problems), problems


def test_ordinary_labels_have_no_problems() -> None:
    labels, masks = torch.tensor([0, 1, 0, 1, 0, 1]), split("ttvvss")
    assert label_problems(labels, *masks) == []
    assert usable_splits(labels, *masks).tolist() == [True]
    assert usable_splits(torch.tensor([0, 1, -1, -1, 0, 1]), masks[0], masks[1]).tolist() == [False]


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("e.csv").write_text("source,target\n" + "".join(f"n{i},n{(i + 1) % 24}\n" for i in range(24)))
    Path("f.csv").write_text("id,a,b\n" + "".join(f"n{i},{i},{i * i % 7}\n" for i in range(24)))
    rows = np.random.default_rng(0).standard_normal((24, 3)).astype(np.float32)
    np.save("z.npy", rows)
    Path("z.ids.csv").write_text("node\n" + "".join(f"n{i}\n" for i in range(24)))
    return tmp_path


GRAPH = ("--edges", "e.csv", "--features", "f.csv", "--labels", "y.csv")
TUNE = ("--trials", "1", "--epochs", "1", "--space", "paper", "--choices", "channels=8", "--models", "1")


@pytest.mark.filterwarnings("always::h3gnn.evaluation.metrics.LabelWarning")
@pytest.mark.parametrize("labels", ["n0,a\n", "n0,a\nn1,b\n"])
def test_one_or_two_labelled_nodes(files: Path, labels: str) -> None:
    Path("y.csv").write_text("id,label\n" + labels)
    with pytest.warns(LabelWarning, match="no labelled"):
        done = CliRunner().invoke(app, ["evaluate", "z.npy", *GRAPH, "--json"])
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert found["probe"]["test_mean"] is None
    assert found["clustering"] is not None
    for command in (("compare", *GRAPH, "--methods", "raw"), ("tune", *GRAPH, *TUNE)):
        refused = CliRunner().invoke(app, command)
        assert isinstance(refused.exception, InputError), refused.output
        assert refused.exception.code == "no-usable-split"


def test_a_class_without_training_nodes(files: Path) -> None:
    rows = [f"n{i},{'ab'[i % 2]},{('train', 'val', 'test')[i // 2 % 3]}" for i in range(22)]
    Path("y.csv").write_text("id,label,split\n" + "\n".join([*rows, "n22,c,test", "n23,c,test"]) + "\n")
    with pytest.warns(LabelWarning, match="c have test nodes but no training node"):
        done = CliRunner().invoke(app, ["evaluate", "z.npy", *GRAPH, "--json"])
    assert done.exit_code == 0, done.output
    assert 0 <= json.loads(done.stdout)["probe"]["test_mean"] < 1


def test_a_search_warns_about_a_single_class(files: Path) -> None:
    Path("y.csv").write_text("id,label\n" + "".join(f"n{i},a\n" for i in range(24)))
    with pytest.warns(LabelWarning, match="one class"):
        done = CliRunner().invoke(app, ["tune", *GRAPH, *TUNE, "--finalists", "1"])
    assert done.exit_code == 0, done.output
