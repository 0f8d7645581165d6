"""Data-parallel training: each process encodes its share of every batch and holds one shard of the features.

`torchrun` starts the processes; gloo connects CPUs and NCCL connects GPUs. Gradients are added by one
explicit all-reduce of one flat buffer, not by `DistributedDataParallel`: the fusion block runs backward once
per chunk of nodes, and DDP would send after the first of them.
"""

from __future__ import annotations

import math
import mmap
import os
import re
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any, cast
from uuid import uuid4

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.rendezvous import rendezvous

from h3gnn.encoder.encode import GraphRows, Sharing, gather_rows
from h3gnn.encoder.sparse import csr_tensor
from h3gnn.encoder.support import Support
from h3gnn.errors import STOPPING, InputError, RankLostError
from h3gnn.storage.atomic import make_temporary
from h3gnn.training.sampling import NodeIds

PATIENCE_SECONDS = 600
"""Timeout for messages between processes; `H3GNN_RANK_TIMEOUT` overrides it."""
PAGE = max(1024, mmap.PAGESIZE // 4)
"""Rows of any number of columns that end with a page of memory."""
EXCHANGE_SECONDS, ENDED = 0.02, 1 << 60
"""Time between two exchanges of the steps that processes have done, and the number after the last step."""
REPORTING_SECONDS = 3.0
"""Time for the store to say which process reports; it does not answer over a link that is down."""


class Ranks:
    """The single process of an ordinary run: every collective operation is the identity.

    `sent` counts the bytes that this process has sent to the others. Only rank 0 writes files.
    """

    rank, size, sent = 0, 1, 0

    def shard(self, count: int, owner: int | None = None) -> range:
        """Return the range of `count` rows that this process holds, or process `owner`."""
        rank = self.rank if owner is None else owner
        return range(count * rank // self.size, count * (rank + 1) // self.size)

    def broadcast_int(self, number: int) -> int:
        """Return the number of process 0."""
        return number

    def share(self, batch: NodeIds) -> NodeIds:
        """Return this process's share of a batch."""
        return np.array_split(batch, self.size)[self.rank]

    def all_reduce(self, tensors: Sequence[Tensor]) -> None:
        """Replace each tensor by its sum over all processes."""

    def all_gather(self, values: Tensor) -> Tensor:
        """Concatenate the values `[models, share]` of all processes in the order of the batch."""
        return values

    def broadcast(self, tensors: Sequence[Tensor]) -> None:
        """Replace each tensor by that of process 0."""


class ProcessGroup(Ranks):
    """One of several processes that train one model.

    `device` is the device of the messages: CPU for gloo, CUDA for NCCL. `prefetching` is a second group,
    always of gloo, for the thread that reads the rows of the next batch: in one group its messages and those
    of the training would interleave differently in each process.
    """

    prefetching: ProcessGroup

    def __init__(self, store: Any, device: torch.device, group: Any = None) -> None:
        self.rank, self.size, self.sent = dist.get_rank(), dist.get_world_size(), 0
        self._store, self._device, self._group = store, device, group

    def all_reduce(self, tensors: Sequence[Tensor]) -> None:
        """Add all tensors at once, as one flat buffer."""
        flat = torch.cat([tensor.flatten() for tensor in tensors]).to(self._device)
        with self._reporting_lost_ranks():
            dist.all_reduce(flat, group=self._group)
        self.sent += 2 * flat.numel() * flat.element_size() * (self.size - 1) // self.size
        sizes = [tensor.numel() for tensor in tensors]
        for tensor, total in zip(tensors, torch.split(flat, sizes), strict=True):
            tensor.copy_(total.view_as(tensor))

    def all_to_all(self, rows: Tensor, to: Sequence[int], of: Sequence[int]) -> Tensor:
        """Send `to[r]` of the rows to each process r, in order; return the `of[r]` rows that each sent."""
        rows = rows.to(self._device).contiguous()
        received = rows.new_empty(sum(of), *rows.shape[1:])
        with self._reporting_lost_ranks():
            dist.all_to_all_single(received, rows, list(of), list(to), group=self._group)
        row = math.prod(rows.shape[1:]) * rows.element_size()
        self.sent += (len(rows) - to[self.rank]) * row
        return received

    def broadcast_int(self, number: int) -> int:
        """Send the number of process 0 to all."""
        value = torch.tensor([number])
        self.broadcast([value])
        return int(value)

    def all_gather(self, values: Tensor) -> Tensor:
        """Gather the shares; they may differ in length, so the messages are padded."""
        mine = values.t().contiguous()
        lengths = torch.zeros(self.size, dtype=torch.int64, device=mine.device)
        lengths[self.rank] = mine.shape[0]
        with self._reporting_lost_ranks():
            dist.all_reduce(lengths, group=self._group)
            padded = mine.new_zeros(int(lengths.max()), *mine.shape[1:])
            padded[: mine.shape[0]] = mine
            shares = [torch.empty_like(padded) for _ in range(self.size)]
            dist.all_gather(shares, padded, group=self._group)
        self.sent += (padded.numel() * padded.element_size() + 8) * (self.size - 1)
        return torch.cat([one[:length] for one, length in zip(shares, lengths.tolist(), strict=True)]).t()

    def broadcast(self, tensors: Sequence[Tensor]) -> None:
        """Send the tensors of process 0 to all."""
        with self._reporting_lost_ranks():
            for tensor in tensors:
                kept = tensor.detach()
                sent = kept.to(self._device).reshape(-1).view(torch.uint8)  # gloo has no int16, NCCL no CPU
                dist.broadcast(sent, 0, group=self._group)
                kept.copy_(sent.view(kept.dtype).view(kept.shape))

    @contextmanager
    def _reporting_lost_ranks(self) -> Iterator[None]:
        try:
            yield
        except RankLostError:  # raised by `stop` while this process waited
            raise
        except RuntimeError as error:
            message = self._message(f"another process does not answer ({_reason(error)})")
            raise RankLostError(message) from None

    def _message(self, reason: str) -> str:
        """Return the error message; empty where another surviving process already reports it."""
        first = [str(self.rank)]

        def ask() -> None:
            with suppress(RuntimeError):  # idempotent, since two threads of one process may report
                first.append(self._store.compare_set("h3gnn/reporting-rank", "", first[0]).decode())

        asking = threading.Thread(target=ask, daemon=True)
        asking.start()
        asking.join(REPORTING_SECONDS)
        if first[-1] != first[0]:
            return ""
        return f"rank {self.rank} of {self.size} stops: {reason}; the job ends without a result"

    def stop(self, *_: object) -> None:
        """End on SIGTERM, which torchrun sends to the others when one process has died, and on SIGHUP."""
        raise RankLostError(self._message("it received a signal to stop, as when another process has died"))


def is_distributed() -> bool:
    """Return whether this process is one of several: of a process group, or of those that torchrun starts."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_world_size() > 1
    return int(os.environ.get("WORLD_SIZE", "1")) > 1 and "RANK" in os.environ


def timeout() -> timedelta:
    """Return the timeout for messages between processes."""
    return timedelta(seconds=float(os.environ.get("H3GNN_RANK_TIMEOUT", PATIENCE_SECONDS)))


@contextmanager
def process_group(device: torch.device) -> Iterator[Ranks]:
    """Join the other processes while the block runs, if there are any.

    A process group that exists, as under Ray Train, is used and kept.
    """
    if not is_distributed():
        yield Ranks()
        return
    if device.type == "cuda":
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    wait = timeout()
    backend = "nccl" if device.type == "cuda" else "gloo"
    joined = not dist.is_initialized()
    with _reporting_failed_join():
        store = _join(backend, wait) if joined else dist.distributed_c10d._get_default_store()
        own = None if joined else dist.new_group(backend=backend, timeout=wait)  # the default may be in use
        if not joined:
            name = ProcessGroup(store, device, own).broadcast_int(uuid4().int >> 65)
            store = dist.PrefixStore(f"h3gnn-{name}", store)  # type: ignore[attr-defined]
        group, second = ProcessGroup(store, device, own), dist.new_group(backend="gloo", timeout=wait)
        group.prefetching = ProcessGroup(store, torch.device("cpu"), second)
    try:
        with _stopping_on_signals(group):
            yield group
    except InputError:
        _leave(joined, own, second)
        raise
    _leave(joined, own, second)


def _leave(joined: bool, *groups: Any) -> None:
    """Destroy what `process_group` made; after a lost process, others may still use it."""
    for group in [None] if joined else groups:
        dist.destroy_process_group(group)


@contextmanager
def _stopping_on_signals(group: ProcessGroup) -> Iterator[None]:
    """Let SIGTERM and SIGHUP stop the group; outside the main thread Python allows no handlers."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in STOPPING if number != signal.SIGINT}
    for number, handler in before.items():
        if handler is not signal.SIG_IGN:
            signal.signal(number, group.stop)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _reporting_failed_join() -> Iterator[None]:
    try:
        yield
    except RankLostError:
        raise
    except (RuntimeError, ValueError) as error:
        where = ":".join(os.environ.get(name, "?") for name in ("MASTER_ADDR", "MASTER_PORT"))
        raise RankLostError(
            f"rank {os.environ.get('RANK', '?')} of {os.environ.get('WORLD_SIZE', '?')} cannot join the "
            f"other processes at {where} ({_reason(error)}): start all of them within the timeout "
            "(H3GNN_RANK_TIMEOUT, in seconds), let the hosts reach each other on all ports, and name the "
            "network interface if a host has several (GLOO_SOCKET_IFNAME, NCCL_SOCKET_IFNAME)"
        ) from None


def _reason(error: Exception) -> str:
    """Return the first words of an error of torch, without its place in the source."""
    return re.sub(r"^\[[^\]]*\]", "", " ".join(str(error).split())).strip()[:100]


def _join(backend: str, wait: timedelta) -> Any:
    """Initialize the default process group; return its store."""
    found, rank, size = _rendezvous(wait)
    name = _name_of_attempt(found, rank, size, wait.total_seconds())
    store = dist.PrefixStore(name, found)  # type: ignore[attr-defined]
    dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=wait)
    return store


@cache
def _rendezvous(wait: timedelta) -> tuple[Any, int, int]:
    """Return the store of all processes, the rank and their number; rank 0 may be the one that serves it."""
    found: tuple[Any, int, int] = next(rendezvous("env://", timeout=wait))
    return found


def _name_of_attempt(store: Any, rank: int, size: int, seconds: float) -> str:
    """Return a name for the keys of this attempt, on which its processes agree.

    torchrun keeps one store over all restarts, and its hosts may count these differently. So rank 0 draws a
    name, and each process waits until rank 0 lists its own random token under it: what an earlier attempt
    left in the store lists other tokens.
    """
    token, pause, end = uuid4().hex, 0.01, time.monotonic() + seconds
    name, answered = f"h3gnn-{token}", ""
    if rank == 0:
        store.set("h3gnn/attempt", name)
    while True:
        if rank == 0:
            missing = [other for other in range(1, size) if not store.check([f"{name}/{other}"])]
            if not missing:
                tokens = b" ".join(store.get(f"{name}/{other}") for other in range(1, size))
                store.set(f"{name}/joined", tokens)
                return name
        elif store.check(["h3gnn/attempt"]):
            name = str(store.get("h3gnn/attempt"), "ascii")
            if name != answered:
                store.set(f"{name}/{rank}", token)
                answered = name
            if store.check([f"{name}/joined"]) and token in store.get(f"{name}/joined").decode().split():
                return name
        if time.monotonic() > end:
            absent = f"rank {', '.join(map(str, missing[:8]))}" if rank == 0 else "rank 0"
            raise RuntimeError(f"{absent} did not join within {seconds:g} s")
        time.sleep(pause)
        pause = min(2 * pause, 0.5)


class SharedFiles(Sharing):
    """Arrays in files that all processes map; each writes its chunks of nodes, or its slices of columns.

    On several hosts, chunks begin at pages, so that no two hosts write to the same page, and columns, which
    share pages, are computed on the first host alone.
    """

    def __init__(self, ranks: ProcessGroup, folder: Path, here: int, joined: ExitStack) -> None:
        self.rank, self.size, self.allocate = ranks.rank, ranks.size, self._allocate
        self._ranks, self._folder, self._here, self._joined = ranks, folder, here, joined
        self._paths: list[Path] = []
        self._progress: Progress | None = Progress(ranks)

    def shard(self, count: int) -> range:
        """Return this process's chunks."""
        return self._ranks.shard(count)

    def deal(self, count: int) -> range:
        """Return this process's slices of columns, in turn."""
        return range(self.rank, count, self._here) if self.rank < self._here else range(0)

    def chunk(self, nodes: int, usual: int) -> int:
        """Return a smaller chunk for a graph of which some process would have nothing to do."""
        return min(usual, -(-nodes // (4 * self.size * PAGE)) * PAGE)

    def complete(self) -> None:
        """Wait for all processes, however long they take; on several hosts also for the files."""
        several = self._here < self.size
        for path in self._paths if several else ():
            with path.open("r+b") as file:
                os.fsync(file.fileno())
        self._wait()
        for path in self._paths if several else ():
            path.open("rb").close()  # which makes a network file system look for what others have written

    def sum(self, values: Tensor) -> Tensor:
        """Return the sum over all processes."""
        total = values.clone()
        self._ranks.prefetching.all_reduce([total])
        return total

    def gather(self, rows: Tensor) -> Tensor:
        """Return the rows of all processes, one after another."""
        return self._ranks.prefetching.all_gather(rows.t()).t()

    def end(self) -> None:
        """Leave the other processes; the arrays stay until the first one leaves the block."""
        if self._progress is not None:
            self._progress.wait(last=True)
            self._progress = None
            self._joined.close()

    def _wait(self) -> None:
        if self._progress is not None:
            self._progress.wait()

    def _allocate(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        *models, nodes, width = shape
        rows = nodes if self._here == self.size else -(-nodes // PAGE) * PAGE
        path, count = self._folder / f"{len(self._paths)}-{name}", math.prod(models) * rows * width
        if self.rank == 0:
            with path.open("wb") as file:
                file.truncate(count * dtype.itemsize)
        self._wait()
        self._paths.append(path)
        mapped: Any = torch.from_file(str(path), shared=True, size=count, dtype=dtype)
        tensor: Tensor = mapped.view(*models, rows, width)[..., :nodes, :]
        return tensor


class Progress:
    """Lets processes wait for each other for as long as one of them computes, but not for a lost one.

    A thread of each exchanges the steps that its process has done, so that silence means a lost process.
    """

    def __init__(self, ranks: ProcessGroup) -> None:
        self._ranks, self._done, self._reached = ranks, 0, 0
        self._group = dist.new_group(backend="gloo", timeout=timeout())
        self._error: RankLostError | None = None
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._exchange, daemon=True)
        self._thread.start()

    def wait(self, *, last: bool = False) -> None:
        """Wait until every process has called this as often."""
        with self._changed:
            self._done = ENDED if last else self._done + 1
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._reached >= self._done or self._error is not None)
        if self._error is not None:
            raise self._error
        if last:
            self._thread.join()
            dist.destroy_process_group(self._group)

    def _exchange(self) -> None:
        try:
            while self._reached < ENDED:
                steps = torch.tensor([self._done])
                with self._ranks._reporting_lost_ranks():
                    dist.all_reduce(steps, dist.ReduceOp.MIN, group=self._group)
                with self._changed:
                    self._reached = int(steps)
                    self._changed.notify_all()
                    if self._reached < ENDED:
                        self._changed.wait(EXCHANGE_SECONDS)
        except RankLostError as error:
            with self._changed:
                self._error = error
                self._changed.notify_all()


@contextmanager
def shared_files(device: torch.device, folder: Path) -> Iterator[Sharing]:
    """Let the processes share arrays in files while the block runs, which all of them enter and leave.

    The files are temporary ones of the system if all processes are on one host, else within `folder`.
    """
    if not is_distributed():
        yield Sharing()
        return
    with ExitStack() as files:
        joined = ExitStack()  # after an error it stays open: another thread may be using the group
        ranks = cast(ProcessGroup, joined.enter_context(process_group(device)))
        here = ranks.broadcast_int(int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
        name = torch.zeros(4096, dtype=torch.uint8)
        if ranks.rank == 0:
            place = Path(tempfile.gettempdir()) if here == ranks.size else folder
            part, handle = make_temporary(place.absolute(), "h3gnn-shared", is_folder=True)
            files.callback(os.close, handle)
            files.callback(shutil.rmtree, part, ignore_errors=True)
            text = torch.frombuffer(bytearray(os.fsencode(part)), dtype=torch.uint8)
            name[: len(text)] = text
        ranks.broadcast([name])
        shared = SharedFiles(ranks, Path(os.fsdecode(bytes(name.tolist()).rstrip(b"\0"))), here, joined)
        yield shared
        shared.end()


class RowRequest:
    """One exchange of rows: every process asks the owners for the rows it needs, at the same time.

    `inverse` is the position of each requested node among the received rows, which ascend by node;
    `requested` are the rows that the processes request from this one, counted from the start of its shard.
    """

    def __init__(self, group: ProcessGroup, nodes: Tensor, count: int) -> None:
        self.group = group
        nodes, order = nodes.sort()
        self.inverse = torch.empty_like(order).scatter_(0, order, torch.arange(len(nodes)).to(nodes))
        shards = [group.shard(count, owner) for owner in range(group.size)]
        starts = torch.tensor([shard.start for shard in shards], device=nodes.device)
        ends = torch.tensor([shard.stop for shard in shards], device=nodes.device)
        counts = torch.searchsorted(nodes, ends) - torch.searchsorted(nodes, starts)
        self.receive_counts: list[int] = counts.tolist()
        once = [1] * len(shards)
        self.send_counts: list[int] = group.all_to_all(counts, once, once).tolist()
        index_type = torch.int32 if max(map(len, shards)) < 2**31 else torch.int64
        local = (nodes - torch.repeat_interleave(starts, counts)).to(index_type)
        self.requested = group.all_to_all(local, self.receive_counts, self.send_counts).long()

    def exchange(self, rows: Tensor) -> Tensor:
        """Send `rows`, one for each of `requested`; return the rows of the requested nodes, ascending."""
        if rows.layout != torch.sparse_csr:
            return self.group.all_to_all(rows, self.send_counts, self.receive_counts)
        sent = rows.crow_indices().diff()  # row lengths first, then columns and values
        received = self.group.all_to_all(sent, self.send_counts, self.receive_counts)
        to = [int(lengths.sum()) for lengths in torch.split(sent, self.send_counts)]
        of = [int(lengths.sum()) for lengths in torch.split(received, self.receive_counts)]
        cols, values = (self.group.all_to_all(part, to, of) for part in (rows.col_indices(), rows.values()))
        crow = torch.cat([received.new_zeros(1), received.cumsum(0)])
        return csr_tensor(crow, cols, values, (len(received), rows.shape[1]))


def shard_rows(graph: GraphRows, ranks: Ranks, *, in_memory: bool) -> GraphRows:
    """Return a graph whose feature rows come from the processes that hold them; all read a batch together.

    With `in_memory`, each copies its own shard now, so that the full matrix can be freed.
    """
    if ranks.size == 1:
        return graph
    group, support = cast(ProcessGroup, ranks).prefetching, graph.support
    own = ranks.shard(support.nodes)
    read_own: Callable[[Tensor], Tensor] = lambda rows: graph.read(rows + own.start)  # noqa: E731
    if in_memory:
        read_own = rows_in_memory(graph.read(torch.arange(own.start, own.stop)), support).read

    def read(nodes: Tensor) -> Tensor:
        request = RowRequest(group, nodes, support.nodes)
        received = request.exchange(read_own(request.requested))
        return rows_in_memory(received, support).read(request.inverse)

    return GraphRows(read, support, graph.columns, paths=graph.paths)


def rows_in_memory(features: Tensor, support: Support) -> GraphRows:
    """Return a graph that reads its rows from a dense or CSR tensor in memory."""
    if features.layout != torch.sparse_csr:
        return GraphRows(lambda nodes: gather_rows(features, nodes), support, features.shape[1])
    crow, cols, values = features.crow_indices(), features.col_indices(), features.values()

    def sparse_rows(nodes: Tensor) -> Tensor:
        device, nodes = nodes.device, nodes.cpu()
        counts = crow[nodes + 1] - crow[nodes]
        pointers = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
        begin = torch.repeat_interleave(crow[nodes] - pointers[:-1], counts)
        entries = begin + torch.arange(int(pointers[-1]))
        size = (len(nodes), features.shape[1])
        return csr_tensor(pointers, cols[entries], values[entries], size).to(device)

    return GraphRows(sparse_rows, support, features.shape[1])
