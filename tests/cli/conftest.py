"""A small graph in files, and a model fitted on it, for all tests of commands."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from h3gnn import H3GNN, Graph


@pytest.fixture(scope="session")
def fitted(small_mixed: Graph) -> H3GNN:
    return H3GNN.from_preset("single", epochs=4, channels=8, heads=2, device="cpu", precision="float32").fit(
        small_mixed
    )


@pytest.fixture(scope="session")
def saved(fitted: H3GNN, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the fitted model; only read it."""
    folder = tmp_path_factory.mktemp("saved") / "run"
    fitted.save(folder)
    return folder


def write_npz(graph: Graph, path: Path) -> Path:
    """Write edges, features, labels and splits of a graph."""
    masks = {f"{name}_masks": getattr(graph, f"{name}_mask").T.numpy() for name in ("train", "val", "test")}
    assert graph.labels is not None
    features, edges = graph.dense_features().numpy(), graph.edge_index.T.numpy()
    np.savez(path, edges=edges, node_features=features, node_labels=graph.labels.numpy(), **masks)
    return path


@pytest.fixture(scope="session")
def tables(small_mixed: Graph, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The small graph as e.csv, f.csv and y.csv, without splits, and as g.npz with splits; only read it."""
    folder = tmp_path_factory.mktemp("tables")
    write_npz(small_mixed, folder / "g.npz")
    assert small_mixed.labels is not None
    source, target = small_mixed.edge_index.numpy()
    features = small_mixed.dense_features().numpy().astype(int)
    columns = {f"w{i}": column for i, column in enumerate(features.T)}
    nodes = np.arange(len(features))
    pd.DataFrame({"source": source, "target": target}).to_csv(folder / "e.csv", index=False)
    pd.DataFrame({"id": nodes, **columns}).to_csv(folder / "f.csv", index=False)
    labels = [f"c{label}" for label in small_mixed.labels.tolist()]
    pd.DataFrame({"id": nodes, "label": labels}).to_csv(folder / "y.csv", index=False)
    return folder
