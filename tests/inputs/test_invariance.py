"""Order, names and units carry no information: changing them leaves the result equal up to rounding."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from h3gnn import H3GNN, mixed_graph
from tests.inputs.tables import QUICK, command, save

ROWS = 60


def tables() -> dict[str, pd.DataFrame]:
    """Return edges, features and labels of a small graph with columns of several kinds."""
    graph = mixed_graph(ROWS, words=12)
    draws = np.random.default_rng(0)
    assert graph.labels is not None
    ids = np.array([f"n{i:02d}" for i in range(ROWS)])
    words = {f"w{i}": column for i, column in enumerate(graph.dense_features().numpy().T)}
    features = pd.DataFrame(
        {
            "id": ids,
            **words,
            "income": draws.lognormal(size=ROWS).round(3),
            "city": draws.choice(["Rome", "Oslo", "Bonn"], ROWS),
            "opened": [f"20{10 + i % 9}-0{1 + i % 9}-1{i % 10}" for i in range(ROWS)],
        }
    )
    ends = ids[graph.edge_index.numpy()]
    edges = pd.DataFrame(
        {"source": ends[0], "target": ends[1], "weight": draws.random(ends.shape[1]).round(3) + 0.1}
    )
    classes = np.array(["red", "blue", "green"])[graph.labels.numpy() % 3]
    labels = pd.DataFrame({"id": ids, "label": classes}).iloc[draws.permutation(ROWS)[:40]]
    return {"edges": edges, "features": features, "labels": labels}


def shuffled(table: pd.DataFrame) -> pd.DataFrame:
    return table.sample(frac=1, random_state=1)


CHANGES: dict[str, Any] = {
    "order of nodes": lambda t: t | {"features": shuffled(t["features"])},
    "order of edges": lambda t: t | {"edges": shuffled(t["edges"])},
    "order of labels": lambda t: t | {"labels": shuffled(t["labels"])},
    "order of columns": lambda t: (
        t | {"features": t["features"][["id", *reversed(t["features"].columns[1:])]]}
    ),
    "unit of a column": lambda t: t | {"features": t["features"].assign(w0=1000 * t["features"]["w0"])},
    "names of the ids": lambda t: {
        name: table.assign(**{c: "x" + table[c] for c in ("id", "source", "target") if c in table})
        for name, table in t.items()
    },
    "names of the classes": lambda t: t | {"labels": t["labels"].assign(label="c_" + t["labels"]["label"])},
}


def answers(folder: Path, data: dict[str, pd.DataFrame], *command_line: str) -> pd.DataFrame:
    """Fit, run a command, and return its table by id."""
    folder.mkdir()
    paths = {name: save(table, folder / name) for name, table in data.items()}
    given = [one for name in paths for one in (f"--{name}", paths[name])]
    code, _, text = command("fit", *given, *QUICK, "--set", "smoothing=auto", "--out", folder / "run")
    assert code == 0, text
    verb, *rest = command_line
    code, _, text = command(verb, folder / "run", *rest, "--out", folder / "out.csv")
    assert code == 0, text
    return pd.read_csv(folder / "out.csv")


COMMANDS: dict[str, tuple[str, ...]] = {
    "embed": ("embed",),
}


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> dict[str, pd.DataFrame]:
    folder = tmp_path_factory.mktemp("original")
    return {name: answers(folder / name, tables(), *line) for name, line in COMMANDS.items()}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("name", COMMANDS)
def test_answers_do_not_depend_on_order_names_or_units(
    original: dict[str, pd.DataFrame], tmp_path: Path, change: str, name: str
) -> None:
    before, after = original[name], answers(tmp_path / "changed", CHANGES[change](tables()), *COMMANDS[name])
    key = before.columns[0]
    after[key] = after[key].astype(str).str.removeprefix("x")
    after.columns = [one.replace("c_", "") if one.startswith("p_") else one for one in after.columns]
    before, after = (one.set_index(key).sort_index() for one in (before, after))
    assert before.index.tolist() == after.index.tolist()
    for column in before.columns:
        if column not in after.columns:
            continue
        left, right = before[column], after[column]
        if pd.api.types.is_numeric_dtype(left) and name != "cluster":
            np.testing.assert_allclose(left, right, atol=2e-3, err_msg=column)
    if name == "cluster":
        pairs = pd.crosstab(before[before.columns[0]], after[after.columns[0]])
        assert ((pairs > 0).sum(axis=1) == 1).all()


@pytest.mark.parametrize("seed", range(3))
def test_smoothing_does_not_depend_on_the_order_of_rows(seed: int) -> None:
    graph = mixed_graph(60, words=30, seed=seed)
    order = np.random.default_rng(seed).permutation(60)
    x = graph.dense_features().numpy()
    where = np.argsort(order)
    chosen = []
    for features, ends in ((x, graph.edge_index.numpy()), (x[order], where[graph.edge_index.numpy()])):
        model = H3GNN.from_preset("single", epochs=1, channels=8, smoothing="auto").fit(
            features, edge_index=ends
        )
        chosen.append(model.smoothing_)
    assert chosen[0] == chosen[1]
