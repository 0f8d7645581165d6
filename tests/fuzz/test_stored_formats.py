"""Every stored format with changed fields, bytes, shapes and sizes is read or rejected with a message."""

from __future__ import annotations

import hashlib
import json
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from h3gnn import H3GNN, Checkpoints, Graph
from h3gnn.errors import CheckpointError
from h3gnn.experiments.compare import compare, read_kept, stored_result
from h3gnn.experiments.methods import find_methods
from h3gnn.graphs.synthetic import mixed_graph
from h3gnn.ondisk.mapped import open_mapped
from h3gnn.ondisk.prepare import prepare_graph
from h3gnn.storage.checkpoint_file import CheckpointFolder
from h3gnn.storage.runs import Run, begin_run, read_run
from h3gnn.storage.tensors import read_tensors, write_tensor_file
from h3gnn.tables.plan import encode_table
from h3gnn.training.checkpoints import CheckpointWriter, _by_part, restore_state
from tests.fuzz.hunting import Tally, examples, store
from tests.fuzz.mutations import byte_changes, json_changes, tensor_changes
from tests.fuzz.searches import Search
from tests.storage.mixed import mixed_table, mixed_table_graph

TINY: dict[str, Any] = {"channels": 4, "heads": 2, "n_models": 2, "epochs": 2, "device": "cpu", "hops": 2}
SHORT, LONG = 12, 2_000
OF_DATABASES = 500
"""Fewer, since each takes a tenth of a second and a journal holds the same records."""


@pytest.fixture(scope="module")
def graph() -> Graph:
    return mixed_graph(30, words=12, splits=2)


class Format:
    """A valid folder, the file to change in it, and the function that reads the folder."""

    def __init__(self, folder: Path, pattern: str, read: Callable[[Path], object]) -> None:
        self.folder, self.pattern, self.read = folder, pattern, read
        (self.path,) = sorted(folder.glob(pattern))
        self.content = self.path.read_bytes()

    def spoil(self, place: Path, data: st.DataObject) -> None:
        """Copy the folder and change the file; a file named by its hash is renamed."""
        shutil.copytree(self.folder, place, dirs_exist_ok=True)
        target = place / self.path.relative_to(self.folder)
        if target.suffix == ".json":
            target.write_bytes(self._json(data))
            return
        if target.suffix != ".safetensors":
            target.write_bytes(data.draw(byte_changes())(self.content))
            return
        target.unlink()
        stem = target.name.rpartition("-")[0]
        if data.draw(st.integers(0, 3)) == 0:
            content = data.draw(byte_changes())(self.content)
            named = f"{stem}-{hashlib.sha256(content).hexdigest()[:16]}.safetensors"
            (target.parent / named).write_bytes(content)
        else:
            named = self._tensors(target.parent, stem, data)
        model = place / "model.json"
        if model.exists():
            model.write_text(model.read_text().replace(self.path.name, named))

    def _json(self, data: st.DataObject) -> bytes:
        if data.draw(st.integers(0, 3)) == 0:
            return data.draw(byte_changes())(self.content)
        return json.dumps(data.draw(json_changes())(json.loads(self.content))).encode()

    def _tensors(self, folder: Path, stem: str, data: st.DataObject) -> str:
        tensors, text = read_tensors(self.path, CheckpointError)
        description = None if text is None else json.loads(text)
        if description is not None and data.draw(st.booleans()):
            description = data.draw(json_changes())(description)
        else:
            tensors = data.draw(tensor_changes())(tensors)
        return write_tensor_file(folder, stem, tensors, description).name


def saved_model(graph: Graph, folder: Path) -> Path:
    H3GNN.from_settings(TINY).fit(graph).save(folder)
    return folder


def read_checkpoint(graph: Graph) -> Callable[[Path], object]:
    """Return a function that restores the newest checkpoint of a folder in a training."""
    steps: dict[str, Any] = {}
    usual = CheckpointWriter.resume

    def keep(self: CheckpointWriter) -> Any:
        steps["step"], steps["fingerprint"] = self.step, self.files.fingerprint
        return usual(self)

    def read(folder: Path) -> object:
        if not steps:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(CheckpointWriter, "resume", keep)
                H3GNN.from_preset("single", **TINY).fit(graph, checkpoints=Checkpoints(folder / "elsewhere"))
        files = CheckpointFolder(folder, steps["fingerprint"], 2)
        (path,) = files.found()
        tensors, description = files.read(path)
        return restore_state(steps["step"], _by_part(tensors), description["columns"], description["epoch"])

    return read


def checkpoint_folder(graph: Graph, folder: Path) -> Path:
    model = H3GNN.from_preset("single", **TINY)
    model.fit(graph, checkpoints=Checkpoints(folder, every=2, keep_finished=True))
    return folder


def started_run(graph: Graph, folder: Path) -> Path:
    settings = H3GNN.from_settings(TINY).get_settings()
    begin_run(folder, Run(settings, graph, Checkpoints(folder / "checkpoints"), None))
    return folder


def tuned_preset(folder: Path) -> Path:
    folder.mkdir()
    params = {**H3GNN.from_settings(TINY).get_settings(), "random_state": None}
    trial = {"number": 0, "state": "complete", "params": {"hops": 2}, "smoothing": 0.5, "curve": {"10": 0.5}}
    final = {"params": {"hops": 2}, "looks": [[10, 0.5, 0.7]]}
    content = {"params": params, "tuned": {"by": "h3gnn tune"}, "trials": [trial], "finalists": [final]}
    (folder / "preset.json").write_text(json.dumps(content))
    return folder


def comparison(graph: Graph, folder: Path) -> Path:
    folder.mkdir()
    model, methods = H3GNN.from_settings(TINY), find_methods("raw, smoothed")
    compare(methods, graph, seeds=[0], model=model, out=folder / "c.json")
    return folder


def prepared(folder: Path) -> Path:
    folder.mkdir()
    (folder / "e.csv").write_text("source,target\na,b\nb,c\nc,a\n")
    (folder / "f.csv").write_text("id,f0,f1\na,1,2\nb,3,4\nc,5,6\n")
    prepare_graph(folder / "e.csv", folder / "f.csv", folder / "graph")
    return folder / "graph"


def read_prepared(folder: Path) -> object:
    graph = open_mapped(folder)
    list(graph.id_blocks())
    return graph.adjacency(undirected=True, self_loops=True)


def load_and_encode(folder: Path) -> object:
    """Load a model of a table and encode the table by its plan."""
    model = H3GNN.load(folder)
    return None if model.graph_.plan is None else encode_table(mixed_table(), model.graph_.plan)


def read_preset(folder: Path) -> object:
    return H3GNN.from_preset(str(folder / "preset.json"))


def read_comparison(folder: Path) -> object:
    path = folder / "c.json"
    return [stored_result(one, path) for one in read_kept(path).values()]


NAMES = [
    *("model.json", "weights of a model", "graph of a model", "checkpoint", "start of a run", "preset"),
    *("comparison", "prepared graph", "model.json of a table", "graph of a table"),
    *("ids of a prepared graph", "edges of a prepared graph", "rows of a prepared graph"),
    *("journal of a search", "database of a search"),
]


def build(name: str, graph: Graph, folder: Path) -> Format | Search:
    if name in ("model.json", "weights of a model", "graph of a model"):
        pattern = {"model.json": "model.json", "weights of a model": "weights-*"}.get(name, "graph-*")
        return Format(saved_model(graph, folder), pattern, H3GNN.load)
    if name in ("model.json of a table", "graph of a table"):
        saved = saved_model(mixed_table_graph(), folder)
        return Format(saved, "model.json" if name.startswith("model") else "graph-*", load_and_encode)
    others: dict[str, Callable[[], Format | Search]] = {
        "checkpoint": lambda: Format(
            checkpoint_folder(graph, folder), "epoch-00000002-*", read_checkpoint(graph)
        ),
        "start of a run": lambda: Format(started_run(graph, folder), "checkpoints/start-*", read_run),
        "preset": lambda: Format(tuned_preset(folder), "preset.json", read_preset),
        "comparison": lambda: Format(comparison(graph, folder), "c.json", read_comparison),
        "prepared graph": lambda: Format(prepared(folder), "graph.json", read_prepared),
        "ids of a prepared graph": lambda: Format(prepared(folder), "ids.arrow", read_prepared),
        "edges of a prepared graph": lambda: Format(prepared(folder), "cols.bin", read_prepared),
        "rows of a prepared graph": lambda: Format(prepared(folder), "crow.bin", read_prepared),
        "journal of a search": lambda: Search(graph, folder, "studies.log"),
        "database of a search": lambda: Search(graph, folder, "studies.db"),
    }
    return others[name]()


def hunt(name: str, graph: Graph, folder: Path, count: int) -> Tally:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        sound, tally = build(name, graph, folder / "sound"), Tally(name)
        sound.read(shutil.copytree(sound.folder, folder / "as it was"))

    @examples(count)
    @given(data=st.data())
    def attempts(data: st.DataObject) -> None:
        place = folder / "spoilt"
        shutil.rmtree(place, ignore_errors=True)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            sound.spoil(place, data)
            tally.attempt(lambda: sound.read(place))

    attempts()
    return tally


@pytest.mark.parametrize("name", [name for name in NAMES if not name.endswith("search")])
def test_a_changed_file_is_read_or_rejected(name: str, graph: Graph, tmp_path: Path) -> None:
    ended = hunt(name, graph, tmp_path, SHORT).ended
    assert ended["rejected"] > 0
    assert ended["failures"] == 0


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_many_changed_files_are_read_or_rejected(name: str, graph: Graph, tmp_path: Path) -> None:
    tally = hunt(name, graph, tmp_path, OF_DATABASES if name.startswith("database") else LONG)
    store(name, tally.ended)
    assert tally.ended["failures"] == 0
