"""`h3gnn fit`: learn embeddings of a graph and save the model."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from h3gnn.cli import settings, stopping
from h3gnn.cli.ending import Stopped, code_of_signal
from h3gnn.cli.output import EMBEDDING_ENDINGS, check_ending, is_first, say, write_result
from h3gnn.cli.source import Source, takes_graph
from h3gnn.cli.stopping import resumable
from h3gnn.errors import InputError, TrainingStopped

if TYPE_CHECKING:  # torch takes seconds to import, and --help must not
    from h3gnn.estimator import H3GNN
    from h3gnn.experiments.run import Outlook
    from h3gnn.graphs.graph import Graph
    from h3gnn.ondisk.mapped import MappedGraph
    from h3gnn.storage.checkpoint_file import Checkpoints
    from h3gnn.training.history import Recorder
    from h3gnn.training.loop import AfterEpoch, AfterEpochOf


@takes_graph
def fit(
    *,
    context: typer.Context,
    source: Source,
    out: Annotated[
        Path | None, typer.Option("--out", help="Folder for the fitted model.", show_default=False)
    ] = None,
    embeddings: Annotated[
        Path | None,
        typer.Option(help="Also write the embeddings: .parquet, .csv or .npy.", show_default=False),
    ] = None,
    safe_csv: settings.SafeCsvOption = False,
    preset: settings.PresetOption = None,
    epochs: settings.EpochsOption = None,
    channels: settings.ChannelsOption = None,
    hops: settings.HopsOption = None,
    models: settings.ModelsOption = None,
    mask: settings.MaskOption = None,
    learning_rate: settings.LearningRateOption = None,
    set_: settings.SetOption = None,
    batch_size: settings.BatchSizeOption = None,
    fan_out: settings.FanOutOption = None,
    batches: settings.BatchesOption = None,
    memory: settings.MemoryOption = None,
    seed: settings.SeedOption = 0,
    device: settings.DeviceOption = "auto",
    checkpoint_every: stopping.EveryOption = None,
    checkpoint_minutes: stopping.MinutesOption = None,
    keep: stopping.KeepOption = None,
    resume: stopping.ResumeOption = None,
    tensorboard: Annotated[
        Path | None,
        typer.Option(
            "--tensorboard",
            metavar="DIR",
            help="Log every epoch for TensorBoard (needs `h3gnn[tensorboard]`).",
            show_default=False,
        ),
    ] = None,
    as_json: settings.JsonOption = False,
) -> None:
    """Learn embeddings of a graph, without labels, and save the model.

    The graph is a benchmark, a file, or edges and features of your own:

    `h3gnn fit --edges edges.csv --features features.csv --out run/`

    Features may be columns of any kind; `h3gnn inspect` with the same options shows what becomes of each.

    Labels, if given, are kept for later evaluation and never looked at in training. The folder can be
    read back with `h3gnn embed run/ --out embeddings.parquet` or `H3GNN.load("run/")`.

    A graph that does not fit into memory is first turned into files with `h3gnn prepare`, then trained with
    `h3gnn fit folder/ --batch-size 1024`. `torchrun --nproc-per-node 2 -m h3gnn fit …` with the same options
    uses several processes.

    A long run can write checkpoints with `--checkpoint-minutes 10`; after a kill,
    `h3gnn fit --resume run/` goes on where it was. Ctrl-C lets the epoch end, keeps the model as it is, and
    says how to go on.

    To see the result: `h3gnn report run/ --open`. To watch the training: `--tensorboard logs/`, and beside it
    `tensorboard --logdir logs/`.
    """
    if tensorboard is not None and find_spec("tensorboard") is None:
        raise InputError("--tensorboard needs TensorBoard: pip install 'h3gnn[tensorboard]'")
    if resume is not None:
        _go_on(context, resume, tensorboard, as_json)
        return
    if out is None and embeddings is None:
        raise InputError("say where the result goes: --out FOLDER for the model, --embeddings FILE, or both")
    if embeddings is not None:
        settings.check_output(embeddings, EMBEDDING_ENDINGS)
    if out is not None:
        from h3gnn.storage.models import check_folder

        check_folder(out)
    checkpoints = stopping.policy(out, checkpoint_every, checkpoint_minutes, keep)
    named = {
        "epochs": epochs,
        "channels": channels,
        "hops": hops,
        "n_models": models,
        "mask": mask,
        "learning_rate": learning_rate,
        "batch_size": batch_size,
        "fan_out": _parse_fan_out(fan_out),
        "batches": batches,
        "memory": memory,
    }
    model = settings.build_estimator(preset, named, set_, seed=seed, device=device)
    loaded = source.load(in_files=True)
    seconds = learn_and_save(model, loaded, out, embeddings, checkpoints, tensorboard, safe=safe_csv)
    _tell(model, seconds, out, embeddings, as_json)


def learn_and_save(
    model: H3GNN,
    graph: Graph | MappedGraph,
    out: Path | None,
    embeddings: Path | None = None,
    checkpoints: Checkpoints | None = None,
    tensorboard: Path | None = None,
    *,
    safe: bool = False,
) -> float:
    """Learn a graph, report its repairs and the time it takes, and write what was learned.

    Returns:
        the seconds that learning took.
    """
    model.set_params(verbose=True)
    if embeddings is not None:
        check_ending(embeddings, graph)
    for repair in graph.provenance.repairs if is_first() else ():
        say(f"note: {repair.message}")
    with resumable(out):  # from the first file of the run on
        if checkpoints is not None and out is not None and is_first():
            from h3gnn.storage.runs import Run, begin_run, has_begun
            from h3gnn.training.resources import pick_device

            pick_device(str(model.device))
            if has_begun(out) or not checkpoints.only_when_stopped:
                begin_run(out, Run(model.get_params(), graph, checkpoints, embeddings, safe))
        return _train_and_write(model, graph, out, embeddings, checkpoints, tensorboard, safe=safe)


def _parse_fan_out(text: str | None) -> int | list[int] | None:
    """Return `--fan-out 10,5` as a list and `--fan-out 10` as a number."""
    numbers = None if text is None else settings.parse_numbers("--fan-out", text, "10,5")
    return numbers[0] if numbers and len(numbers) == 1 else numbers


def _go_on(context: typer.Context, folder: Path, tensorboard: Path | None, as_json: bool) -> None:
    """Take up an unfinished run with all that its first command said."""
    from h3gnn.estimator import H3GNN

    run = stopping.read_unfinished(context, folder)
    if run.embeddings is not None:
        settings.check_output(run.embeddings, EMBEDDING_ENDINGS)
    model = H3GNN(**run.params)
    with resumable(folder):
        seconds = _train_and_write(
            model, run.graph, folder, run.embeddings, run.checkpoints, tensorboard, safe=run.safe_csv
        )
    _tell(model, seconds, folder, run.embeddings, as_json)


def _train_and_write(
    model: H3GNN,
    graph: Graph | MappedGraph,
    out: Path | None,
    embeddings: Path | None,
    checkpoints: Checkpoints | None,
    tensorboard: Path | None,
    *,
    safe: bool,
) -> float:
    from h3gnn.experiments.run import Outlook

    started = time.perf_counter()
    if not is_first():  # of several processes, the first one writes and speaks
        try:
            model.fit(graph)
        except TrainingStopped as stop:
            raise Stopped(code_of_signal(stop)) from None
        return time.perf_counter() - started
    outlook = Outlook(model, say)
    with _scalar_log(tensorboard) as log_of:
        try:
            model.fit(
                graph, checkpoints=checkpoints, after_epoch_of=lambda first: _both(outlook, log_of, first)
            )
        except TrainingStopped as stop:
            _keep_as_it_is(model, graph, out, embeddings, checkpoints, stop, safe=safe)
    seconds = time.perf_counter() - started
    _write(model, graph, out, embeddings, safe=safe)
    if checkpoints is not None and out is not None:
        from h3gnn.storage.runs import finish_run

        finish_run(out)
    return seconds


def _tell(model: H3GNN, seconds: float, out: Path | None, embeddings: Path | None, as_json: bool) -> None:
    if not is_first():
        return
    graph, summary = model.graph_, _summary(model, seconds, out, embeddings)
    if as_json:
        typer.echo(json.dumps(summary, indent=2))
        return
    typer.echo(
        f"{graph.provenance.source}: {graph.num_nodes:,} nodes, {graph.num_edges:,} edges -> "
        f"{summary['dimensions']:,} dimensions in {seconds:.1f} s{_per_model(summary, model.n_models)} "
        f"({_how_it_went(summary)})"
    )
    for written in (out, embeddings):
        if written is not None:
            typer.echo(f"wrote {written}")


def _per_model(summary: dict[str, Any], models: int) -> str:
    """Say what each member of a committee took; of a single model that is told already."""
    seconds, megabytes = summary["seconds_per_model"], summary["megabytes_per_model"]
    if models == 1 or seconds is None:
        return ""
    memory = "" if megabytes is None else f" and {megabytes:,.0f} MB"
    return f", {seconds:.1f} s{memory} per model"


def _both(outlook: Outlook, log_of: AfterEpochOf | None, first: int) -> AfterEpoch:
    """Return what tells how long a group of models will take, and logs it where that was asked for."""
    from h3gnn.training.loop import each

    watched = each(outlook.of(first), None if log_of is None else log_of(first))
    assert watched is not None
    return watched


def _write(
    model: H3GNN, graph: Graph | MappedGraph, out: Path | None, embeddings: Path | None, *, safe: bool
) -> None:
    if out is not None:
        model.save(out)
        (out / "report.html").unlink(missing_ok=True)  # a page of the model before
    if embeddings is not None:
        write_result(embeddings, model, graph, safe=safe)


def _keep_as_it_is(
    model: H3GNN,
    graph: Graph | MappedGraph,
    out: Path | None,
    embeddings: Path | None,
    checkpoints: Checkpoints | None,
    stop: TrainingStopped,
    *,
    safe: bool,
) -> NoReturn:
    """Write what was learned until a signal came, and what `--resume` needs, and go on stopping."""
    from h3gnn.storage.runs import Run, begin_run, has_begun

    if checkpoints is not None and out is not None and not has_begun(out):
        begin_run(out, Run(model.get_params(), graph, checkpoints, embeddings, safe))
    _write(model, graph, out, embeddings, safe=safe)
    kept = " and ".join(str(one) for one in (out, embeddings) if one is not None)
    words = str(stop).removesuffix("; the model is kept as it is")
    raise TrainingStopped(f"{words}; the model as it is was written to {kept}", stop.signal_number) from None


@contextmanager
def _scalar_log(folder: Path | None) -> Iterator[AfterEpochOf | None]:
    """Write what each epoch measures into a folder of TensorBoard's, one line for each model."""
    if folder is None:
        yield None
        return
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is a file; --tensorboard names a folder")
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(str(folder), flush_secs=5) as writer:

        def log_of(first: int) -> AfterEpoch:
            def log(epoch: int, recorder: Recorder) -> None:
                for name, values in recorder.newest().items():
                    for model, value in enumerate(values, start=first):
                        writer.add_scalar(f"{name}/model {model}", value, epoch)

            return log

        yield log_of


def _how_it_went(summary: dict[str, Any]) -> str:
    if summary["loss"] is None:
        return "untrained"
    return f"loss {summary['loss']:.4g}, effective rank {summary['effective_rank']:.1f}"


def _summary(model: Any, seconds: float, out: Path | None, embeddings: Path | None) -> dict[str, Any]:
    from h3gnn.settings import kept_for
    from h3gnn.storage.origin import made_with

    trained = len(model.history_) > 0
    return {
        "nodes": model.graph_.num_nodes,
        "edges": model.graph_.num_edges,
        "dimensions": model.n_models * model.encoder_.out_channels,
        "seconds": round(seconds, 3),
        **{name: model.cost_.get(name) for name in ("seconds_per_model", "megabytes_per_model")},
        "loss": float(model.history_.last("loss").mean()) if trained else None,
        "effective_rank": float(model.history_.last("effective_rank").mean()) if trained else None,
        "model": None if out is None else str(out),
        "embeddings": None if embeddings is None else str(embeddings),
        "provenance": model.graph_.provenance.as_dict(),
        "params": kept_for("log", model.get_params()),
        "seeds": model.seeds_,
        **made_with(),
    }
