"""The options by which every command takes a graph in, and the one function that loads it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from h3gnn.errors import InputError

if TYPE_CHECKING:  # torch takes seconds to import, and --help must not
    from h3gnn.graphs.graph import Graph

PANEL = "Your own graph"

GraphArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="GRAPH",
        help="A benchmark (see `h3gnn datasets`), `pyg:Class/Name`, `synthetic`, a file: "
        ".graphml, .gml, .pt, .npz; or a folder of `h3gnn prepare`. Leave it out with --edges.",
        show_default=False,
    ),
]
EdgesOption = Annotated[
    Path | None, typer.Option("--edges", help="Edges: CSV, TSV or Parquet.", rich_help_panel=PANEL)
]
FeaturesOption = Annotated[
    Path | None,
    typer.Option("--features", help="Features: CSV, TSV, Parquet, NPY or NPZ.", rich_help_panel=PANEL),
]
LabelsOption = Annotated[
    Path | None,
    typer.Option("--labels", help="Classes and splits: CSV, TSV or Parquet.", rich_help_panel=PANEL),
]
SourceColumnOption = Annotated[
    str | None,
    typer.Option(help="Where an edge starts: name, or position from 1.", rich_help_panel=PANEL),
]
TargetColumnOption = Annotated[
    str | None, typer.Option(help="Where an edge ends: name, or position from 1.", rich_help_panel=PANEL)
]
WeightColumnOption = Annotated[
    str | None, typer.Option(help="Positive edge weights: name, or position from 1.", rich_help_panel=PANEL)
]
IdColumnOption = Annotated[
    str | None,
    typer.Option(help="Node ids in the features: name, or position from 1.", rich_help_panel=PANEL),
]
FeatureColumnsOption = Annotated[
    str | None,
    typer.Option(
        help="Columns of features, with commas between; else all but the id.", rich_help_panel=PANEL
    ),
]
LabelIdColumnOption = Annotated[
    str | None, typer.Option(help="Node ids in the labels: name, or position from 1.", rich_help_panel=PANEL)
]
LabelColumnOption = Annotated[
    str | None, typer.Option(help="Classes: name, or position from 1.", rich_help_panel=PANEL)
]
SplitColumnsOption = Annotated[
    str | None,
    typer.Option(help="Columns of train, val, test, with commas between.", rich_help_panel=PANEL),
]
HeaderOption = Annotated[
    bool | None,
    typer.Option(
        "--header/--no-header",
        help="Whether text files start with names; else found out.",
        rich_help_panel=PANEL,
    ),
]
DelimiterOption = Annotated[
    str | None,
    typer.Option(help="Character between cells of text files; else found out.", rich_help_panel=PANEL),
]
UndirectedOption = Annotated[
    bool, typer.Option("--undirected", help="Add the opposite of every edge.", rich_help_panel=PANEL)
]
DataDirOption = Annotated[
    Path | None,
    typer.Option("--data-dir", help="Folder of benchmark files; else H3GNN_DATA and the cache folder."),
]


def load_source(
    graph: str | None = None,
    *,
    edges: Path | None = None,
    features: Path | None = None,
    labels: Path | None = None,
    source_column: str | None = None,
    target_column: str | None = None,
    weight_column: str | None = None,
    id_column: str | None = None,
    feature_columns: str | None = None,
    label_id_column: str | None = None,
    label_column: str | None = None,
    split_columns: str | None = None,
    header: bool | None = None,
    delimiter: str | None = None,
    undirected: bool = False,
    data_dir: Path | None = None,
    in_files: bool = False,
) -> Graph:
    """Load the graph that the options of a command describe; labelled graphs without splits get some.

    With `in_files` a folder of `h3gnn prepare` is opened too, and not loaded.

    Raises:
        InputError: in one sentence, for what does not make a graph.
    """
    from h3gnn.graphs.splits import with_splits

    options: dict[str, Any] = {
        "source_column": source_column,
        "target_column": target_column,
        "weight_column": weight_column,
        "id_column": id_column,
        "feature_columns": _names(feature_columns),
        "label_id_column": label_id_column,
        "label_column": label_column,
        "split_columns": _names(split_columns),
        "header": header,
        "delimiter": delimiter,
        "undirected": undirected or None,
    }
    given = {name: value for name, value in options.items() if value is not None}
    if edges is not None:
        from h3gnn.graphs.files import read_graph

        if graph is not None:
            raise InputError(f"give either the graph {graph} or --edges, not both")
        return with_splits(read_graph(edges, features=features, labels=labels, **given))
    extra = [*given, *(name for name, path in (("features", features), ("labels", labels)) if path)]
    if extra:
        raise InputError(
            f"--{extra[0].replace('_', '-')} belongs to a graph of your own; give --edges as well"
        )
    if graph is not None and (Path(graph) / "graph.json").is_file():
        if not in_files:
            raise InputError(f"{graph} is a graph in files, which `h3gnn fit` alone reads")
        from h3gnn.graphs.mapped import open_mapped

        return cast("Graph", open_mapped(graph))
    if graph is None:
        raise InputError("no graph given: name one (`h3gnn datasets` lists them), or give a file or --edges")
    return with_splits(_named_graph(graph, data_dir))


def _names(listed: str | None) -> list[str] | None:
    return None if listed is None else [name.strip() for name in listed.split(",")]


def _named_graph(graph: str, data_dir: Path | None) -> Graph:
    if graph == "synthetic":
        from h3gnn.graphs.synthetic import mixed_graph

        return mixed_graph()
    from h3gnn.graphs.catalogue import is_benchmark, load
    from h3gnn.graphs.formats import READERS, read_graph_file

    if is_benchmark(graph):
        return load(graph, data_dir)
    path = Path(graph)
    if path.suffix.lower() in READERS or path.exists():
        return read_graph_file(path)
    return load(graph, data_dir)  # which says what names there are
