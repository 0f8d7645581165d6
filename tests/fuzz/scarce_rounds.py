"""Every command that writes, with too little: a disk, or memory, that ends at a random byte.

`python tests/fuzz/scarce_rounds.py --rounds 12 --out tests/fuzz/counts/scarce.json`

A round gives a command a limit: on the size of a file (`disk`: RLIMIT_FSIZE, as a full disk), on what it may
allocate after its libraries are loaded (`memory`: RLIMIT_AS), or on its address space from its first byte on
(`start`). It has to end, with a result or with one sentence and exit code 2, leave no traceback on the screen
and nothing half-written; and the same command without the limit has to give the result that it always gives.

Where memory ends within a library that answers by ending the process (OpenBLAS, a C++ exception that nobody
catches), nobody is left to say a sentence. Such ends are counted apart, by library; all else is asked of them
as of any other: that nothing is half-written, and that the next command gives the result.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import resource
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))
from tests.fuzz.signal_rounds import (
    COMMANDS,
    ended,
    play_all,
    result,
    start,
)

KINDS = ("disk", "memory", "start")
SPANS = {"disk": (4, 17), "memory": (24, 30), "start": (27.5, 31.5)}
"""The limits of each kind are powers of two with an exponent from here."""
PATIENCE_SECONDS = 300
BY_A_LIBRARY = {
    "OpenBLAS": re.compile(r"OpenBLAS error: Memory allocation"),
    "C++": re.compile(r"terminate called after throwing|terminate called recursively|std::bad_alloc"),
}
"""What libraries say that end the process themselves where they get no memory."""
SHRUNK = """
import sys
from h3gnn.cli import _load
from h3gnn.cli import exit as ending

def load():
    from tests.fuzz.signal_rounds import shrink

    shrink(sys.argv[1])
    return _load()

ending.run(load)
"""
"""As `h3gnn` itself, but for the graph of `demo`."""
ENVIRONMENT = {
    **os.environ,
    "OMP_NUM_THREADS": "1",
    "MALLOC_ARENA_MAX": "2",
    "NO_COLOR": "1",
    "COLUMNS": "200",
}


def confined(kind: str, limit: int) -> Callable[[], None]:
    """Return what sets the limit in the process that is to have it."""

    def confine() -> None:
        if kind == "disk":
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
            return
        loaded = 0
        if kind == "memory":
            loaded = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (loaded + limit, loaded + limit))

    return confine


def attempt(name: str, home: Path, kind: str, limit: int) -> tuple[int, str]:
    """Run a command under a limit and return its exit code (124: it hung) and its words."""
    return _afresh(name, home, limit) if kind == "start" else _forked(name, home, kind, limit)


def _afresh(name: str, home: Path, limit: int) -> tuple[int, str]:
    path = os.pathsep.join((str(Path(__file__).parents[2]), *sys.path))
    try:
        done = subprocess.run(
            [
                sys.executable,
                "-c",
                SHRUNK,
                *COMMANDS[name],
            ],
            cwd=home,
            env=ENVIRONMENT | {"TMPDIR": str(home.parent), "PYTHONPATH": path},
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            preexec_fn=confined("start", limit),
            timeout=PATIENCE_SECONDS,
        )
    except subprocess.TimeoutExpired:
        return 124, ""
    return done.returncode, done.stderr


def _forked(name: str, home: Path, kind: str, limit: int) -> tuple[int, str]:
    reading, writing = os.pipe()  # words in a file would be under the limit as well
    confine = confined(kind, limit)

    def before() -> None:
        os.dup2(writing, 1)
        os.dup2(writing, 2)
        os.close(reading)
        tempfile.tempdir = str(home.parent)
        confine()

    child = start(COMMANDS[name], home, before)
    os.close(writing)
    words, until = b"", time.monotonic() + PATIENCE_SECONDS
    while select.select([reading], [], [], max(0.0, until - time.monotonic()))[0]:
        some = os.read(reading, 1 << 16)
        if not some:
            break
        words += some
    else:
        os.kill(child, signal.SIGKILL)
    os.close(reading)
    code = ended(child)
    return 124 if code == -signal.SIGKILL else code, words.decode(errors="replace")


def library_of(kind: str, code: int, words: str) -> str | None:
    """Return which library ended a process that it could get no memory in, if one did."""
    if kind == "disk" or code not in (1, -signal.SIGABRT):
        return None
    return next((name for name, said in BY_A_LIBRARY.items() if said.search(words)), None)


def play(
    name: str, kind: str, limit: int, inputs: Path, home: Path, wanted: dict[str, Any]
) -> dict[str, Any]:
    """Play one round and return what happened."""
    shutil.copytree(inputs, home)
    wrong: list[str] = []
    code, words = attempt(name, home, kind, limit)
    library = library_of(kind, code, words)
    if code == 124:
        wrong.append("it hung")
    elif "Traceback" in words:
        wrong.append("a traceback was shown")
    elif code not in (0, 2) and library is None:
        wrong.append("it was taken for a fault of our own" if code == 1 else f"it ended with {code}")
    parts = [str(one.relative_to(home)) for one in home.rglob(".*.part")]
    if parts and library is None:
        wrong.append(f"{parts[0]} was left behind")
    if not wrong:
        again = ended(start(COMMANDS[name], home))
        there = result(home)
        if again != 0:
            more = (home / "words").read_text()[-300:]
            wrong.append(f"without the limit it ended with {again}: {more}")
        wrong += [f"{one} is another" for one in wanted if there.get(one) != wanted[one]]
        wrong += [f"{one} was left behind" for one in there.keys() - wanted.keys()]
    shutil.rmtree(home)
    said = re.sub(r"\s+", " ", words)[-400:] if wrong else ""
    return {"kind": kind, "limit": limit, "code": code, "library": library, "wrong": wrong, "words": said}


def rounds_of(
    name: str,
    given: argparse.Namespace,
    place: Path,
    chance: random.Random,
    kept: dict[str, Any],
    keep: Callable[[], None],
) -> None:
    """Play rounds of one command, the kinds in turn, until there are so many, and count them in `kept`."""
    kinds, whole = given.kinds.split(","), place / f"whole-{name}"
    shutil.copytree(place / "inputs", whole)
    ended(start(COMMANDS[name], whole))
    wanted = result(whole)
    while kept["rounds"] < given.rounds:
        kind = kinds[kept["rounds"] % len(kinds)]
        limit = int(2 ** chance.uniform(*SPANS[kind]))
        one = play(name, kind, limit, place / "inputs", place / f"{name}-{kept['rounds']}", wanted)
        _count(kept["ended"], f"{kind}: {one['code']}")
        if one["library"] is not None:
            _count(kept["ended_by_a_library"], f"{kind}: {one['library']}")
        kept["failures"] += [one] if one["wrong"] else []
        kept["rounds"] += 1
        keep()


def main() -> None:
    """Play rounds of too little."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kinds", default=",".join(KINDS), help="played in turn")
    play_all(
        parser,
        lambda given: {"kinds": given.kinds.split(",")},
        {"rounds": 0, "ended": {}, "ended_by_a_library": {}, "failures": []},
        lambda every: {
            "attempts": sum(one["rounds"] for one in every),
            "ended_by_a_library": sum(sum(one["ended_by_a_library"].values()) for one in every),
        },
        rounds_of,
    )


def _count(counts: dict[str, int], name: str) -> None:
    counts[name] = counts.get(name, 0) + 1


if __name__ == "__main__":
    main()
