"""Available memory, threads, and what a terminal shows: progress bars and tables.

A file can declare a size that it does not have: a sparse matrix of 10¹² columns fits into a kilobyte. Code
that allocates by such a number calls `check_memory` first.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from h3gnn.errors import InputError

if TYPE_CHECKING:
    import numpy.typing as npt
    from rich.table import Table

UNKNOWN = 4 * 2**30
"""Memory assumed to be available where the system does not report it."""
BLAS_BUFFER = 40 * 10**6
"""Bytes that OpenBLAS allocates once for each thread that multiplies matrices."""
CGROUP = (
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
    ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
)
MMAP_THRESHOLD, _RETAINING = -3, list[Any]()
"""The number of a setting of malloc, and the C library once it retains its heap."""
SMALL_GRAPH = 5_000
"""Up to this number of nodes, items run in parallel with one thread each; their products are small."""

Item = TypeVar("Item")
Result = TypeVar("Result")


def available_memory() -> int:
    """Return the bytes this process can still allocate, by machine, container and process limits."""
    return max(0, min([_machine(), *_container(), *_process_limit()]))


def check_memory(needed: int, what: str, error: type[InputError] = InputError) -> None:
    """Raise an error if `what` needs more memory than is available."""
    if needed < 1 << 20:  # too small to matter
        return
    available = available_memory()
    if needed > available:
        sizes = f"{format_bytes(needed)} needed, {format_bytes(available)} available"
        raise error(f"not enough memory for {what}: {sizes}", code="not-enough-memory")


def format_bytes(size: int) -> str:
    """Return a number of bytes as text, such as "2.5 KB"."""
    if size < 1000:
        return f"{size} bytes"
    power = min(5, (len(str(size)) - 1) // 3)
    return f"{min(size, 10**24) / 1000**power:,.3g} {' KMGTP'[power]}B"


def preload_blas() -> None:
    """Let NumPy's and SciPy's OpenBLAS allocate their buffers now if `ulimit -v` limits the process.

    OpenBLAS retries forever if a later allocation fails. Each core needs one buffer in each library.
    """
    if not _process_limit():
        return
    import threading

    import numpy as np
    from scipy.linalg.blas import sgemm

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1
    check_memory(2 * cores * BLAS_BUFFER, "the buffers of NumPy's and SciPy's linear algebra")
    barrier, ones = threading.Barrier(cores), np.ones((128, 128), dtype=np.float32, order="F")

    def multiply(_: int) -> None:
        with suppress(threading.BrokenBarrierError):  # then they run one after another
            barrier.wait(timeout=1)
        sgemm(1.0, ones @ ones, ones)

    with ThreadPoolExecutor(cores) as pool:
        list(pool.map(multiply, range(cores)))


def retain_heap() -> None:
    """Let glibc's malloc keep freed memory for the rest of this process; for programs, not for libraries.

    Otherwise each large tensor gets new pages, and zeroing them takes longer than most operations. Blocks
    over 1 GB are still returned. Malloc's environment variables have priority.
    """
    by_user = any(name.startswith("MALLOC_") or name == "GLIBC_TUNABLES" for name in os.environ)
    if by_user or not sys.platform.startswith("linux"):
        return
    import ctypes

    libc = ctypes.CDLL(None)
    if hasattr(libc, "gnu_get_libc_version"):
        trim_threshold, arena_max = -1, -8  # as malloc.h numbers them
        libc.mallopt(arena_max, 1)
        libc.mallopt(MMAP_THRESHOLD, 2**30)
        libc.mallopt(trim_threshold, -1)
        _RETAINING.append(libc)


def return_large_blocks() -> None:
    """Let blocks over 32 MB be returned after `retain_heap`: kept ones of a large graph double its memory."""
    for libc in _RETAINING:
        libc.mallopt(MMAP_THRESHOLD, 2**25)


@contextmanager
def one_thread(nodes: int) -> Iterator[None]:
    """Limit every library to one thread in the block if the graph is small."""
    if nodes > SMALL_GRAPH:
        yield
        return
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

    with one_torch_thread(), threadpool_limits(1):
        yield


def read_only(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Make an array read-only; torch warns once that tensors of such arrays can be written, here unseen."""
    import torch

    array.flags.writeable = False
    with warnings.catch_warnings(action="ignore"):
        torch.from_numpy(array)
    return array


@contextmanager
def one_torch_thread() -> Iterator[None]:
    """Limit torch to one thread in the block.

    Eigenvalues of some hundred rows take thousands of short steps, after each of which threads would wait for
    one another; on busy cores this takes seconds instead of milliseconds.
    """
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def map_in_threads(
    function: Callable[[Item], Result], items: Iterable[Item], nodes: int, device: str = "cpu"
) -> list[Result]:
    """Return `function(item)` for each item, in order; on a small graph in as many threads as torch has.

    Items of a large graph run one after another, since each uses all cores; so do items on a GPU.
    """
    import torch
    from threadpoolctl import threadpool_limits

    workers = torch.get_num_threads()
    if nodes > SMALL_GRAPH or workers == 1 or device != "cpu":
        return [function(item) for item in items]

    def alone(item: Item) -> Result:
        with threadpool_limits(1):  # OpenMP counts its threads per calling thread
            return function(item)

    with one_thread(nodes), ThreadPoolExecutor(max_workers=workers) as pool:
        try:
            return list(pool.map(alone, items))
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _machine() -> int:
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        sizes = {line.split(":")[0]: int(line.split()[1]) * 1024 for line in lines if ":" in line}
        return sizes["MemAvailable"]
    except (OSError, ValueError, KeyError, IndexError):
        pass
    if "SC_AVPHYS_PAGES" in os.sysconf_names:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return UNKNOWN


def _container() -> list[int]:
    for maximum, used in CGROUP:
        try:
            limit = Path(maximum).read_text(encoding="ascii").strip()
            if limit.isdecimal():
                return [int(limit) - int(Path(used).read_text(encoding="ascii"))]
        except (OSError, ValueError):
            continue
    return []


def _process_limit() -> list[int]:
    """Return the part of the address space that `ulimit -v` leaves, or nothing without a limit."""
    if sys.platform == "win32":
        return []
    import resource

    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit == resource.RLIM_INFINITY:
        return []
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    except (OSError, ValueError, IndexError):
        return [limit]
    return [limit - pages * os.sysconf("SC_PAGE_SIZE")]


def new_table(title: str = "", **style: Any) -> Table:
    """Return a table for the terminal in whose texts, which are the user's, markup has no effect."""
    from rich.table import Table
    from rich.text import Text

    class PlainTable(Table):
        def add_column(self, header: Any = "", *given: Any, **more: Any) -> None:
            super().add_column(Text(header), *given, **more)

        def add_row(self, *cells: Any, **more: Any) -> None:
            super().add_row(*map(Text, cells), **more)

    return PlainTable(title=Text(title, style="table.title") if title else None, **style)


def show(table: Table) -> None:
    """Print a table of `new_table`."""
    from rich.console import Console

    Console().print(table)


AddBar = Callable[[str, float | None], Callable[..., None]]
"""Maps a title and a total (or None) to a function that updates a bar: `completed=`, `note=`, …."""


@contextmanager
def progress(*, counted: bool = False) -> Iterator[AddBar]:
    """Yield a function that adds a bar, of counts or a share, on standard error if it is a terminal."""
    if not sys.stderr.isatty():
        yield lambda title, total: lambda **_: None
        return
    from rich import progress as rich
    from rich.console import Console

    columns = (
        rich.SpinnerColumn(),  # it moves while a step is long
        rich.TextColumn("{task.description}", markup=False),
        rich.BarColumn(),
        rich.MofNCompleteColumn() if counted else rich.TaskProgressColumn(),
        rich.TimeElapsedColumn(),
        rich.TimeRemainingColumn(elapsed_when_finished=True),
        rich.TextColumn("{task.fields[note]}", markup=False),
    )
    with rich.Progress(*columns, console=Console(stderr=True)) as bars:
        yield lambda title, total: partial(bars.update, bars.add_task(title, total=total, note=""))
