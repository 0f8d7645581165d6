"""What commands over a saved run share: the run, nodes that join it, and tables that come out."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from h3gnn.cli.output import is_mapped, say
from h3gnn.errors import InputError

if TYPE_CHECKING:  # torch takes seconds to import, and --help must not
    from h3gnn.answers.extending import Extension
    from h3gnn.estimator import H3GNN

NEW = "New nodes"
NewFeaturesOption = Annotated[
    Path | None,
    typer.Option(
        "--new-features",
        help="Nodes that have joined the graph since: their ids and features, columns as fitted.",
        show_default=False,
        rich_help_panel=NEW,
    ),
]
NewEdgesOption = Annotated[
    Path | None,
    typer.Option(
        "--new-edges",
        help="Their edges, to fitted nodes and among themselves, by id: CSV, TSV or Parquet.",
        show_default=False,
        rich_help_panel=NEW,
    ),
]
TABLE_ENDINGS = (".parquet", ".csv")


def open_run(run: Path, device: str, *, in_files: bool = False) -> H3GNN:
    """Return the model of a run on a graph in memory, or with `in_files` on any."""
    from h3gnn.estimator import H3GNN
    from h3gnn.training.resources import pick_device

    pick_device(device)
    model = H3GNN.load(run)
    model.set_params(device=device)
    if is_mapped(model.graph_) and not in_files:
        raise InputError(
            f"{run} is a run on a graph in files: its embeddings are had by `h3gnn embed {run} --out "
            "embeddings.parquet`, and this command needs the graph in memory"
        )
    return model


def extend_run(
    model: H3GNN, features: Path | None, edges: Path | None, reading: dict[str, Any], *, refresh: bool = False
) -> Extension:
    """Read new nodes from files and embed them; what should be known about them is said."""
    from h3gnn.answers.extending import read_new_nodes

    if features is None:
        raise InputError("--new-edges belong to new nodes: give these with --new-features")
    if edges is None and not model.is_table_:
        raise InputError("new nodes join the graph by edges: give these with --new-edges")
    extension = model.extend(*read_new_nodes(model.graph_, features, edges, reading), refresh=refresh)
    for note in extension.notes:
        say(f"note: {note}")
    return extension
