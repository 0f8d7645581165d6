"""Train a model from the command line, write it, and make an interrupted run resumable."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from h3gnn.cli.exit import ENDED, Stopped, code_of_signal
from h3gnn.cli.output import check_ending, is_alone, is_first, say, say_repairs, write_result
from h3gnn.errors import InputError, RankLostError, TrainingStopped

if TYPE_CHECKING:
    from h3gnn.estimator import H3GNN
    from h3gnn.experiments.run import TrainingTime
    from h3gnn.graphs.graph import Graph
    from h3gnn.ondisk.mapped import MappedGraph
    from h3gnn.storage.checkpoint_file import Checkpoints
    from h3gnn.training.history import Recorder
    from h3gnn.training.loop import AfterEpoch, AfterEpochOf


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
    """Train on a graph, write the model and the embeddings, and return the seconds of training."""
    model.set_params(verbose=True)
    if embeddings is not None:
        check_ending(embeddings, graph)
    if is_first():
        say_repairs(graph)
    with resumable(out):  # from the first file of the run on
        if checkpoints is not None and out is not None and is_first():
            from h3gnn.storage.runs import Run, begin_run, has_begun
            from h3gnn.training.resources import pick_device

            pick_device(str(model.device))
            if has_begun(out) or not checkpoints.only_when_stopped:
                begin_run(out, Run(model.get_settings(), graph, checkpoints, embeddings, safe))
        return train_and_write(model, graph, out, embeddings, checkpoints, tensorboard, safe=safe)


def policy(
    out: Path | None, every: int | None, minutes: float | None, keep: int | None
) -> Checkpoints | None:
    """Return the checkpoints that the options ask for; without any, one that is written on a signal."""
    from h3gnn.storage.checkpoint_file import CHECKPOINTS, Checkpoints

    if every is None and minutes is None:
        if keep is not None:
            raise InputError(
                "--keep needs --checkpoint-every or --checkpoint-minutes", code="keep-without-checkpoints"
            )
        if out is None or not is_alone():
            return None
        return Checkpoints(out / CHECKPOINTS, None, None, 1, keep_finished=True, only_when_stopped=True)
    if out is None:
        raise InputError("checkpoints need --out FOLDER", code="checkpoints-need-out")
    asked = Checkpoints(out / CHECKPOINTS, every, minutes, 2 if keep is None else keep, keep_finished=True)
    asked.check()
    return asked


def train_and_write(
    model: H3GNN,
    graph: Graph | MappedGraph,
    out: Path | None,
    embeddings: Path | None,
    checkpoints: Checkpoints | None,
    tensorboard: Path | None,
    *,
    safe: bool,
) -> float:
    """Train, write the result, and return the seconds; of several processes, the first one writes."""
    from h3gnn.experiments.run import TrainingTime

    started = time.perf_counter()
    if not is_first():  # of several processes, the first one writes and speaks
        try:
            model.fit(graph)
        except TrainingStopped as stop:
            raise Stopped(code_of_signal(stop)) from None
        return time.perf_counter() - started
    eta = TrainingTime(model, graph, say)
    with _scalar_log(tensorboard) as log_of:
        try:
            model.fit(graph, checkpoints=checkpoints, after_epoch_of=lambda first: _both(eta, log_of, first))
        except TrainingStopped as stop:
            _save_stopped(model, graph, out, embeddings, checkpoints, stop, safe=safe)
    seconds = time.perf_counter() - started
    _write(model, graph, out, embeddings, safe=safe)
    if checkpoints is not None and out is not None:
        from h3gnn.storage.runs import finish_run

        finish_run(out)
    return seconds


def _both(eta: TrainingTime, log_of: AfterEpochOf | None, first: int) -> AfterEpoch:
    """Return the callback that estimates the remaining time and logs to TensorBoard."""
    from h3gnn.training.loop import call_all

    watched = call_all(eta.of(first), None if log_of is None else log_of(first))
    assert watched is not None
    return watched


def _write(
    model: H3GNN, graph: Graph | MappedGraph, out: Path | None, embeddings: Path | None, *, safe: bool
) -> None:
    if out is not None:
        model.save(out)
        (out / "report.html").unlink(missing_ok=True)  # it describes the previous model
    if embeddings is not None:
        write_result(embeddings, model, graph, safe=safe)


def _save_stopped(
    model: H3GNN,
    graph: Graph | MappedGraph,
    out: Path | None,
    embeddings: Path | None,
    checkpoints: Checkpoints | None,
    stop: TrainingStopped,
    *,
    safe: bool,
) -> NoReturn:
    """Write the model at the time of a signal and what `--resume` needs, then raise again."""
    from h3gnn.storage.runs import Run, begin_run, has_begun

    if checkpoints is not None and out is not None and not has_begun(out):
        begin_run(out, Run(model.get_settings(), graph, checkpoints, embeddings, safe))
    _write(model, graph, out, embeddings, safe=safe)
    kept = " and ".join(str(one) for one in (out, embeddings) if one is not None)
    raise TrainingStopped(stop.progress, stop.signal_number, kept=f"the model is in {kept}") from None


@contextmanager
def _scalar_log(folder: Path | None) -> Iterator[AfterEpochOf | None]:
    """Log the measurements of each epoch and model for TensorBoard."""
    if folder is None:
        yield None
        return
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is a file; --tensorboard needs a folder", code="not-a-folder")
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(str(folder), flush_secs=5) as writer:

        def log_of(first: int) -> AfterEpoch:
            def log(epoch: int, recorder: Recorder) -> None:
                for name, values in recorder.newest().items():
                    for model, value in enumerate(values, start=first):
                        writer.add_scalar(f"{name}/model {model}", value, epoch)

            return log

        yield log_of


def resumable(run: Path | None) -> AbstractContextManager[None]:
    """Tell how to continue a started run if the block ends early; None has no folder."""

    def begun() -> bool:
        return run is not None and any(run.glob("checkpoints/start-*"))

    return saying_how(begun, f"continue with `h3gnn fit --resume {run}`")


@contextmanager
def saying_how(begun: Callable[[], bool], advice: str) -> Iterator[None]:
    """Tell how to continue if the block ends early."""
    try:
        yield
    except Stopped:
        raise
    except TrainingStopped as stop:
        say(f"{stop}; {advice}" if begun() else f"{stop}; with --out FOLDER it could be continued")
        raise Stopped(code_of_signal(stop)) from None
    except KeyboardInterrupt as stop:
        if not begun():
            raise
        say(f"stopped; {advice}")
        raise Stopped(code_of_signal(stop)) from None
    except SystemExit as end:
        if end.code not in ENDED or not begun():
            raise
        say(f"stopped; {advice}")
        raise Stopped(end.code) from None
    except RankLostError as lost:
        raise RankLostError(f"{lost}; {advice}" if begun() and str(lost) else str(lost)) from None
    except OSError as error:
        if not begun():
            raise
        raise InputError(f"cannot read or write a file ({error}); then {advice}") from None
