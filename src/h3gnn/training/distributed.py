"""Several processes as one: each encodes its share of every batch and holds its part of what is long.

Dense weights are the same everywhere. Long arrays (rows of features, and what is learned and remembered of
each edge) are divided: process r of P holds one range of places, and answers those who ask for them.

Started by `torchrun`, which says in the environment who is who; gloo carries the messages between CPUs, NCCL
between GPUs. Gradients are added by one explicit all-reduce of one flat buffer, not by
`DistributedDataParallel`: the fusion block runs backward once per chunk of nodes, and DDP would send after
the first of them; besides, the edge weights are stepped sparsely and must not be in its buckets at all.
"""

from __future__ import annotations

import math
import os
import re
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from itertools import count as counted
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.rendezvous import rendezvous

from h3gnn.errors import STOPPING, RankLostError
from h3gnn.training.exchange import Asked, AskedOfOthers
from h3gnn.training.sampling import Whole

PATIENCE_SECONDS = 600
"""How long a process waits for another before the job ends; `H3GNN_RANK_TIMEOUT` overrides it."""
_fits = counted()
PLACES_AT_A_TIME = 1 << 20
"""Divided arrays come together, and are handed out, in pieces of so many places."""


class Ranks:
    """The one process of an ordinary run: shares nothing, adds nothing, holds everything.

    Attributes:
        rank: which process this is; rank 0 alone writes.
        size: how many there are.
        sent: bytes that this process has handed to the others so far.
    """

    rank, size, sent = 0, 1, 0

    def part(self, count: int, owner: int | None = None) -> range:
        """Return which places of an array of `count` this process holds, or another one."""
        rank = self.rank if owner is None else owner
        return range(count * rank // self.size, count * (rank + 1) // self.size)

    def ask(self, places: Tensor, count: int) -> Asked:
        """Ask for places, which ascend, of a divided array of `count`; all processes ask at the same time."""
        return Asked(places)

    def first_says(self, number: int) -> int:
        """Return the first process's number."""
        return number

    def collect(self, mine: Tensor, whole: Tensor | None, count: int) -> None:
        """Bring the parts of the last axis together in the first process, which alone gives a `whole`."""
        if whole is not None:
            whole.copy_(mine)

    def hand_out(self, whole: Tensor | None, mine: Tensor, count: int) -> None:
        """Give each process its part of the first one's `whole`."""
        if whole is not None:
            mine.copy_(whole)

    def share(self, batch: Whole) -> Whole:
        """Return this process's part of a batch."""
        return np.array_split(batch, self.size)[self.rank]

    def add(self, tensors: Sequence[Tensor]) -> None:
        """Replace each tensor by its sum over all processes."""

    def join(self, values: Tensor) -> Tensor:
        """Put the shares' values `[models, share]` side by side in the order of the batch."""
        return values

    def copy_first(self, tensors: Sequence[Tensor]) -> None:
        """Replace each tensor by that of the first process."""


class ProcessGroup(Ranks):
    """One of several processes that train one model.

    Args:
        store: where the processes find one another.
        device: where messages have to lie: gloo carries those of CPUs, NCCL those of GPUs.
        group: of torch; None is that of all messages but those of `aside`.

    Attributes:
        aside: the same processes with a line of their own, for the thread that reads the next batch's rows;
            on one line its messages and the training's would come in another order in each process. It is
            gloo's on GPUs too, since rows lie in the memory of the host.
    """

    aside: ProcessGroup

    def __init__(self, store: Any, device: torch.device, group: Any = None) -> None:
        self.rank, self.size, self.sent = dist.get_rank(), dist.get_world_size(), 0
        self._store, self._device, self._group = store, device, group

    def add(self, tensors: Sequence[Tensor]) -> None:
        """Add all tensors at once, as one flat buffer."""
        flat = torch.cat([tensor.flatten() for tensor in tensors]).to(self._device)
        with self._together():
            dist.all_reduce(flat, group=self._group)
        self.sent += 2 * flat.numel() * flat.element_size() * (self.size - 1) // self.size
        sizes = [tensor.numel() for tensor in tensors]
        for tensor, total in zip(tensors, torch.split(flat, sizes), strict=True):
            tensor.copy_(total.view_as(tensor))

    def ask(self, places: Tensor, count: int) -> AskedOfOthers:
        """Tell each owner what is asked of it."""
        return AskedOfOthers(self.swap, [self.part(count, owner) for owner in range(self.size)], places)

    def swap(self, rows: Tensor, to: Sequence[int], of: Sequence[int]) -> Tensor:
        """Send each process r its `to[r]` of the rows, in order; return the `of[r]` that each has sent."""
        rows = rows.to(self._device).contiguous()
        got = rows.new_empty(sum(of), *rows.shape[1:])
        with self._together():
            dist.all_to_all_single(got, rows, list(of), list(to), group=self._group)
        row = math.prod(rows.shape[1:]) * rows.element_size()
        self.sent += (len(rows) - to[self.rank]) * row
        return got

    def first_says(self, number: int) -> int:
        """Send the first process's number to all."""
        said = torch.tensor([number])
        self.copy_first([said])
        return int(said)

    def collect(self, mine: Tensor, whole: Tensor | None, count: int) -> None:
        """Bring the parts together, a piece at a time."""
        for owner, piece, place in self._pieces(mine, whole, count):
            self._pass_on(piece, owner, place, 0)

    def hand_out(self, whole: Tensor | None, mine: Tensor, count: int) -> None:
        """Give out the parts, a piece at a time."""
        for owner, piece, place in self._pieces(mine, whole, count):
            self._pass_on(place, 0, piece, owner)

    def _pieces(
        self, mine: Tensor, whole: Tensor | None, count: int
    ) -> Iterator[tuple[int, Tensor | None, Tensor | None]]:
        """Yield whose each piece is, that piece where it is this process's, and its place in the whole."""
        for owner in range(self.size):
            part = self.part(count, owner)
            for first in range(part.start, part.stop, PLACES_AT_A_TIME):
                last = min(first + PLACES_AT_A_TIME, part.stop)
                piece = mine[..., first - part.start : last - part.start] if owner == self.rank else None
                yield owner, piece, None if whole is None else whole[..., first:last]

    def _pass_on(self, source: Tensor | None, sender: int, target: Tensor | None, receiver: int) -> None:
        """Copy one process's tensor into another's; who is neither has nothing to do."""
        if sender == receiver == self.rank:
            assert source is not None
            assert target is not None
            target.copy_(source)
        elif self.rank == sender and source is not None:
            flat = source.contiguous().to(self._device).view(-1).view(torch.uint8)
            with self._together():
                dist.send(flat, receiver, group=self._group)
            self.sent += len(flat)
        elif self.rank == receiver and target is not None:
            size = target.numel() * target.element_size()
            got = torch.empty(size, dtype=torch.uint8, device=self._device)
            with self._together():
                dist.recv(got, sender, group=self._group)
            target.copy_(got.view(target.dtype).view(target.shape))

    def join(self, values: Tensor) -> Tensor:
        """Gather the shares."""
        return torch.cat(self._gather(values.t().contiguous())).t()

    def copy_first(self, tensors: Sequence[Tensor]) -> None:
        """Send the first process's tensors to all."""
        with self._together():
            for tensor in tensors:
                kept = tensor.detach()
                sent = kept.to(self._device).reshape(-1).view(torch.uint8)  # gloo knows no int16, NCCL no CPU
                dist.broadcast(sent, 0, group=self._group)
                kept.copy_(sent.view(kept.dtype).view(kept.shape))

    def _gather(self, mine: Tensor) -> list[Tensor]:
        """Return every process's tensor; they may differ in length, and are padded on their way."""
        lengths = torch.zeros(self.size, dtype=torch.int64, device=mine.device)
        lengths[self.rank] = mine.shape[0]
        with self._together():
            dist.all_reduce(lengths, group=self._group)
            longest = int(lengths.max())
            padded = mine.new_zeros(longest, *mine.shape[1:])
            padded[: mine.shape[0]] = mine
            everyone = [torch.empty_like(padded) for _ in range(self.size)]
            dist.all_gather(everyone, padded, group=self._group)
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
        mine = str(self.rank)
        try:  # the same answer as often as it is asked: two threads of one process may
            first: str = self._store.compare_set("h3gnn/last-words", "", mine).decode()
        except RuntimeError:
            first = mine
        if first != mine:
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
    found, rank, size = next(rendezvous("env://", timeout=wait))
    # what an earlier fit of this process left there is not for this one
    store = dist.PrefixStore(f"h3gnn-{next(_fits)}", found)  # type: ignore[attr-defined]
    backend = "nccl" if device.type == "cuda" else "gloo"
    dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=wait)
    group = ProcessGroup(store, device)
    line = dist.new_group(backend="gloo", timeout=wait)
    group.aside = ProcessGroup(store, torch.device("cpu"), line)
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
