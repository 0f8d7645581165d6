"""An interrupted search in a journal or database of Optuna, which is changed and continued."""

from __future__ import annotations

import json
import os
import shutil
import socket
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import strategies as st
from optuna.distributions import CategoricalDistribution

from h3gnn import Graph
from h3gnn.experiments import studies
from h3gnn.experiments.spaces import Space
from h3gnn.experiments.studies import open_study
from h3gnn.experiments.tune import Budget, ScoredTrial, Searcher, tune
from tests.fuzz.mutations import ODD, byte_changes, json_changes

SPACE = Space({"channels": (8, 16), "hops": (1, 2), "mask_ratio": (0.3, 0.5, 0.8)})
TABLES = {
    "studies": ("study_name",),
    "study_directions": ("direction",),
    "study_user_attributes": ("value_json", "key"),
    "trials": ("number", "state", "study_id"),
    "trial_params": ("param_name", "param_value", "distribution_json"),
    "trial_values": ("value", "value_type", "objective"),
    "trial_intermediate_values": ("step", "intermediate_value", "intermediate_value_type"),
    "trial_user_attributes": ("value_json", "key", "trial_id"),
    "alembic_version": ("version_num",),
    "version_info": ("schema_version", "library_version"),
}
"""The changed tables and columns of Optuna's databases."""


def invented_scores(
    self: Searcher, params: Any, seed: int, models: int, epochs: Sequence[int], after: Any = None
) -> ScoredTrial:
    trial = ScoredTrial(dict(params), seed)
    for epoch in epochs:
        trial.scores[epoch, 0.5] = (hash(str(sorted(params.items()))) % 97) / 97
        if after is not None:
            after(epoch, trial)
    return trial


class Search:
    """A folder with a storage of four trials and one that was interrupted."""

    def __init__(self, graph: Graph, folder: Path, name: str) -> None:
        folder.mkdir()
        self.graph, self.folder, self.name = graph, folder, name
        self._continue(folder, 4)
        study = open_study(graph, "study", self._address(folder), "validation")
        proposed = SPACE.proposed.items()
        trial = study.ask({name: CategoricalDistribution(list(values)) for name, values in proposed})
        trial.set_user_attr("owner", [socket.gethostname(), os.getpid()])
        trial.report(0.5, 1)
        self.content = (folder / name).read_bytes()

    def read(self, folder: Path) -> object:
        """Continue the search to its end; in a database, which is slow, without further proposals."""
        return self._continue(folder, 8 if self.name.endswith(".log") else 6).preset()

    def spoil(self, place: Path, data: st.DataObject) -> None:
        """Copy the storage and change bytes or a record."""
        shutil.copytree(self.folder, place, dirs_exist_ok=True)
        path = place / self.name
        if data.draw(st.integers(0, 4)) == 0:
            path.write_bytes(data.draw(byte_changes())(self.content))
        elif path.suffix == ".log":
            path.write_bytes(self._lines(data))
        else:
            self._rows(path, data)

    def _address(self, folder: Path) -> str:
        return str(folder / self.name) if self.name.endswith(".log") else f"sqlite:///{folder / self.name}"

    def _continue(self, folder: Path, trials: int) -> Any:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Searcher, "run", invented_scores)
            patch.setattr(studies, "CLAIM_SECONDS", 0.0)
            study = open_study(self.graph, "study", self._address(folder), "validation")
            budget = Budget(trials=trials, eval_epochs=(1, 2))
            return tune(self.graph, study, SPACE, budget, finalists=2, device=torch.device("cpu"))

    def _lines(self, data: st.DataObject) -> bytes:
        """Return the journal with one of its lines changed, left out, doubled or moved."""
        lines = self.content.splitlines()
        at, to = (data.draw(st.integers(0, len(lines) - 1)) for _ in range(2))
        kind = data.draw(st.sampled_from(["change", "change", "change", "leave out", "double", "move"]))
        if kind == "change":
            lines[at] = json.dumps(data.draw(json_changes())(json.loads(lines[at]))).encode()
        else:
            line = lines[at] if kind == "double" else lines.pop(at)
            if kind != "leave out":
                lines.insert(to, line)
        return b"\n".join(lines) + b"\n"

    def _rows(self, path: Path, data: st.DataObject) -> None:
        """Change a value of a database, or delete its row."""
        with closing(sqlite3.connect(path)) as database, database:
            table = data.draw(st.sampled_from(sorted(TABLES)))
            rows = [one for (one,) in database.execute(f"select rowid from {table}")]
            row, column = data.draw(st.sampled_from(rows)), data.draw(st.sampled_from(TABLES[table]))
            if data.draw(st.integers(0, 6)) == 0:
                database.execute(f"delete from {table} where rowid = ?", (row,))
                return
            ((old,),) = database.execute(f"select {column} from {table} where rowid = ?", (row,))
            new = self._value(data, old, is_json=column.endswith("_json"))
            try:
                database.execute(f"update or replace {table} set {column} = ? where rowid = ?", (new, row))
            except (sqlite3.Error, OverflowError, UnicodeEncodeError):
                return  # the database rejects it

    def _value(self, data: st.DataObject, old: Any, *, is_json: bool) -> Any:
        if not is_json:
            new = data.draw(st.sampled_from(ODD))
            return new if isinstance(new, str | int | float | None) else json.dumps(new)
        return json.dumps(data.draw(json_changes())(json.loads(old)))
