"""Run every command that writes with a random limit on file sizes or memory.

`python tests/fuzz/scarce_rounds.py --rounds 12 --out scarce.json`

A round limits the size of files (`disk`: RLIMIT_FSIZE, like a full disk), the memory after the libraries are
loaded (`memory`: RLIMIT_AS), or the address space from the start (`start`). The command has to end with its
result, or with a message and exit code 2, without a traceback or partial files; and the same command without
the limit has to give the usual result.

Some libraries end the process when memory runs out (OpenBLAS, an uncaught C++ exception), so there is no
message. These cases are counted by library.
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
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))
from tests.fuzz.signal_rounds import COMMANDS, ended, play_all, result, start

KINDS = ("disk", "memory", "start")
SPANS = {"disk": (4, 17), "memory": (24, 30), "start": (27.5, 31.5)}
"""Exponents of two of the smallest and largest limit."""
PATIENCE_SECONDS = 300
BY_A_LIBRARY = {
    "OpenBLAS": re.compile(r"OpenBLAS error: Memory allocation"),
    "C++": re.compile(r"terminate called after throwing|terminate called recursively|std::bad_alloc"),
}
"""Messages of libraries that end the process when memory runs out."""
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
"""`h3gnn` with a small graph for `demo`."""
ENVIRONMENT = {
    **os.environ,
    "OMP_NUM_THREADS": "1",
    "MALLOC_ARENA_MAX": "2",
    "NO_COLOR": "1",
    "COLUMNS": "200",
}


def confined(kind: str, limit: int) -> Callable[[], None]:
    """Return a function that sets the limit in its process."""

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
    """Run a command under a limit; return its exit code (124: it hung) and its messages."""
    return _in_new_process(name, home, limit) if kind == "start" else _forked(name, home, kind, limit)


def _in_new_process(name: str, home: Path, limit: int) -> tuple[int, str]:
    path = os.pathsep.join((str(Path(__file__).parents[2]), *sys.path))
    try:
        done = subprocess.run(
            [sys.executable, "-c", SHRUNK, *COMMANDS[name]],
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
    reading, writing = os.pipe()  # a file would be under the limit, too
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
    """Return the library that ended the process for lack of memory, if one did."""
    if kind == "disk" or code not in (1, -signal.SIGABRT):
        return None
    return next((name for name, said in BY_A_LIBRARY.items() if said.search(words)), None)


def play(
    name: str, kind: str, limit: int, inputs: Path, home: Path, wanted: dict[str, Any]
) -> dict[str, Any]:
    """Play one round; return how it ended and what went wrong."""
    shutil.copytree(inputs, home)
    wrong: list[str] = []
    code, words = attempt(name, home, kind, limit)
    library = library_of(kind, code, words)
    if code == 124:
        wrong.append("it hung")
    elif "Traceback" in words:
        wrong.append("a traceback was shown")
    elif code not in (0, 2) and library is None:
        wrong.append(f"it ended with {code}")
    parts = [str(one.relative_to(home)) for one in home.rglob(".*.part")]
    if parts and library is None:
        wrong.append(f"{parts[0]} was left behind")
    if not wrong:
        again = ended(start(COMMANDS[name], home))
        there = result(home)
        if again != 0:
            more = (home / "words").read_text()[-300:]
            wrong.append(f"without the limit it ended with {again}: {more}")
        wrong += [f"{one} differs or is missing" for one in wanted if there.get(one) != wanted[one]]
        wrong += [f"{one} was left behind" for one in there.keys() - wanted.keys()]
    shutil.rmtree(home)
    said = re.sub(r"\s+", " ", words)[-400:] if wrong else ""
    return {"kind": kind, "limit": limit, "code": code, "library": library, "wrong": wrong, "words": said}


def rounds_of(name: str, given: argparse.Namespace, place: Path, chance: random.Random) -> dict[str, Any]:
    """Play the rounds of one command, the kinds in turn; return how they ended."""
    kinds, whole = given.kinds.split(","), place / f"whole-{name}"
    shutil.copytree(place / "inputs", whole)
    ended(start(COMMANDS[name], whole))
    wanted, ends, failures = result(whole), Counter[str](), []
    for number in range(given.rounds):
        kind = kinds[number % len(kinds)]
        limit = int(2 ** chance.uniform(*SPANS[kind]))
        one = play(name, kind, limit, place / "inputs", place / f"{name}-{number}", wanted)
        ends[f"{kind}: {one['library'] or one['code']}"] += 1
        failures += [one] if one["wrong"] else []
    return {"attempts": ends.total(), "ended": dict(ends), "failures": failures}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kinds", default=",".join(KINDS), help="played in turn")
    play_all(parser, rounds_of)
