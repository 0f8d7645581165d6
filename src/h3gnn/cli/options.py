"""Options that commands share: the graph, several tables, the estimator, the run and new nodes."""

from __future__ import annotations

import csv
import re
import warnings
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass, fields
from difflib import get_close_matches
from functools import partial, wraps
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast, get_type_hints

import typer

from h3gnn.cli.output import is_alone, is_parts, say
from h3gnn.errors import InputError
from h3gnn.settings import LARGEST_SEED, SETTINGS, canonical, check_arguments, parse_value, setting_name
from h3gnn.tuned import NAMED_PRESETS

if TYPE_CHECKING:
    from h3gnn.answers.extend import Extension
    from h3gnn.estimator import H3GNN
    from h3gnn.graphs.graph import Graph
    from h3gnn.graphs.link_columns import LinkColumns
    from h3gnn.tables.plan import TablePlan


def option(text: str, *flags: str, panel: str | None = None, **more: Any) -> Any:
    """Declare an option of a command."""
    return typer.Option(*flags, help=text, rich_help_panel=panel, **more)


def argument(text: str, metavar: str | None = None) -> Any:
    """Declare an argument of a command."""
    return typer.Argument(metavar=metavar, help=text)


Text = str | None
Number = int | None
File = Path | None
UnfinishedOption = Annotated[
    bool, option("Use a run whose training has not ended, as it is.", "--unfinished")
]
RunArgument = Annotated[
    Path, argument("Folder of `h3gnn fit --out`; with --tables also a new one, which is made.", "RUN")
]
EmbeddingsArgument = Annotated[
    Text, argument("Folder of `h3gnn fit --out`, or embeddings in .parquet, .csv or .npy.", "RUN|EMBEDDINGS")
]
TopOption = Annotated[
    Number, option("The k of recall at k; default: the size of the rare class.", panel="Evaluation", min=1)
]
TableOption = Annotated[File, option("Also write the table: .parquet or .csv.", "--out")]
DataDirOption = Annotated[File, option("Folder of benchmark files; default: H3GNN_DATA, then the cache.")]
SafeCsvOption = Annotated[
    bool, option("Quote texts in CSV files that a spreadsheet would evaluate (`=…`).", "--safe-csv")
]
JsonOption = Annotated[bool, option("Print the result as JSON.", "--json")]
_own = partial(option, panel="Your own graph")


@dataclass(frozen=True)
class Source:
    """The graph that the options describe; each field is an option."""

    graph: Annotated[
        Text,
        argument(
            "A benchmark (see `h3gnn datasets`), `pyg:Class/Name`, `synthetic`, a file (.graphml, .gml, .pt, "
            ".npz), or a folder of `h3gnn prepare`; for fit, inspect and compare also several linked tables "
            "(their folder, workbook, database or URL). Omit it with --edges.",
            "GRAPH",
        ),
    ] = None
    edges: Annotated[list[Path] | None, _own("CSV, TSV or Parquet; may be repeated.")] = None
    features: Annotated[list[Path] | None, _own("CSV, TSV, Parquet, NPY or NPZ; may be repeated.")] = None
    labels: Annotated[File, _own("Classes or numbers to predict, and splits: CSV, TSV or Parquet.")] = None
    source_column: Annotated[
        Text, _own("Start of an edge: name, or position from 1.", "--source-column", "--source")
    ] = None
    target_column: Annotated[
        Text, _own("End of an edge: name, or position from 1.", "--target-column", "--target")
    ] = None
    weight_column: Annotated[Text, _own("Positive edge weights: name, or position from 1.")] = None
    id_column: Annotated[Text, _own("Node ids in the features: name, or position from 1.")] = None
    feature_columns: Annotated[Text, _own("Comma-separated; default: all but the id.")] = None
    columns: Annotated[
        list[str] | None,
        _own(
            "Types of columns, where `h3gnn inspect` detects them wrongly: `zip=category,opened=date:dmy`. "
            "Types: number, boolean, category, date, list, text; identifier (ignored), label (a class).",
            "--columns",
            "--column",
        ),
    ] = None
    text_model: Annotated[Text, _own("Folder of a sentence model (needs `h3gnn[text]`); else TF-IDF.")] = None
    label_id_column: Annotated[Text, _own("Node ids in the labels: name, or position from 1.")] = None
    label_column: Annotated[Text, _own("The label, in --labels, features or GraphML: name or position.")] = (
        None
    )
    task: Annotated[
        Text, _own("What the label is: classification, regression, or auto: by its values.", metavar="TASK")
    ] = None
    split_columns: Annotated[Text, _own("Split columns (train, val, test), comma-separated.")] = None
    unknown_nodes: Annotated[Text, _own("Edges and labels of unknown nodes: error, drop or add.")] = None
    weights: Annotated[Text, _own("Non-positive or missing weights: error, drop or absolute.")] = None
    repeated: Annotated[Text, _own("Duplicate edges: sum, count, mean, max, first, last or error.")] = None
    header: Annotated[bool | None, _own("Header of text files; else detected.")] = None
    delimiter: Annotated[Text, _own("Delimiter of text files; default: detected.")] = None
    undirected: Annotated[bool, _own("Add the reverse of every edge.", "--undirected")] = False
    bipartite: Annotated[
        bool | None,
        _own(
            "The ends of edges are two types of nodes, or one; else asked if unclear.",
            "--two-types/--one-type",
        ),
    ] = None
    link_columns: Annotated[
        Text,
        _own("Numbers and columns of each node's edges as its columns: auto, yes or no.", metavar="WHEN"),
    ] = None
    data_dir: DataDirOption = None

    @property
    def is_given(self) -> bool:
        """Whether a graph is given."""
        return self.graph is not None or bool(self.edges)

    @property
    def names_tables(self) -> bool:
        """Whether the graph is given as several linked tables."""
        from h3gnn.tables.sources import is_source

        return self.graph is not None and (is_source(self.graph) or self.graph.endswith(".toml"))

    @property
    def benchmark(self) -> str | None:
        """The name of a benchmark graph; None for other graphs."""
        from h3gnn.graphs.datasets import is_benchmark

        return self.graph.lower() if self.graph is not None and is_benchmark(self.graph) else None

    def check_unused(self) -> None:
        """Reject options of a graph where none is given."""
        if not self.is_given:
            self._reject(self.reading())

    def check_tables(self, *, label: bool = False) -> None:
        """Reject options of a single graph where several tables are meant; `task` is for a `label`."""
        allowed = ("columns", *("task",) * label)
        given = [one for one in ("graph", "edges", "features", "labels", "data_dir") if getattr(self, one)]
        given += [one for one in self.reading() if one not in allowed]
        if given:
            name = self.graph if given[0] == "graph" else f"--{given[0].replace('_', '-')}"
            message = f"{name} is for a single graph: write it into a schema file, or omit it with --tables"
            raise InputError(message, code="option-of-graph")

    def _reject(self, reading: dict[str, Any]) -> None:
        """Reject options that only apply to the user's own files."""
        extra = [*reading, *(name for name in ("features", "labels") if getattr(self, name))]
        if extra:
            raise InputError(f"--{extra[0].replace('_', '-')} needs --edges", code="option-needs-edges")

    def load(
        self, *, in_files: bool = False, plan: TablePlan | None = None, links: LinkColumns | None = None
    ) -> Graph:
        """Load the graph, and draw splits for labels without splits.

        With `in_files`, a folder of `h3gnn prepare` is accepted and memory-mapped. With the `plan` of a
        fitted graph, features are encoded in the same way, and with its `links` edges are.
        """
        from h3gnn.graphs.graph import with_splits
        from h3gnn.graphs.targets import with_task

        if self.edges:
            from h3gnn.tables.read import read_graph

            if self.graph is not None:
                message = f"give either the graph {self.graph} or --edges, not both"
                raise InputError(message, code="two-graphs")
            tables: dict[str, Any] = {"features": self.features or None, "labels": self.labels}
            reading = self.reading()
            if plan is not None or links is not None:
                reading["link_columns"] = False if links is None else links.plan
            return with_splits(read_graph(self.edges, **tables, plan=plan, **reading))
        if self.graph is not None and (Path(self.graph) / "graph.json").is_file():
            return self._open_mapped(self.graph, in_files)
        if self.names_tables:
            message = f"{self.graph} is several linked tables, and a single graph is needed: fit the tables "
            message += f"(`h3gnn fit {self.graph} --type TABLE --out models/`) or compare methods on them"
            raise InputError(message, code="graph-is-tables")
        reading, chosen = self.reading(), {}
        task = reading.pop("task", "auto")
        if self.graph is not None and Path(self.graph).suffix.lower() in (".graphml", ".gml"):
            names = {"features": "feature_columns", "labels": "label_column"}
            chosen = {name: reading.pop(column, None) for name, column in names.items()}
        self._reject(reading)
        if self.graph is None:
            message = "no graph given: name one (`h3gnn datasets` lists them), or give a file or --edges"
            raise InputError(message, code="no-graph")
        return with_splits(with_task(_named_graph(self.graph, self.data_dir, **chosen), task))

    def _open_mapped(self, folder: str, accepted: bool) -> Graph:
        from h3gnn.ondisk.mapped import open_mapped

        if not accepted:
            raise InputError(
                f"{folder} is a graph on disk, which `h3gnn fit`, `embed`, `evaluate` and `predict` "
                "accept; this command needs a graph in memory: give the tables, not the folder",
                code="graph-on-disk",
            )
        if self.labels is not None:
            message = f"{folder} is a graph on disk: give labels to `h3gnn prepare --labels`"
            raise InputError(message, code="graph-on-disk")
        self._reject(self.reading())
        return cast("Graph", open_mapped(folder))

    def reading(self) -> dict[str, Any]:
        """Return the options that describe how to read the files."""
        apart = ("graph", "edges", "features", "labels", "data_dir")
        given = {field.name: getattr(self, field.name) for field in fields(self) if field.name not in apart}
        for name in ("feature_columns", "split_columns"):
            if given[name] is not None:
                listed = next(csv.reader([given[name]], skipinitialspace=True))
                given[name] = [one.strip() for one in listed]
        given["undirected"] = self.undirected or None
        given["columns"] = parse_columns(self.columns or []) or None
        return {name: value for name, value in given.items() if value is not None}


def parse_columns(texts: list[str]) -> dict[str, str]:
    """Parse `zip=category,opened=date:dmy`; a part without type belongs to the name that follows."""
    kinds, parts = {}, [part for text in texts for part in re.findall(r".*?=[^=,]*(?:,|$)|.+", text)]
    for one in (part.removesuffix(",") for part in parts if part.strip(" ,")):
        name, equals, kind = one.rpartition("=")
        if not equals or not name.strip() or not kind.strip():
            raise InputError(f"--columns takes NAME=TYPE,…, not {one.strip()!r}", code="value-invalid")
        kinds[name.strip()] = kind.strip()
    return kinds


def takes_graph(command: Callable[..., None], without: Collection[str] = ()) -> Callable[..., None]:
    """Replace the arguments of a command that are a `Source`, `Tables` or `Use` by their options.

    An option that the command has, too, is given to both.
    """
    own = signature(command, eval_str=True).parameters
    groups = {name: one.annotation for name, one in own.items() if one.annotation in (Source, Tables, Use)}
    shown: list[Parameter] = []
    for name, parameter in own.items():
        if name in groups:
            hints = get_type_hints(groups[name], include_extras=True)
            shown += [
                Parameter(one.name, Parameter.KEYWORD_ONLY, default=one.default, annotation=hints[one.name])
                for one in fields(groups[name])
                if one.name not in (*without, *own.keys() - groups.keys())
            ]
        else:
            shown.append(parameter.replace(kind=Parameter.KEYWORD_ONLY))

    @wraps(command)
    def run(**given: Any) -> None:
        described = {
            name: group(**{one.name: given[one.name] for one in fields(group) if one.name in given})
            for name, group in groups.items()
        }
        rest = {name: value for name, value in given.items() if name in own.keys() - groups.keys()}
        command(**rest, **described)

    run.__signature__ = Signature(shown)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in shown}
    return run


def _named_graph(graph: str, data_dir: Path | None, **chosen: Any) -> Graph:
    if graph == "synthetic":
        from h3gnn.graphs.synthetic import mixed_graph

        return mixed_graph()
    from h3gnn.graphs.datasets import is_benchmark, load
    from h3gnn.graphs.formats import READERS, read_graph_file

    path = Path(graph)
    if not is_benchmark(graph) and (path.suffix.lower() in READERS or path.exists()):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the commands show the repairs of the graph, which say the same
            return read_graph_file(path, **chosen)
    return load(graph, data_dir)  # an unknown name is an error that lists the known ones


METHOD = "Method"
LARGE = "Large graphs"


def _setting(name: str, panel: str | None = None, *flags: str, **more: Any) -> Any:
    """Declare the option of an argument of `H3GNN`."""
    setting = SETTINGS[name]
    words = f": {', '.join(setting.words)}." if setting.words else "."
    return option(setting.help.removesuffix(".") + words, *flags, panel=panel, **more)


_PRESETS = ", ".join(f"`{name}`" for name in NAMED_PRESETS)
PresetOption = Annotated[
    Text, option(f"{_PRESETS}, a benchmark such as `texas`, or a file of `h3gnn tune`.", panel=METHOD)
]
EpochsOption = Annotated[Number, _setting("epochs", METHOD)]
ChannelsOption = Annotated[Number, _setting("channels", METHOD)]
HopsOption = Annotated[Number, _setting("hops", METHOD)]
ModelsOption = Annotated[Number, _setting("n_models", METHOD, "--models")]
MaskOption = Annotated[Text, _setting("mask", METHOD)]
LearningRateOption = Annotated[float | None, _setting("learning_rate", METHOD)]
_SET = "Any other setting, e.g. `encoder.heads=2`; may be repeated."
SetOption = Annotated[list[str] | None, option(_SET, "--set", panel=METHOD, metavar="NAME=VALUE")]
BatchSizeOption = Annotated[Number, _setting("batch_size", LARGE)]
NumNeighborsOption = Annotated[Text, _setting("num_neighbors", LARGE, "--num-neighbors", "--fan-out")]
BatchesOption = Annotated[Text, _setting("batches", LARGE)]
MemoryOption = Annotated[Text, _setting("memory", LARGE)]
SeedOption = Annotated[int, _setting("random_state", min=0, max=LARGEST_SEED)]
DeviceOption = Annotated[str, _setting("device")]


_tables = partial(option, panel="Several tables")


@dataclass(frozen=True)
class Tables:
    """Several linked tables, and which of their models is meant; each field is an option."""

    tables: Annotated[
        Text,
        _tables(
            "Folder of tables, workbook, SQLite or DuckDB file, PostgreSQL URL, or schema file of "
            "`h3gnn inspect --write`; needed once, for a new folder. What is not fitted yet is fitted.",
            metavar="SOURCE",
        ),
    ] = None
    type: Annotated[
        Text, _tables("The rows that are meant: a table or node type, or `TABLE.COLUMN` that is predicted.")
    ] = None
    accept: Annotated[
        Text, _tables("Accept the proposals of these questions of `h3gnn inspect`: 1,3 or all.")
    ] = None
    as_of: Annotated[Text, _tables("Use the rows up to this date only.", metavar="DATE")] = None
    label_time: Annotated[
        Text,
        _tables(
            "The predicted values are of the time of their row, so that later rows do not count (row), or of "
            "today (now).",
            metavar="row|now",
        ),
    ] = None
    preset: PresetOption = None
    epochs: EpochsOption = None
    set_: SetOption = None
    seed: SeedOption = 0

    def check_unused(self, run: Path | None = None) -> None:
        """Reject options of several tables where a single graph is meant."""
        given = [name for name in ("type", "accept", "as_of", "label_time") if getattr(self, name)]
        if given:
            raise needs_tables(given[0], run)

    def check_settings(self, run: Path) -> None:
        """Reject settings of a single graph's model, which is fitted already."""
        from h3gnn.storage.models import is_database

        given = self.preset or self.set_ or self.epochs is not None
        if given and self.tables is None and run.exists() and not is_database(run):
            message = f"{run} is a fitted model; --preset, --epochs and --set are for a new `h3gnn fit`"
            raise InputError(message, code="settings-of-fitted-run")


def needs_tables(name: str, run: Path | None) -> InputError:
    """Return the error of an option of several tables, of a run that has none or is not there yet."""
    if run is not None and not run.exists():
        message = f"there is no folder {run} yet: give the tables, too (--tables SOURCE)"
        return InputError(message, code="option-needs-tables")
    flag = name.replace("_", "-")
    return InputError(f"--{flag} needs several tables (--tables SOURCE)", code="option-needs-tables")


def build_estimator(
    preset: str | None, named: dict[str, Any], assignments: list[str] | None, *, seed: int, device: str
) -> H3GNN:
    """Return an estimator from the preset, then the named options, then `--set`."""
    from h3gnn.estimator import H3GNN

    given = {"device": device, **given_settings(named, assignments), "random_state": seed}
    model = H3GNN.from_settings(given) if preset is None else H3GNN.from_preset(preset, **given)
    check_arguments(model.get_settings())
    return model


def given_settings(named: dict[str, Any], assignments: list[str] | None) -> dict[str, Any]:
    """Return the settings given by named options and then by `--set`, as a flat dict."""
    given = canonical({name: value for name, value in named.items() if value is not None})
    for text in assignments or []:
        name, value = split_assignment("--set", text, "NAME=VALUE")
        if name == "random_state":
            raise InputError("--set random_state: use --seed (or --seeds)", code="value-invalid")
        given[name] = parse_value(name, value)
    return given


def say_fixed(fixed: Collection[str], ranges: Iterable[str]) -> None:
    """Report the settings that a search does not vary, since they are given."""
    held = [name for name in dict.fromkeys(ranges) if name in fixed]
    if held:
        say(f"fixed in all trials: {', '.join(held)}")


def split_assignment(flag: str, text: str, form: str) -> tuple[str, str]:
    """Return the name of a setting and the text assigned to it; unknown names are rejected."""
    given, equals, value = text.partition("=")
    if not equals:
        raise InputError(f"{flag} {text}: write {form}", code="value-invalid")
    name = setting_name(given)
    if name is None:
        near = get_close_matches(given.rpartition(".")[2], SETTINGS, 1, cutoff=0.7)
        meant = f"; did you mean {near[0]}?" if near else "; `help(h3gnn.H3GNN)` lists them"
        raise InputError(f"{flag} {given.strip()}: H3GNN has no such argument{meant}", code="unknown-setting")
    return name, value


def check_output(path: Path | None, *endings: str) -> None:
    """Reject a path that could not be written, before the work; accept None."""
    if path is None:
        return
    if path.suffix.lower() not in endings:
        raise InputError(f"{path}: the file must end in one of {', '.join(endings)}", code="file-ending")
    if not path.parent.is_dir():
        raise InputError(f"{path}: the folder {path.parent} does not exist", code="no-such-folder")
    if path.is_dir() and (is_alone() or not is_parts(path)):
        raise InputError(f"{path} is a folder; give a file", code="is-a-folder")
    if path.suffix.lower() in (".npy", ".faiss"):
        from h3gnn.answers.export import check_ids_file

        check_ids_file(path)


def check_table(path: Path | None) -> None:
    """Reject a table that could not be written, before the work."""
    check_output(path, ".parquet", ".csv")


def parse_numbers(flag: str, text: str, example: str) -> list[int]:
    """Return `10,5` as numbers."""
    try:
        return [int(one) for one in text.split(",")]
    except ValueError:
        raise InputError(f"{flag} {text}: give integers, e.g. {example}", code="value-invalid") from None


RESUME = "continue with `h3gnn fit --resume"
NEW = "New nodes"
NewFeaturesOption = Annotated[
    File, option("New nodes: ids and features, with the columns of the fit.", panel=NEW)
]
NewEdgesOption = Annotated[
    list[str] | None,
    option(
        "Edges of the new nodes, by id: CSV, TSV or Parquet; may be repeated. `calls=FILE` names the fitted "
        "table that they continue.",
        panel=NEW,
    ),
]

NewTablesOption = Annotated[
    Text,
    option(
        "Of several tables: the rows that were added, in tables of the same names.",
        metavar="SOURCE",
        panel=NEW,
    ),
]


def open_run(run: Path, device: str, *, unfinished: bool = False, in_files: bool = False) -> H3GNN:
    """Load the model of a run, whose training must have ended, unless `unfinished`.

    Its graph must be in memory, unless `in_files`.
    """
    from h3gnn.estimator import H3GNN
    from h3gnn.storage.models import DESCRIPTION, is_database
    from h3gnn.storage.runs import has_begun
    from h3gnn.training.history import UnfinishedWarning
    from h3gnn.training.resources import pick_device

    pick_device(device)
    if is_database(run):
        message = f"{run} holds the models of several tables: name one of their folders, as in {run}/TYPE"
        raise InputError(message, code="type-missing")
    begun = has_begun(run)
    if begun and not (run / DESCRIPTION).exists():
        raise InputError(f"{run} is unfinished and has no model yet: {RESUME} {run}`", code="unfinished-run")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UnfinishedWarning)
        model = H3GNN.load(run).set_params(device=device)
    done = model.history_.completed
    if begun or done < model.epochs:
        state = f"{run} is unfinished (its model has {done:,} of {model.epochs:,} epochs)"
        state = f"{state}: {RESUME} {run}`" if begun else f"{state}: fit it again"
        if not unfinished:
            raise InputError(f"{state}, or add --unfinished to use it as it is", code="unfinished-run")
        say(f"note: {state}")
    stored = model.inference_.stored
    if stored is not None and stored.dtype == "float16":
        say(f"note: {run} stores its embedding in float16, which rounds to three digits")
    if model.graph_.in_memory:
        keep_embedding(model, run)
    elif not in_files:
        raise InputError(
            f"{run} is a run on a graph on disk, and this command needs a graph in memory; write its "
            f"embeddings with `h3gnn embed {run} --out embeddings.parquet`",
            code="graph-on-disk",
        )
    return model


LARGE_EMBEDDING = 4 * 10**9
"""Beyond this number of bytes, a command reports that it stores the embedding of a run."""


def keep_embedding(model: H3GNN, run: Path) -> None:
    """Store the embedding of a run that has none yet, where its folder can be written."""
    from h3gnn.resources import format_bytes

    if model.inference_.stored is None and is_alone():
        size = 4 * model.graph_.num_nodes * model.inference_.width
        if size > LARGE_EMBEDDING:
            say(f"storing the embedding in {run} ({format_bytes(size)})")
        with suppress(OSError):
            model.store_embedding(run)


def keep_index(model: H3GNN, run: Path) -> None:
    """Store the index of neighbours that was built for a run, where its folder can be written."""
    from h3gnn.storage.runs import store_index

    index, stored = model.inference_.index, model.inference_.stored
    if index is not None and stored is not None and stored.rows is not None and stored.index is None:
        with suppress(OSError):
            store_index(run, index.to_bytes())


@dataclass(frozen=True)
class Use:
    """How a command opens a run and writes what it finds; each field is an option."""

    safe_csv: SafeCsvOption = False
    unfinished: UnfinishedOption = False
    device: DeviceOption = "auto"
    as_json: JsonOption = False

    def open(self, run: Path, *, in_files: bool = False) -> H3GNN:
        """Load the model of a run; see `open_run`."""
        return open_run(run, self.device, unfinished=self.unfinished, in_files=in_files)


def extend_run(
    model: H3GNN,
    features: Path | None,
    edges: list[str] | None,
    reading: dict[str, Any],
    *,
    refresh: bool = False,
) -> Extension:
    """Read new nodes from files and embed them; report how they differ from the fitted tables."""
    from h3gnn.answers.extend import read_new_nodes

    if features is None:
        raise InputError("--new-edges needs --new-features", code="new-nodes-incomplete")
    if not edges and not model.is_table_:
        raise InputError("--new-features needs --new-edges", code="new-nodes-incomplete")
    files = [_table_and_file(text) for text in edges or ()]
    extension = model.extend(*read_new_nodes(model.graph_, features, files, reading), refresh=refresh)
    say_notes(extension)
    return extension


def say_notes(extension: Extension) -> None:
    """Report how new nodes were read, and how they differ from the fitted ones."""
    for note in extension.notes:
        say(f"note: {note}")


def _table_and_file(text: str) -> tuple[str | None, Path]:
    """Parse `calls=today.csv`, or the name of a file alone."""
    table, equals, file = text.partition("=")
    return (table, Path(file)) if equals and not Path(text).exists() else (None, Path(text))
