"""A progress bar over epochs that shows the loss and the effective rank."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from h3gnn.training.history import Recorder
from h3gnn.training.loop import Watch

Watching = Callable[[int], Watch]
"""From the number of a group's first model to what is called after each epoch of that group."""


def both(first: Watch | None, second: Watch | None) -> Watch | None:
    """Return what calls both, where there are two."""
    if first is None or second is None:
        return first or second

    def watch(epoch: int, recorder: Recorder) -> None:
        first(epoch, recorder)
        second(epoch, recorder)

    return watch


@contextmanager
def progress_bar(epochs: int, title: str, *, show: bool) -> Iterator[Watch | None]:
    """Show a bar on standard error while the block runs; nothing where that is not a terminal."""
    if not (show and sys.stderr.isatty()):
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("loss {task.fields[loss]}  rank {task.fields[rank]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task(title, total=epochs, loss="–", rank="–")

        def watch(epoch: int, recorder: Recorder) -> None:
            if epoch % 5 == 0 or epoch == epochs - 1:
                loss, rank = recorder.latest("loss"), recorder.latest("effective_rank")
                progress.update(task, completed=epoch + 1, loss=f"{loss:.4g}", rank=f"{rank:.1f}")

        yield watch
