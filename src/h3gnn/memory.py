"""How much memory is free, and one sentence before more than that is asked for.

A size that a file declares costs nothing to write: a sparse matrix of 10¹² columns fits into a kilobyte. So
whoever is about to allocate by such a number asks here first.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Lock

from h3gnn.errors import InputError

UNKNOWN = 4 * 2**30
"""What is taken to be free where the system does not tell."""
BLAS_BUFFER = 40 * 10**6
"""What OpenBLAS takes for a thread that multiplies matrices, once and for all."""
CGROUP = (
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
    ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
)


def free_memory() -> int:
    """Return how many bytes this process can still have: of the machine, its container and its own limit."""
    bounds = [_machine(), *_container(), *_own_limit()]
    return max(0, min(bounds))


def check_room(needed: int, what: str, fault: type[InputError] = InputError) -> None:
    """Refuse work that needs more memory than is free, with how much, and for what."""
    if needed < 1 << 20:  # not worth a look
        return
    free = free_memory()
    if needed > free:
        raise fault(f"{what} would take {words_of(needed)} of memory, and {words_of(free)} are free")


def hold_buffers() -> None:
    """Let NumPy's and SciPy's OpenBLAS take their buffers now, where `ulimit -v` bounds the process.

    Later, where there is no room for them, it would ask for them again and again, for ever. Each core may
    want one of each.
    """
    if not _own_limit():
        return
    import threading
    from concurrent.futures import ThreadPoolExecutor

    import numpy as np
    from scipy.linalg.blas import sgemm

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1
    check_room(2 * cores * BLAS_BUFFER, "the buffers of NumPy's and SciPy's linear algebra")
    together, ones = threading.Barrier(cores), np.ones((128, 128), dtype=np.float32, order="F")

    def multiply(_: int) -> None:
        with suppress(threading.BrokenBarrierError):  # then they multiply one after another
            together.wait(timeout=1)
        sgemm(1.0, ones @ ones, ones)

    with ThreadPoolExecutor(cores) as pool:
        list(pool.map(multiply, range(cores)))


NEVER, AS_MANY_AS_IT_LIKES = -1, 0
"""What malloc takes for a size that is not reached, and for a number of heaps that nobody bounds."""

_turn = Lock()
_keepers: list[None] = []
"""One entry for each block of code that is inside of `keeping_freed`, in any thread."""


@contextmanager
def keeping_freed() -> Iterator[None]:
    """Let this process keep what it frees meanwhile, where it runs on glibc and nobody has set its malloc.

    Else large tensors come from the system and go back there every time, and each of their pages is zeroed
    anew when it is first written, which takes longer than most of what is done with them. Blocks over 1 GB
    still go back; after the last such block of code all does, and malloc is as it makes itself once large
    blocks have been freed.
    """
    libc = _glibc()
    if libc is None:
        yield
        return
    with _turn:
        _keepers.append(None)
        if len(_keepers) == 1:
            _set_malloc(libc, mapped_from=2**30, trimmed_from=NEVER, heaps=1)
    try:
        yield
    finally:
        with _turn:
            _keepers.pop()
            if not _keepers:
                _set_malloc(libc, mapped_from=2**25, trimmed_from=2**26, heaps=AS_MANY_AS_IT_LIKES)
                libc.malloc_trim(0)


def _glibc() -> ctypes.CDLL | None:
    """Return the C library where its malloc can be told how to behave, and has not been by the user."""
    told = any(name.startswith("MALLOC_") or name == "GLIBC_TUNABLES" for name in os.environ)
    if told or not sys.platform.startswith("linux"):
        return None
    libc = ctypes.CDLL(None)
    return libc if hasattr(libc, "gnu_get_libc_version") else None


def _set_malloc(libc: ctypes.CDLL, *, mapped_from: int, trimmed_from: int, heaps: int) -> None:
    """Say from which size a block is mapped by itself, and how much free memory at the top is given back.

    And how many heaps threads that begin have at the most: one of their own maps large blocks in any case.
    """
    trim_threshold, map_threshold, most_heaps = -1, -3, -8  # as malloc.h numbers them
    libc.mallopt(most_heaps, heaps)
    libc.mallopt(map_threshold, mapped_from)
    libc.mallopt(trim_threshold, trimmed_from)


def words_of(size: int) -> str:
    """Return a number of bytes for a person."""
    amount = float(min(size, 10**24))
    for unit in ("bytes", "KB", "MB", "GB", "TB", "PB"):
        if amount < 1000 or unit == "PB":
            return f"{amount:,.3g} {unit}" if unit != "bytes" else f"{size:,} bytes"
        amount /= 1000
    return ""


def _machine() -> int:
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        told = {line.split(":")[0]: int(line.split()[1]) * 1024 for line in lines if ":" in line}
        return told["MemAvailable"]
    except (OSError, ValueError, KeyError, IndexError):
        pass
    if "SC_AVPHYS_PAGES" in os.sysconf_names:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return UNKNOWN


def _container() -> list[int]:
    for most, used in CGROUP:
        try:
            limit = Path(most).read_text(encoding="ascii").strip()
            if limit.isdecimal():
                return [int(limit) - int(Path(used).read_text(encoding="ascii"))]
        except (OSError, ValueError):
            continue
    return []


def _own_limit() -> list[int]:
    """Return what `ulimit -v` leaves of the address space."""
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
