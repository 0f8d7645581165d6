"""The program in docs/format.md writes the folder that `prepare` writes."""

from __future__ import annotations

import json
import re
from pathlib import Path

import duckdb
import numpy as np
import pandas as pd
import pytest

from h3gnn.ondisk.mapped import PREPARED, open_mapped
from h3gnn.ondisk.prepare import prepare_graph

PAGE = (Path(__file__).parents[2] / "docs" / "format.md").read_text(encoding="utf-8")
OF_PREPARE = {"kind", "structural", "repairs", "mended"}
"""Fields that say how a graph was made, which other writers leave out."""
(PROGRAM,) = re.findall(r"^```python\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)


def write_tables(nodes: int = 300, edges: int = 2_000) -> None:
    """Write text ids that are not sorted, duplicate edges, loops, and nodes without edges or labels."""
    random = np.random.default_rng(0)
    ids = [f"n{number:04d}" for number in random.permutation(nodes)]
    columns = {"x": random.normal(3, 2, nodes), "y": random.integers(0, 2, nodes)}
    pd.DataFrame({"id": ids, **columns}).to_parquet("features.parquet")
    ends = random.integers(0, nodes // 4, (2, edges))
    source, target = ([ids[one] for one in end] for end in ends)
    table = pd.DataFrame({"source": source, "target": target, "weight": random.lognormal(size=edges)})
    assert table.duplicated(["source", "target"]).any()
    table.to_parquet("edges.parquet")
    classes, splits = random.choice(["b", "a", "c"], nodes), random.choice(["train", "val", "test"], nodes)
    labels = pd.DataFrame({"id": ids, "class": classes, "split": splits})
    labels.sample(frac=0.8, random_state=0).to_parquet("labels.parquet")


def test_the_program_for_duckdb_writes_what_prepare_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_tables()
    exec(compile(PROGRAM, "format.md", "exec"), {})
    tables = "edges.parquet", "features.parquet", "prepared"
    expected = prepare_graph(*tables, labels="labels.parquet", link_columns=False)
    names = sorted(path.name for path in Path("prepared").iterdir())
    assert sorted(path.name for path in Path("graph").iterdir()) == names
    for name in names:
        if name != "graph.json":
            assert Path("graph", name).read_bytes() == Path("prepared", name).read_bytes(), name
    found, wanted = (json.loads(Path(one, "graph.json").read_text()) for one in ("graph", "prepared"))
    moments = found.pop("moments"), wanted.pop("moments")
    for name, value in moments[1].items():
        assert moments[0][name] == pytest.approx(value, rel=1e-12), name
    assert found == {name: value for name, value in wanted.items() if name not in OF_PREPARE}
    assert open_mapped("graph").node_ids.tolist() == expected.node_ids.tolist()


def test_the_program_rejects_edges_of_unknown_nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_tables()
    edges = pd.read_parquet("edges.parquet")
    edges.loc[17, "source"] = "nobody"
    edges.to_parquet("edges.parquet")
    with pytest.raises(duckdb.ConstraintException):
        exec(compile(PROGRAM, "format.md", "exec"), {})


def test_every_field_is_described() -> None:
    required, optional = PREPARED.fields, PREPARED.optional
    described = set(re.findall(r"`(\w+)`", PAGE))
    assert {*required, *optional} - OF_PREPARE <= described
