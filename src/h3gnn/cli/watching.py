"""`h3gnn fit --tensorboard`: every epoch's numbers, while the training runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from h3gnn.errors import InputError

if TYPE_CHECKING:  # torch takes seconds to import, and --help must not
    from h3gnn.training.history import Recorder
    from h3gnn.training.loop import AfterEpoch, AfterEpochOf


def check_tensorboard() -> None:
    """Say, before the work, that TensorBoard is not installed."""
    if find_spec("tensorboard") is None:
        raise InputError("--tensorboard needs TensorBoard: pip install 'h3gnn[tensorboard]'")


@contextmanager
def scalar_log(folder: Path | None) -> Iterator[AfterEpochOf | None]:
    """Write what each epoch measures into a folder of TensorBoard's, one line for each model."""
    if folder is None:
        yield None
        return
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is a file; --tensorboard names a folder")
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(str(folder), flush_secs=5) as writer:

        def watching(first: int) -> AfterEpoch:
            def watch(epoch: int, recorder: Recorder) -> None:
                for name, values in recorder.newest().items():
                    for model, value in enumerate(values, start=first):
                        writer.add_scalar(f"{name}/model {model}", value, epoch)

            return watch

        yield watching
