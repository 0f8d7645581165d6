"""Embeddings that a command is given: a run's, or a file's, each row matched to its node by id."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from h3gnn.cli.output import EMBEDDING_ENDINGS, say
from h3gnn.errors import InputError

if TYPE_CHECKING:  # torch takes seconds to import, and --help must not
    import numpy as np
    import numpy.typing as npt

    from h3gnn.estimator import H3GNN
    from h3gnn.graphs.graph import Graph
    from h3gnn.ondisk.mapped import MappedGraph

EmbeddingsArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="RUN|EMBEDDINGS",
        help="Folder of `h3gnn fit --out`, or a file of embeddings: .parquet, .csv, .npy.",
        show_default=False,
    ),
]


@dataclass(frozen=True)
class Embedded:
    """An embedding `[nodes, D]` with its nodes' ids, its graph if there is one, and where it came from."""

    values: npt.NDArray[np.float32]
    ids: npt.NDArray[Any]
    graph: Graph | None
    method: str
    params: dict[str, Any]
    seed: int | None = None
    epochs: int = 0


def read_embedded(
    given: str, graph: Graph | MappedGraph | None, device: str, *, to_score: bool = False
) -> Embedded:
    """Return the embedding of a run or a file; with a graph, one row for each of its nodes in their order.

    Args:
        given: a folder, or a file.
        graph: whose nodes are meant; that of the run by default.
        device: where to embed.
        to_score: of a graph in files, take the rows of its labelled nodes, which are all that is scored.
    """
    path = Path(given)
    if path.is_dir():
        return _of_run(path, graph, device, to_score)
    if path.suffix.lower() not in EMBEDDING_ENDINGS:
        raise InputError(
            f"{given} is neither a folder of `h3gnn fit --out` nor a file that ends in one of "
            f"{', '.join(EMBEDDING_ENDINGS)}"
        )
    return _of_file(path, graph)


def _of_run(folder: Path, graph: Graph | MappedGraph | None, device: str, to_score: bool) -> Embedded:
    from h3gnn.estimator import H3GNN
    from h3gnn.graphs.graph import with_splits
    from h3gnn.ondisk.mapped import MappedGraph
    from h3gnn.settings import kept_for
    from h3gnn.training.resources import pick_device

    pick_device(device)
    model = H3GNN.load(folder).set_params(device=device)
    named: Graph | MappedGraph = model.graph_ if graph is None else graph
    if isinstance(named, MappedGraph):
        if not to_score:
            raise InputError(
                f"{folder} is a run on a graph in files: write its embeddings with `h3gnn embed {folder} "
                "--out embeddings.parquet` and give that file"
            )
        values, asked = _labelled_rows(model, named)
    else:
        values = model.embedding_ if graph is None else model.transform(named)
        asked = named if graph is not None else with_splits(named)
    params = kept_for("log", model.get_params())
    seed = model.random_state if isinstance(model.random_state, int) else None
    return Embedded(values, asked.node_ids, asked, "H3GNN", params, seed, model.epochs)


def _labelled_rows(model: H3GNN, graph: MappedGraph) -> tuple[npt.NDArray[np.float32], Graph]:
    """Return the embeddings of a graph's labelled nodes, and these nodes."""
    import numpy as np

    from h3gnn.ondisk.mapped import labelled_nodes
    from h3gnn.resources import check_memory

    nodes, labelled = labelled_nodes(graph)
    size = 4 * len(nodes) * len(model.get_feature_names_out())
    check_memory(2 * size, f"the embeddings of {len(nodes):,} labelled nodes")
    if len(nodes) < graph.num_nodes:
        say(f"note: of a graph in files, its {len(nodes):,} labelled nodes are probed and clustered alone")
    kept, first, wanted = [], 0, nodes.numpy()
    for chunk in model.embedding_chunks(graph):
        begin, end = np.searchsorted(wanted, [first, first + len(chunk)])
        kept.append(chunk[wanted[begin:end] - first])
        first += len(chunk)
    return np.concatenate(kept), labelled


def _of_file(path: Path, named: Graph | MappedGraph | None) -> Embedded:
    import hashlib

    import numpy as np

    from h3gnn.graphs.ids import find_ids, quoted
    from h3gnn.ondisk.mapped import MappedGraph, labelled_nodes
    from h3gnn.tables.features import read_vectors

    read = read_vectors(path, None, None, {})
    values = np.asarray(read.values, dtype=np.float32)
    if not np.isfinite(values).all():
        raise InputError(
            f"{path} holds NaN or infinity in row {int(np.argwhere(~np.isfinite(values))[0, 0])}"
        )
    ids = read.ids if read.named else _ids_beside(path, read.ids)
    every = 0 if named is None else named.num_nodes
    graph = labelled_nodes(named)[1] if isinstance(named, MappedGraph) else named
    if graph is not None:
        place = find_ids(graph.node_ids, ids)
        missing = np.flatnonzero(place < 0)
        if missing.size:
            raise InputError(
                f"{path} has no row for node {quoted(graph.node_ids[missing[0]])} of "
                f"{graph.provenance.source} ({missing.size} of {graph.num_nodes} nodes are missing)"
            )
        if len(ids) > every:
            spare, name = len(ids) - every, graph.provenance.source
            say(f"note: {path} has {spare:,} rows for nodes that {name} does not have; another graph's?")
        values, ids = values[place], graph.node_ids
    digest = hashlib.sha256(np.ascontiguousarray(values).tobytes()).hexdigest()
    return Embedded(values, ids, graph, path.name, {"embeddings": str(path), "embeddings_sha256": digest})


def _ids_beside(path: Path, positions: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return the ids that `h3gnn embed` wrote beside an NPY file; the positions where there are none."""
    from h3gnn.tables.reader import check_once, open_table

    beside = path.with_suffix(".ids.csv")
    if not beside.exists():
        return positions
    table = open_table(beside, role="node ids", header=True)
    ids = table.read((0,)).ids[0]
    check_once(ids, table.place)
    if len(ids) != len(positions):
        raise InputError(f"{beside} names {len(ids)} nodes, but {path} has {len(positions)} rows")
    return ids
