"""Train a model from the command line, write it, and make an interrupted run resumable."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from h3gnn.cli.exit import ENDED, Stopped, code_of_signal
from h3gnn.cli.output import (
    check_ending,
    is_alone,
    is_first,
    say,
    say_repairs,
    work_alone,
    write_result,
)
from h3gnn.errors import CheckpointError, InputError, RankLostError, TrainingStopped

if TYPE_CHECKING:
    from h3gnn.estimator import H3GNN
    from h3gnn.graphs.graph import Graph
    from h3gnn.ondisk.mapped import MappedGraph
    from h3gnn.storage.checkpoint_file import Checkpoints
    from h3gnn.training.history import Recorder
    from h3gnn.training.loop import AfterEpoch, AfterEpochOf


MANY_NODES = 1_000_000
"""Beyond this number of nodes, the size of the embedding is printed before it is computed."""


def checkpoint_policy(
    out: Path | None, every: int | None = None, minutes: float | None = None, keep: int | None = None
) -> Checkpoints | None:
    """Return the checkpoints that the options describe; by default, one that is written on a signal."""
    from h3gnn.storage.checkpoint_file import CHECKPOINTS, Checkpoints

    if every is None and minutes is None:
        if keep is not None:
            message = "--keep needs --checkpoint-every or --checkpoint-minutes"
            raise InputError(message, code="keep-without-checkpoints")
        if out is None or not is_alone():
            return None
        return Checkpoints(out / CHECKPOINTS, None, None, 1, keep_finished=True, only_when_stopped=True)
    if out is None:
        raise InputError("checkpoints need --out FOLDER", code="checkpoints-need-out")
    asked = Checkpoints(out / CHECKPOINTS, every, minutes, 2 if keep is None else keep, keep_finished=True)
    asked.check()
    return asked


@dataclass(frozen=True)
class Training:
    """A training of the command line: the model, its graph, and the files to write.

    Of several processes, only the first one writes and prints.
    """

    model: H3GNN
    graph: Graph | MappedGraph
    out: Path | None
    embeddings: Path | None = None
    checkpoints: Checkpoints | None = None
    tensorboard: Path | None = None
    safe: bool = False
    stored: str = "float32"
    """How the run stores its embedding; see `H3GNN.store_embedding`."""
    repeats: bool = False
    """Whether the same command continues the training."""

    def start(self) -> float:
        """Train from the first epoch, or from the checkpoint of an earlier call; return the seconds."""
        self.model.set_params(verbose=True)
        if self.embeddings is not None:
            check_ending(self.embeddings, self.graph)
        if is_first():
            say_repairs(self.graph)
            self._say_size()
        with resumable(self.out, repeats=self.repeats):  # from the first file of the run on
            if self.checkpoints is not None and self.out is not None and is_first():
                from h3gnn.storage.runs import has_begun
                from h3gnn.training.resources import pick_device

                pick_device(str(self.model.device))
                if has_begun(self.out) or not self.checkpoints.only_when_stopped:
                    self._begin(self.out, self.checkpoints)
            return self.train()

    def _say_size(self) -> None:
        """Print how much a large embedding will take, and how to write less."""
        from h3gnn.preprocessing import expected_width
        from h3gnn.resources import format_bytes
        from h3gnn.settings import flatten
        from h3gnn.tuned import preset

        nodes, settings = self.graph.num_nodes, self.model.get_settings()
        stored = 0 if self.out is None else {"float32": 4, "float16": 2, "none": 0}[self.stored]
        each = stored + 4 * (self.embeddings is not None)
        if nodes <= MANY_NODES or not each:
            return
        width, few = expected_width(settings, self.graph), 256
        quick = expected_width({**settings, **flatten(preset("quick"))}, self.graph)
        ways = [f"`--set dimensions={few}` ({format_bytes(each * nodes * few)})"] if width > few else []
        ways += [f"`--preset quick` ({format_bytes(each * nodes * quick)})"] if quick < width else []
        ways += ["`--store-embedding float16` (half of the run's)"] if stored == 4 else []
        ways += ["`--store-embedding none`"] if stored else []
        size = format_bytes(each * nodes * width)
        say(
            f"note: {nodes:,} nodes × {width:,} columns of the embedding take {size}; less: {', '.join(ways)}"
        )

    def _begin(self, out: Path, checkpoints: Checkpoints) -> None:
        """Store what `--resume` needs."""
        from h3gnn.storage.runs import Run, begin_run

        settings = self.model.get_settings()
        begin_run(out, Run(settings, self.graph, checkpoints, self.embeddings, self.safe, self.stored))

    def train(self) -> float:
        """Train, write the result, and return the seconds."""
        from h3gnn.experiments.run import TrainingTime
        from h3gnn.storage.runs import finish_run
        from h3gnn.training.loop import call_all

        started = time.perf_counter()
        if not is_first():
            try:
                self.model.fit(self.graph)
            except TrainingStopped as stop:
                raise Stopped(code_of_signal(stop)) from None
            if self.embeddings is not None and not self.graph.in_memory:
                write_result(self.embeddings, self.model, self.graph)
            return time.perf_counter() - started
        eta = TrainingTime(self.model, self.graph, lambda words: say(f"training: {words}"))
        with _scalar_log(self.tensorboard) as log_of:

            def after_epoch_of(first: int) -> AfterEpoch:
                callback = call_all(eta.of(first), None if log_of is None else log_of(first))
                assert callback is not None
                return callback

            try:
                self.model.fit(self.graph, checkpoints=self.checkpoints, after_epoch_of=after_epoch_of)
            except TrainingStopped as stop:
                self._save_stopped(stop)
        seconds = time.perf_counter() - started
        self.write()
        if self.checkpoints is not None and self.out is not None:
            finish_run(self.out)
        return seconds

    def write(self, *, stopped: bool = False) -> None:
        """Write the model and the embeddings; that of a graph on disk takes a while, where it may wait."""
        if self.out is not None:
            waits = not self.graph.in_memory and self.stored != "none" and (stopped or not is_alone())
            self.model.save(self.out, embedding="later" if waits else self.stored)
            (self.out / "report.html").unlink(missing_ok=True)  # it describes the previous model
        if self.embeddings is not None:
            write_result(self.embeddings, self.model, self.graph, safe=self.safe)

    def _save_stopped(self, stop: TrainingStopped) -> NoReturn:
        """Write the model at the time of a signal and what `--resume` needs, then raise again."""
        from h3gnn.storage.runs import has_begun

        work_alone()  # the others end without writing
        if self.checkpoints is not None and self.out is not None and not has_begun(self.out):
            self._begin(self.out, self.checkpoints)
        self.write(stopped=True)
        kept = " and ".join(str(one) for one in (self.out, self.embeddings) if one is not None)
        raise TrainingStopped(stop.progress, stop.signal_number, kept=f"the model is in {kept}") from None


def fit_or_continue(training: Training) -> float:
    """Train, or continue where the same command ended earlier; return the seconds."""
    from h3gnn.storage.runs import has_begun, read_run

    run, training = training.out, replace(training, repeats=True)
    if run is not None and has_begun(run):
        say(f"continuing the unfinished run in {run}")
        with suppress(CheckpointError):  # where its start is damaged, the tables and options replace it
            old = read_run(run)
            training = replace(
                training,
                embeddings=old.embeddings,
                checkpoints=old.checkpoints,
                safe=old.safe_csv,
                stored=old.stored,
            )
    return training.start()


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


def resumable(run: Path | None, *, repeats: bool = False) -> AbstractContextManager[None]:
    """Print how to continue a started run if the block ends early; None has no folder."""

    def begun() -> bool:
        return run is not None and any(run.glob("checkpoints/start-*"))

    how = "repeat the command to continue, or continue with" if repeats else "continue with"
    return advising(begun, f"{how} `h3gnn fit --resume {run}`")


@contextmanager
def advising(begun: Callable[[], bool], advice: str) -> Iterator[None]:
    """Print how to continue if the block ends early and something can be continued."""
    try:
        yield
    except Stopped:
        raise
    except TrainingStopped as stop:
        say(f"{stop}; {advice}" if begun() else f"{stop}; with --out FOLDER it could be continued")
        raise Stopped(code_of_signal(stop)) from None
    except (KeyboardInterrupt, SystemExit) as end:
        code = end.code if isinstance(end, SystemExit) else code_of_signal(end)
        if code not in ENDED or not begun():
            raise
        say(f"stopped; {advice}")
        raise Stopped(code) from None
    except RankLostError as lost:
        raise RankLostError(f"{lost}; {advice}" if begun() and str(lost) else str(lost)) from None
    except OSError as error:
        if not begun():
            raise
        raise InputError(f"cannot read or write a file ({error}); then {advice}", code="file") from None
