"""Several processes as one: each encodes its share of every batch, and all keep the same model.

Started by `torchrun`, which says in the environment who is who; gloo carries the messages between CPUs, NCCL
between GPUs. Gradients are added by one explicit all-reduce of one flat buffer, not by
`DistributedDataParallel`: the fusion block runs backward once per chunk of nodes, and DDP would send after
the first of them; besides, the edge weights are stepped sparsely and must not be in its buckets at all.
"""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.rendezvous import rendezvous

from h3gnn.errors import STOPPING, RankLostError
from h3gnn.training.sampling import Whole

PATIENCE_SECONDS = 600
"""How long a process waits for another before the job ends; `H3GNN_RANK_TIMEOUT` overrides it."""


class Ranks:
    """The one process of an ordinary run: shares nothing, adds nothing.

    Attributes:
        rank: which process this is; rank 0 alone writes.
        size: how many there are.
        sent: bytes that this process has handed to the others so far.
    """

    rank, size, sent = 0, 1, 0

    def share(self, batch: Whole) -> Whole:
        """Return this process's part of a batch."""
        return np.array_split(batch, self.size)[self.rank]

    def add(self, tensors: Sequence[Tensor]) -> None:
        """Replace each tensor by its sum over all processes."""

    def merge(self, entries: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor]:
        """Join sparse gradients: the entries that any process touched, and the sum over processes at each."""
        return entries, gradient

    def join(self, values: Tensor) -> Tensor:
        """Put the shares' values `[models, share]` side by side in the order of the batch."""
        return values

    def copy_first(self, tensors: Sequence[Tensor]) -> None:
        """Replace each tensor by that of the first process."""


class ProcessGroup(Ranks):
    """One of several processes that train one model."""

    def __init__(self, store: Any, device: torch.device) -> None:
        self.rank, self.size, self.sent = dist.get_rank(), dist.get_world_size(), 0
        self._store, self._device = store, device

    def add(self, tensors: Sequence[Tensor]) -> None:
        """Add all tensors at once, as one flat buffer."""
        flat = torch.cat([tensor.flatten() for tensor in tensors])
        with self._together():
            dist.all_reduce(flat)
        self.sent += 2 * flat.numel() * flat.element_size() * (self.size - 1) // self.size
        sizes = [tensor.numel() for tensor in tensors]
        for tensor, total in zip(tensors, torch.split(flat, sizes), strict=True):
            tensor.copy_(total.view_as(tensor))

    def merge(self, entries: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor]:
        """Gather indices and values, and add what several processes touched."""
        every = torch.cat(self._gather(entries))
        values = torch.cat(self._gather(gradient.t().contiguous()))
        touched, place = torch.unique(every, return_inverse=True)
        total = torch.zeros(len(touched), values.shape[1], dtype=values.dtype, device=values.device)
        return touched, total.index_add_(0, place, values).t().contiguous()

    def join(self, values: Tensor) -> Tensor:
        """Gather the shares."""
        return torch.cat(self._gather(values.t().contiguous())).t()

    def copy_first(self, tensors: Sequence[Tensor]) -> None:
        """Send the first process's tensors to all."""
        with self._together():
            for tensor in tensors:
                kept = tensor.detach()
                sent = kept.to(self._device).reshape(-1).view(torch.uint8)  # gloo knows no int16, NCCL no CPU
                dist.broadcast(sent, 0)
                kept.copy_(sent.view(kept.dtype).view(kept.shape))

    def _gather(self, mine: Tensor) -> list[Tensor]:
        """Return every process's tensor; they may differ in length, and are padded on their way."""
        lengths = torch.zeros(self.size, dtype=torch.int64, device=mine.device)
        lengths[self.rank] = mine.shape[0]
        with self._together():
            dist.all_reduce(lengths)
            longest = int(lengths.max())
            padded = mine.new_zeros(longest, *mine.shape[1:])
            padded[: mine.shape[0]] = mine
            everyone = [torch.empty_like(padded) for _ in range(self.size)]
            dist.all_gather(everyone, padded)
        self.sent += (padded.numel() * padded.element_size() + 8) * (self.size - 1)
        return [one[:length] for one, length in zip(everyone, lengths.tolist(), strict=True)]

    @contextmanager
    def _together(self) -> Iterator[None]:
        try:
            yield
        except RankLostError:  # of a signal that came while this process waited: it has said why
            raise
        except RuntimeError as error:
            reason = re.sub(r"^\[[^\]]*\]", "", " ".join(str(error).split())).strip()[:100]
            raise RankLostError(self._last_words(f"another process no longer answers ({reason})")) from None

    def _last_words(self, reason: str) -> str:
        """Return the sentence for the person; nothing where another survivor has said it already."""
        try:
            first = self._store.add("h3gnn/last-words", 1) == 1
        except RuntimeError:
            first = True
        if not first:
            return ""
        return f"rank {self.rank} of {self.size} stops: {reason}; the job ends and has written no result"

    def stop(self, *_: object) -> None:
        """End on SIGTERM, which torchrun sends to the others when one process has died, and on SIGHUP."""
        raise RankLostError(self._last_words("it was told to end, as when another process has died"))


def launched_together() -> bool:
    """Tell whether torchrun started this process beside others."""
    return int(os.environ.get("WORLD_SIZE", "1")) > 1 and "RANK" in os.environ


@contextmanager
def together(device: torch.device) -> Iterator[Ranks]:
    """Be one of several processes while the block runs, if torchrun started several."""
    if not launched_together():
        yield Ranks()
        return
    if device.type == "cuda":
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    wait = timedelta(seconds=float(os.environ.get("H3GNN_RANK_TIMEOUT", PATIENCE_SECONDS)))
    store, rank, size = next(rendezvous("env://", timeout=wait))
    backend = "nccl" if device.type == "cuda" else "gloo"
    dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=wait)
    group = ProcessGroup(store, device)
    before = {number: signal.getsignal(number) for number in STOPPING if number != signal.SIGINT}
    for number, handler in before.items():
        if handler is not signal.SIG_IGN:
            signal.signal(number, group.stop)
    try:
        yield group
        dist.destroy_process_group()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
