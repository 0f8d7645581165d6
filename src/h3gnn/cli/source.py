"""The options by which every command takes a graph in, and the one place that loads it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import wraps
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast, get_type_hints

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


@dataclass(frozen=True)
class Source:
    """The graph that the options of a command describe; each field is an option."""

    graph: GraphArgument = None
    edges: EdgesOption = None
    features: FeaturesOption = None
    labels: LabelsOption = None
    source_column: SourceColumnOption = None
    target_column: TargetColumnOption = None
    weight_column: WeightColumnOption = None
    id_column: IdColumnOption = None
    feature_columns: FeatureColumnsOption = None
    label_id_column: LabelIdColumnOption = None
    label_column: LabelColumnOption = None
    split_columns: SplitColumnsOption = None
    header: HeaderOption = None
    delimiter: DelimiterOption = None
    undirected: UndirectedOption = False
    data_dir: DataDirOption = None

    @property
    def is_given(self) -> bool:
        """Whether a graph was named at all."""
        return self.graph is not None or self.edges is not None

    @property
    def benchmark(self) -> str | None:
        """A benchmark's name as it stands in results; None for a graph that says itself what it is."""
        from h3gnn.graphs.catalogue import is_benchmark

        return self.graph.lower() if self.graph is not None and is_benchmark(self.graph) else None

    def load(self, *, in_files: bool = False) -> Graph:
        """Load the graph; one with labels but without splits gets some.

        With `in_files` a folder of `h3gnn prepare` is opened too, and not loaded.

        Raises:
            InputError: in one sentence, for what does not make a graph.
        """
        from h3gnn.graphs.graph import with_splits

        if self.edges is not None:
            return with_splits(self._own_files(self.edges))
        extra = [*self._reading(), *(name for name in ("features", "labels") if getattr(self, name))]
        if extra:
            raise InputError(
                f"--{extra[0].replace('_', '-')} belongs to a graph of your own; give --edges as well"
            )
        if self.graph is None:
            raise InputError(
                "no graph given: name one (`h3gnn datasets` lists them), or give a file or --edges"
            )
        if (Path(self.graph) / "graph.json").is_file():
            if not in_files:
                raise InputError(f"{self.graph} is a graph in files, which `h3gnn fit` alone reads")
            from h3gnn.graphs.mapped import open_mapped

            return cast("Graph", open_mapped(self.graph))
        return with_splits(_named_graph(self.graph, self.data_dir))

    def _own_files(self, edges: Path) -> Graph:
        from h3gnn.graphs.files import read_graph

        if self.graph is not None:
            raise InputError(f"give either the graph {self.graph} or --edges, not both")
        return read_graph(edges, features=self.features, labels=self.labels, **self._reading())

    def _reading(self) -> dict[str, Any]:
        """Return what was said about how to read the files."""
        options: dict[str, Any] = {
            "source_column": self.source_column,
            "target_column": self.target_column,
            "weight_column": self.weight_column,
            "id_column": self.id_column,
            "feature_columns": _names(self.feature_columns),
            "label_id_column": self.label_id_column,
            "label_column": self.label_column,
            "split_columns": _names(self.split_columns),
            "header": self.header,
            "delimiter": self.delimiter,
            "undirected": self.undirected or None,
        }
        return {name: value for name, value in options.items() if value is not None}


def takes_graph(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options of `Source`, in the place of its argument `source`."""
    hints = get_type_hints(Source, include_extras=True)
    options = [
        Parameter(field.name, Parameter.KEYWORD_ONLY, default=field.default, annotation=hints[field.name])
        for field in fields(Source)
    ]
    shown: list[Parameter] = []
    for parameter in signature(command, eval_str=True).parameters.values():
        shown += options if parameter.name == "source" else [parameter.replace(kind=Parameter.KEYWORD_ONLY)]

    @wraps(command)
    def run(**given: Any) -> None:
        described = Source(**{option.name: given.pop(option.name) for option in options})
        command(**given, source=described)

    run.__signature__ = Signature(shown)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in shown}
    return run


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
