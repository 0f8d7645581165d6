"""Commands overwrite only what they wrote, and honour the umask."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest

from h3gnn import mixed_graph
from tests.inputs.tables import QUICK, command, ring, save

EXPORTS = ("neo4j", "tensorboard", "parquet", "csv", "npy", "graphml")
OWN = ("nodes.csv", "relationships.csv", "metadata.tsv", "tensors.tsv", "embeddings.csv", "thesis.txt")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("outputs")
    ids = [f"n{i}" for i in range(30)]
    features = pd.DataFrame(
        {"id": ids, "x": [i % 7 / 7 for i in range(30)], "y_": [i % 5 for i in range(30)]}
    )
    labels = pd.DataFrame({"id": ids, "label": ["red", "blue"] * 15})[:20]
    options = ("--edges", save(ring(ids), folder / "e"), "--features", save(features, folder / "f"))
    code, _, text = command(
        "fit", *options, "--labels", save(labels, folder / "l"), *QUICK, "--out", folder / "run"
    )
    assert code == 0, text
    return folder / "run"


@pytest.mark.parametrize("to", ["neo4j", "tensorboard"])
@pytest.mark.parametrize("name", OWN)
def test_a_folder_with_files_of_the_user_is_left_alone(run: Path, tmp_path: Path, to: str, name: str) -> None:
    own = tmp_path / "data" / name
    own.parent.mkdir()
    own.write_text("mine")
    code, printed, text = command("export", run, "--to", to, "--out", own.parent)
    assert code != 0, text
    assert printed["error"]["code"] == "folder-not-empty"
    assert [one.name for one in own.parent.iterdir()] == [name]
    assert own.read_text() == "mine"


@pytest.mark.parametrize("to", ["neo4j", "tensorboard"])
def test_an_export_can_be_repeated(run: Path, tmp_path: Path, to: str) -> None:
    for _ in range(2):
        code, _, text = command("export", run, "--to", to, "--out", tmp_path / "out")
        assert code == 0, text
    (tmp_path / "out" / "thesis.txt").write_text("mine")
    code, printed, _ = command("export", run, "--to", to, "--out", tmp_path / "out")
    assert code != 0
    assert printed["error"]["code"] == "folder-not-empty"
    assert (tmp_path / "out" / "thesis.txt").read_text() == "mine"


@pytest.mark.parametrize("kinds", [("neo4j", "tensorboard"), ("tensorboard", "neo4j")])
def test_one_export_does_not_replace_another(run: Path, tmp_path: Path, kinds: tuple[str, str]) -> None:
    assert command("export", run, "--to", kinds[0], "--out", tmp_path / "out")[0] == 0
    before = {one.name for one in (tmp_path / "out").iterdir()}
    assert command("export", run, "--to", kinds[1], "--out", tmp_path / "out")[0] != 0
    assert {one.name for one in (tmp_path / "out").iterdir()} == before


@pytest.mark.parametrize("arguments", [("embed",), ("export", "--to", "npy")])
def test_ids_of_the_user_beside_an_array_are_left_alone(
    run: Path, tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    own = tmp_path / "x.ids.csv"
    own.write_text("mine")
    code, _, text = command(arguments[0], run, *arguments[1:], "--out", tmp_path / "x.npy")
    assert code != 0, text
    assert own.read_text() == "mine"
    assert not (tmp_path / "x.npy").exists()


@pytest.mark.parametrize("arguments", [("embed",), ("export", "--to", "npy")])
def test_an_array_and_its_ids_can_be_written_again(
    run: Path, tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    for _ in range(2):
        code, _, text = command(arguments[0], run, *arguments[1:], "--out", tmp_path / "x.npy")
        assert code == 0, text


@pytest.fixture
def private() -> Iterator[None]:
    before = os.umask(0o077)
    yield
    os.umask(before)


COMMANDS = {
    "predict": ("predict", "--head", "logistic", "--out", "p.csv"),
    "predict-parquet": ("predict", "--head", "logistic", "--out", "p.parquet"),
    "embed": ("embed", "--out", "e.csv"),
    "embed-parquet": ("embed", "--out", "e.parquet"),
    "embed-npy": ("embed", "--out", "e.npy"),
    "cluster": ("cluster", "--clusters", "2", "--out", "c.csv"),
    "anomalies": ("anomalies", "--out", "a.csv"),
    "links": ("links", "--top", "5", "--check", "none", "--out", "l.csv"),
    "report": ("report", "--out", "r.html"),
    "export-graphml": ("export", "--to", "graphml", "--out", "g.graphml"),
    "export-neo4j": ("export", "--to", "neo4j", "--out", "neo"),
}


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.usefixtures("private")
def test_outputs_honour_the_umask(run: Path, tmp_path: Path, name: str) -> None:
    verb, *rest = COMMANDS[name]
    rest = [str(tmp_path / one) if i and rest[i - 1] == "--out" else one for i, one in enumerate(rest)]
    code, _, text = command(verb, run, *rest)
    assert code == 0, text
    written = [one for one in tmp_path.rglob("*") if one.is_file()]
    assert written
    for path in tmp_path.rglob("*"):
        assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0, path


@pytest.mark.usefixtures("private")
def test_a_run_honours_the_umask(tmp_path: Path) -> None:
    graph = mixed_graph(40, words=12)
    from h3gnn import H3GNN

    H3GNN.from_preset("single", epochs=1, channels=8).fit(graph).save(tmp_path / "run")
    for path in (tmp_path / "run").rglob("*"):
        assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0, path
