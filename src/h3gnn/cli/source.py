"""The options by which every command takes a graph in, and the one place that loads it."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection
from dataclasses import dataclass, fields
from functools import wraps
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast, get_type_hints

import typer

from h3gnn.errors import InputError

if TYPE_CHECKING:  # torch takes seconds to import, and --help must not
    from h3gnn.graphs.graph import Graph
    from h3gnn.ondisk.mapped import MappedGraph
    from h3gnn.tables.plan import TablePlan

DataDirOption = Annotated[
    Path | None,
    typer.Option("--data-dir", help="Folder of benchmark files; else H3GNN_DATA and the cache folder."),
]


def _own(text: str, *flags: str) -> Any:
    return typer.Option(*flags, help=text, rich_help_panel="Your own graph")


@dataclass(frozen=True)
class Source:
    """The graph that the options of a command describe; each field is an option."""

    graph: Annotated[
        str | None,
        typer.Argument(
            metavar="GRAPH",
            help="A benchmark (see `h3gnn datasets`), `pyg:Class/Name`, `synthetic`, a file: "
            ".graphml, .gml, .pt, .npz; or a folder of `h3gnn prepare`. Leave it out with --edges.",
            show_default=False,
        ),
    ] = None
    edges: Annotated[
        list[Path] | None,
        _own("Edges: CSV, TSV or Parquet. Again for each further kind of edges.", "--edges"),
    ] = None
    features: Annotated[
        list[Path] | None,
        _own(
            "Features, in columns of any kind: CSV, TSV, Parquet; or NPY, NPZ. "
            "Again for each further kind of nodes.",
            "--features",
        ),
    ] = None
    labels: Annotated[Path | None, _own("Classes and splits: CSV, TSV or Parquet.")] = None
    source_column: Annotated[
        str | None,
        _own("Where an edge starts: name, or position from 1.", "--source-column", "--source"),
    ] = None
    target_column: Annotated[
        str | None, _own("Where an edge ends: name, or position from 1.", "--target-column", "--target")
    ] = None
    weight_column: Annotated[str | None, _own("Positive edge weights: name, or position from 1.")] = None
    id_column: Annotated[str | None, _own("Node ids in the features: name, or position from 1.")] = None
    feature_columns: Annotated[
        str | None,
        _own(
            "Columns of features, with commas between; else all but the id. Also node attributes of GraphML."
        ),
    ] = None
    columns: Annotated[
        list[str] | None,
        _own(
            "What columns hold, where `h3gnn inspect` guessed wrong: `zip=category,opened=date:dmy`. "
            "Kinds: number, boolean, category, date, list, text; identifier leaves out, label is the class.",
            "--columns",
            "--column",
        ),
    ] = None
    text_model: Annotated[
        str | None, _own("Folder of a sentence model that reads text (needs `h3gnn[text]`); else TF-IDF.")
    ] = None
    label_id_column: Annotated[str | None, _own("Node ids in the labels: name, or position from 1.")] = None
    label_column: Annotated[
        str | None,
        _own("Classes: name, or position from 1; without --labels, a column of the features or of GraphML."),
    ] = None
    split_columns: Annotated[str | None, _own("Columns of train, val, test, with commas between.")] = None
    unknown_nodes: Annotated[
        str | None,
        _own("Edges and labels of nodes without features: error, drop, or add such nodes. Default: error."),
    ] = None
    weights: Annotated[
        str | None, _own("Negative, zero or missing weights: error, drop, or absolute. Default: error.")
    ] = None
    repeated: Annotated[
        str | None,
        _own("Edges that stand there again: sum, count, mean, max, first, last, or error. Default: sum."),
    ] = None
    header: Annotated[
        bool | None, _own("Whether text files start with names; else found out.", "--header/--no-header")
    ] = None
    delimiter: Annotated[str | None, _own("Character between cells of text files; else found out.")] = None
    undirected: Annotated[bool, _own("Add the opposite of every edge.", "--undirected")] = False
    data_dir: DataDirOption = None

    @property
    def is_given(self) -> bool:
        """Whether a graph was named at all."""
        return self.graph is not None or bool(self.edges)

    def refuse_alone(self) -> None:
        """Refuse options about a graph where none is named: nobody would look at them."""
        if not self.is_given:
            self._refuse(self.reading())

    def _refuse(self, said: dict[str, Any]) -> None:
        extra = [*said, *(name for name in ("features", "labels") if getattr(self, name))]
        if extra:
            raise InputError(
                f"--{extra[0].replace('_', '-')} belongs to a graph of your own; give --edges as well"
            )

    @property
    def benchmark(self) -> str | None:
        """A benchmark's name as it stands in results; None for a graph that says itself what it is."""
        from h3gnn.graphs.datasets import is_benchmark

        return self.graph.lower() if self.graph is not None and is_benchmark(self.graph) else None

    def load(self, *, in_files: bool = False, plan: TablePlan | None = None) -> Graph:
        """Load the graph; one with labels but without splits gets some.

        With `in_files` a folder of `h3gnn prepare` is opened too, and not loaded. With the `plan` of a fitted
        graph, features are encoded as there.

        Raises:
            InputError: in one sentence, for what does not make a graph.
        """
        from h3gnn.graphs.graph import with_splits

        if self.edges:
            return with_splits(self._own_files(self.edges, plan))
        said = self.reading()
        chosen = {}
        if self.graph is not None and Path(self.graph).suffix.lower() in (".graphml", ".gml"):
            chosen = {"features": said.pop("feature_columns", None), "labels": said.pop("label_column", None)}
        if self.graph is not None and (Path(self.graph) / "graph.json").is_file():
            return cast("Graph", self._in_files(self.graph, in_files))
        self._refuse(said)
        if self.graph is None:
            raise InputError(
                "no graph given: name one (`h3gnn datasets` lists them), or give a file or --edges"
            )
        return with_splits(_named_graph(self.graph, self.data_dir, **chosen))

    def _in_files(self, folder: str, wanted: bool) -> MappedGraph:
        from h3gnn.ondisk.mapped import open_mapped

        if not wanted:
            raise InputError(
                f"{folder} is a graph in files: `h3gnn fit` learns it, `h3gnn embed` and `h3gnn evaluate` "
                "take it beside a run, and this needs a graph in memory"
            )
        if self.labels is not None:
            raise InputError(f"{folder} is a graph in files: give its labels to `h3gnn prepare --labels`")
        self._refuse(self.reading())
        return open_mapped(folder)

    def _own_files(self, edges: list[Path], plan: TablePlan | None) -> Graph:
        from h3gnn.tables.read import read_graph

        if self.graph is not None:
            raise InputError(f"give either the graph {self.graph} or --edges, not both")
        features = self.features or None
        return read_graph(edges, features=features, labels=self.labels, plan=plan, **self.reading())

    def reading(self) -> dict[str, Any]:
        """Return what was said about how to read the files."""
        apart = ("graph", "edges", "features", "labels", "data_dir")
        said = {field.name: getattr(self, field.name) for field in fields(self) if field.name not in apart}
        for name in ("feature_columns", "split_columns"):
            if said[name] is not None:
                said[name] = [one.strip() for one in said[name].split(",")]
        said["undirected"] = self.undirected or None
        said["columns"] = parse_columns(self.columns or []) or None
        return {name: value for name, value in said.items() if value is not None}


def parse_columns(said: list[str]) -> dict[str, str]:
    """Return `zip=category,opened=date:dmy` as a dictionary; a name may hold anything but a comma."""
    kinds = {}
    for one in (part for text in said for part in text.split(",") if part.strip()):
        name, equals, kind = one.rpartition("=")
        if not equals or not name.strip() or not kind.strip():
            raise InputError(f"--columns takes NAME=KIND, with commas between, not {one.strip()!r}")
        kinds[name.strip()] = kind.strip()
    return kinds


def takes_graph(command: Callable[..., None], without: Collection[str] = ()) -> Callable[..., None]:
    """Give a command the options of `Source`, but for those named, in the place of its argument `source`."""
    hints = get_type_hints(Source, include_extras=True)
    options = [
        Parameter(field.name, Parameter.KEYWORD_ONLY, default=field.default, annotation=hints[field.name])
        for field in fields(Source)
        if field.name not in without
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


def _named_graph(graph: str, data_dir: Path | None, **chosen: Any) -> Graph:
    if graph == "synthetic":
        from h3gnn.graphs.synthetic import mixed_graph

        return mixed_graph()
    from h3gnn.graphs.datasets import is_benchmark, load
    from h3gnn.graphs.formats import READERS, read_graph_file

    if is_benchmark(graph):
        return load(graph, data_dir)
    path = Path(graph)
    if path.suffix.lower() in READERS or path.exists():
        with warnings.catch_warnings():
            warnings.simplefilter(
                "ignore"
            )  # what is not used stands in the graph's notes, which commands show
            return read_graph_file(path, **chosen)
    return load(graph, data_dir)  # which says what names there are
