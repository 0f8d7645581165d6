"""`h3gnn fit`: learn embeddings, save the model; `h3gnn prepare`: a graph on disk from tables of any size."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from h3gnn.cli import options
from h3gnn.cli.databases import fit_tables
from h3gnn.cli.options import File, Number, Source, Tables, Text, option, takes_graph
from h3gnn.cli.output import (
    EMBEDDING_ENDINGS,
    echo_json,
    echo_written,
    is_first,
    say,
    say_repairs,
    work_alone,
)
from h3gnn.cli.training import Training, advising, checkpoint_policy, fit_or_continue, resumable
from h3gnn.errors import InputError, check_choice
from h3gnn.resources import progress

if TYPE_CHECKING:
    from h3gnn.estimator import H3GNN
    from h3gnn.graphs.graph import Graph
    from h3gnn.ondisk.mapped import MappedGraph
    from h3gnn.storage.runs import Run


WITH_RESUME = ("resume", "as_json", "tensorboard")
_opt = partial(option, panel="Checkpoints")


@takes_graph
def fit(
    *,
    context: typer.Context,
    source: Source,
    out: Annotated[File, option("Folder for the fitted model.")] = None,
    tables: Tables,
    embeddings: Annotated[File, option("Also write the embeddings: .parquet, .csv or .npy.")] = None,
    store_embedding: Annotated[
        str, option("How the run stores its embedding, which other commands read: float32, float16, none.")
    ] = "float32",
    safe_csv: options.SafeCsvOption = False,
    channels: options.ChannelsOption = None,
    hops: options.HopsOption = None,
    models: options.ModelsOption = None,
    mask: options.MaskOption = None,
    learning_rate: options.LearningRateOption = None,
    batch_size: options.BatchSizeOption = None,
    num_neighbors: options.NumNeighborsOption = None,
    batches: options.BatchesOption = None,
    memory: options.MemoryOption = None,
    device: options.DeviceOption = "auto",
    checkpoint_every: Annotated[Number, _opt("Epochs between checkpoints.")] = None,
    checkpoint_minutes: Annotated[float | None, _opt("Minutes between checkpoints.")] = None,
    keep: Annotated[Number, _opt("Number of checkpoints to keep; default 2.")] = None,
    resume: Annotated[File, _opt("Continue the unfinished run in this folder.", metavar="RUN")] = None,
    tensorboard: Annotated[
        File, option("Log for TensorBoard (needs `h3gnn[tensorboard]`).", metavar="DIR")
    ] = None,
    as_json: options.JsonOption = False,
) -> None:
    """Learn embeddings of a graph without labels, and save the model.

    `h3gnn fit --edges edges.csv --features features.csv --out run/`

    Of several linked tables (a folder, a workbook, a database, a URL, or a schema file), one type is fitted:
    `h3gnn fit --tables data/ --type drivers --out f1/`

    For graphs that do not fit into memory, see `h3gnn prepare`. `torchrun --nproc-per-node 2 -m h3gnn fit …`
    trains with several processes. Ctrl-C ends after the epoch, saves the model and prints how to continue.
    """
    if tensorboard is not None and find_spec("tensorboard") is None:
        raise InputError("--tensorboard needs `pip install 'h3gnn[tensorboard]'`", code="missing-library")
    if resume is not None:
        _resume(context, resume, tensorboard, as_json)
        return
    if out is None and embeddings is None:
        raise InputError("give --out FOLDER for the model, --embeddings FILE, or both", code="no-output")
    options.check_output(embeddings, *EMBEDDING_ENDINGS)
    check_choice("--store-embedding", store_embedding, ("float32", "float16", "none"))
    named = {
        **{"channels": channels, "hops": hops, "n_models": models, "mask": mask, "memory": memory},
        **{"learning_rate": learning_rate, "batch_size": batch_size, "batches": batches},
        "num_neighbors": _parse_num_neighbors(num_neighbors),
    }

    def train(model: H3GNN, graph: Graph | MappedGraph, run: Path | None) -> H3GNN:
        checkpoints = checkpoint_policy(run, checkpoint_every, checkpoint_minutes, keep)
        training = Training(
            model, graph, run, embeddings, checkpoints, tensorboard, safe_csv, store_embedding
        )
        _report(training, training.start() if run == out else fit_or_continue(training), as_json)
        return model

    if source.names_tables and tables.tables is None:
        tables, source = replace(tables, tables=source.graph), replace(source, graph=None)
    if tables.tables is not None:
        work_alone()
        fit_tables(out, tables, device, source, named, train)
        return
    tables.check_unused()
    if out is not None:
        from h3gnn.storage.models import check_folder

        check_folder(out)
    checkpoint_policy(out, checkpoint_every, checkpoint_minutes, keep)  # errors before the work
    named["epochs"] = tables.epochs
    model = options.build_estimator(tables.preset, named, tables.set_, seed=tables.seed, device=device)
    train(model, source.load(in_files=True), out)


def _parse_num_neighbors(text: str | None) -> int | list[int] | None:
    """Return `--fan-out 10,5` as a list and `--fan-out 10` as a number."""
    numbers = None if text is None else options.parse_numbers("--fan-out", text, "10,5")
    return numbers[0] if numbers and len(numbers) == 1 else numbers


def _resume(context: typer.Context, folder: Path, tensorboard: Path | None, as_json: bool) -> None:
    """Continue an unfinished run with the settings of its first command."""
    from h3gnn.estimator import H3GNN

    run = _read_unfinished(context, folder)
    options.check_output(run.embeddings, *EMBEDDING_ENDINGS)
    model = H3GNN.from_settings(run.params)
    how = run.checkpoints, tensorboard, run.safe_csv, run.stored
    training = Training(model, run.graph, folder, run.embeddings, *how)
    with resumable(folder):
        seconds = training.train()
    _report(training, seconds, as_json)


def _read_unfinished(context: typer.Context, folder: Path) -> Run:
    """Return the run to continue; reject other options, which would have no effect."""
    from h3gnn.storage.checkpoint_file import newest_in
    from h3gnn.storage.runs import read_run

    for parameter in context.command.params:
        given = context.get_parameter_source(parameter.name or "")
        if given is not None and given.name == "COMMANDLINE" and parameter.name not in WITH_RESUME:
            name = parameter.opts[0] if parameter.opts[0].startswith("-") else parameter.opts[0].upper()
            message = f"--resume uses the settings of the run: omit {name}"
            raise InputError(message, code="resume-with-options")
    run = read_run(folder)
    checkpoints = Path(run.checkpoints.folder)
    newest, found_in = newest_in(checkpoints)
    if is_first() and newest:
        group = "" if found_in == checkpoints else f" ({found_in.name})"
        say(f"continuing {folder} after epoch {newest} of {run.params['epochs']}{group}")
    elif is_first():
        say(f"{folder} has no checkpoint yet: starting from the first epoch")
    return run


def _report(training: Training, seconds: float, as_json: bool) -> None:
    if not is_first():
        return
    summary, graph = _summary(training, seconds), training.model.graph_
    if as_json:
        echo_json(summary)
        return
    each = ""
    if training.model.n_models > 1 and summary["seconds_per_model"] is not None:
        megabytes = summary["megabytes_per_model"]
        memory = "" if megabytes is None else f" and {megabytes:,.0f} MB"
        each = f", {summary['seconds_per_model']:.1f} s{memory} per model"
    how = "untrained"
    if summary["loss"] is not None:
        how = f"loss {summary['loss']:.4g}, effective rank {summary['effective_rank']:.1f}"
    typer.echo(
        f"{graph.provenance.source}: {graph.num_nodes:,} nodes, {graph.num_edges:,} edges -> "
        f"{summary['dimensions']:,} dimensions in {seconds:.1f} s{each} ({how})"
    )
    echo_written(training.out, training.embeddings)


def _summary(training: Training, seconds: float) -> dict[str, Any]:
    from h3gnn.settings import kept_for
    from h3gnn.storage.runs import made_with

    model, (out, embeddings) = training.model, (training.out, training.embeddings)
    trained = len(model.history_) > 0
    return {
        "nodes": model.graph_.num_nodes,
        "edges": model.graph_.num_edges,
        "dimensions": len(model.get_feature_names_out()),
        "seconds": round(seconds, 3),
        **{name: model.cost_.get(name) for name in ("seconds_per_model", "megabytes_per_model")},
        "loss": float(model.history_.last("loss").mean()) if trained else None,
        "effective_rank": float(model.history_.last("effective_rank").mean()) if trained else None,
        "model": None if out is None else str(out),
        "embeddings": None if embeddings is None else str(embeddings),
        "provenance": model.graph_.provenance.as_dict(),
        "params": kept_for("log", model.get_settings()),
        "seeds": model.seeds_,
        **made_with(),
    }


OF_OTHER_COMMANDS = (
    *("graph", "features", "text_model", "unknown_nodes"),
    *("weights", "repeated", "undirected", "data_dir"),
)


@partial(takes_graph, without=OF_OTHER_COMMANDS)
def prepare(
    *,
    source: Source,
    features: Annotated[File, option("Features: CSV, TSV, Parquet, NPY or NPZ.")] = None,
    out: Annotated[File, option("Folder for the graph.")] = None,
    memory: Annotated[Text, option("Memory for joining and sorting, e.g. 8GB; default: half.")] = None,
    as_json: options.JsonOption = False,
) -> None:
    """Convert tables of any size to a graph on disk, which training reads in parts.

    `h3gnn prepare --edges edges.parquet --features features.parquet --out graph/`, then
    `h3gnn fit graph/ --batch-size 1024 --embeddings embeddings.parquet`

    The folder appears when it is complete. After Ctrl-C, a kill or a full disk, the same command keeps the
    finished stages.
    """
    if not source.edges or features is None or out is None:
        raise InputError("prepare needs --edges, --features and --out", code="prepare-options")
    if len(source.edges) > 1:
        raise InputError("prepare reads one table of edges: concatenate the tables", code="prepare-options")
    if source.labels is None and (source.label_column or source.label_id_column or source.split_columns):
        raise InputError("label and split columns need --labels FILE", code="prepare-options")
    from h3gnn.ondisk.engine import hidden_beside
    from h3gnn.ondisk.prepare import prepare_graph
    from h3gnn.settings import parse_memory

    reading = source.reading()
    if "id_column" in reading:
        reading["node_column"] = reading.pop("id_column")
    wrote = "replaced" if out.exists() else "wrote"
    if hidden_beside(out).exists():
        say(f"resuming {out}")
    with advising(hidden_beside(out).exists, "the same command resumes"), progress() as add_bar:
        bars = {stage: add_bar(stage, 1.0) for stage in ("features", "edges", "sorting")}
        graph = prepare_graph(
            source.edges[0],
            features,
            out,
            labels=source.labels,
            **reading,
            memory=None if memory is None else parse_memory(memory),
            progress=lambda stage, share: bars[stage](completed=share),
        )
    say_repairs(graph)
    if as_json:
        sizes = {"nodes": graph.num_nodes, "edges": graph.num_edges, "features": graph.num_features}
        echo_json({**sizes, "graph": str(out), "sha256": graph.provenance.sha256})
        return
    typer.echo(
        f"{wrote} {out}: {graph.num_nodes:,} nodes, {graph.num_edges:,} edges, "
        f"{graph.num_features:,} features"
    )
