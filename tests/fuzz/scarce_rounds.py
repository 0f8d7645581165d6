"""Every command that writes, with too little: a disk, or memory, that ends at a random byte.

`python tests/fuzz/scarce_rounds.py --rounds 20 --out tests/fuzz/counts/scarce.json`

A round gives a command a limit on the size of a file (RLIMIT_FSIZE, as a full disk) or on its address space
(RLIMIT_AS). It has to end, with a result or with one sentence and exit code 2, leave no traceback on the
screen and nothing half-written; and the same command without the limit has to give the result that it
always gives.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from signal_rounds import COMMANDS, result, write_inputs

KINDS = ("disk", "memory")
PATIENCE_SECONDS = 300
BY_BLAS = "OpenBLAS error: Memory allocation"
"""OpenBLAS ends the process itself, with its own words, where it gets no memory: nobody can catch that."""
ENVIRONMENT = {
    **os.environ,
    "OMP_NUM_THREADS": "1",
    "MALLOC_ARENA_MAX": "2",
    "NO_COLOR": "1",
    "COLUMNS": "200",
}


def attempt(name: str, home: Path, kind: str, limit: int | None) -> tuple[int, str]:
    """Run a command under a limit and return its exit code and its words."""

    def confine() -> None:
        if limit is not None and kind == "disk":
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
        if limit is not None and kind == "memory":
            resource.setrlimit(resource.RLIMIT_AS, (limit, limit))

    done = subprocess.run(
        [sys.executable, "-m", "h3gnn", *COMMANDS[name]],
        cwd=home,
        env=ENVIRONMENT | {"TMPDIR": str(home.parent)},
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
        preexec_fn=confine,
        timeout=PATIENCE_SECONDS,
    )
    return done.returncode, done.stderr


def play(
    name: str, kind: str, limit: int, inputs: Path, home: Path, wanted: dict[str, Any]
) -> dict[str, Any]:
    """Play one round and return what happened."""
    shutil.copytree(inputs, home)
    wrong: list[str] = []
    try:
        code, words = attempt(name, home, kind, limit)
    except subprocess.TimeoutExpired:
        code, words = 124, ""
        wrong.append("it hung")
    if "Traceback" in words:
        wrong.append("a traceback was shown")
    if code not in (0, 1, 2):
        wrong.append(f"it ended with {code}")
    if code == 1 and BY_BLAS not in words:
        wrong.append("it was taken for a fault of our own")
    parts = [str(one.relative_to(home)) for one in home.rglob(".*.part")]
    if parts and code >= 0:
        wrong.append(f"{parts[0]} was left behind")
    if not wrong:
        again, more = attempt(name, home, kind, None)
        there = result(home)
        if again != 0:
            wrong.append(f"without the limit it ended with {again}: {more[-300:]}")
        wrong += [f"{one} is another" for one in wanted if there.get(one) != wanted[one]]
        wrong += [f"{one} was left behind" for one in there.keys() - wanted.keys()]
    shutil.rmtree(home)
    said = re.sub(r"\s+", " ", words)[-400:] if wrong else ""
    return {"kind": kind, "limit": limit, "code": code, "wrong": wrong, "words": said}


def main() -> None:
    """Play rounds of every command; the exit code is 1 where one failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--commands", default=",".join(COMMANDS))
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--out", type=Path, default=None)
    given = parser.parse_args()
    seed = random.SystemRandom().randrange(10**6) if given.seed is None else given.seed
    chance = random.Random(seed)
    told: dict[str, Any] = {"seed": seed, "kinds": list(KINDS), "attempts": 0, "failures": 0, "commands": {}}
    with tempfile.TemporaryDirectory(prefix="h3gnn-fuzz-") as place:
        inputs = Path(place) / "inputs"
        write_inputs(inputs)
        for name in given.commands.split(","):
            whole = Path(place) / f"whole-{name}"
            shutil.copytree(inputs, whole)
            attempt(name, whole, "disk", None)
            wanted, codes, failed = result(whole), dict[str, int](), list[Any]()
            for number in range(given.rounds):
                kind = given.kinds.split(",")[number % len(given.kinds.split(","))]
                limit = int(2 ** (chance.uniform(4, 17) if kind == "disk" else chance.uniform(27.5, 31.5)))
                one = play(name, kind, limit, inputs, Path(place) / f"{name}-{number}", wanted)
                codes[f"{kind}: {one['code']}"] = codes.get(f"{kind}: {one['code']}", 0) + 1
                failed += [one] if one["wrong"] else []
            told["commands"][name] = {"rounds": given.rounds, "ended": codes, "failures": failed}
            told["attempts"] += given.rounds
            told["failures"] += len(failed)
            print(f"{name}: {given.rounds} rounds, {len(failed)} failed", file=sys.stderr, flush=True)
            if given.out is not None:
                given.out.write_text(json.dumps(told, indent=1) + "\n")
    print(json.dumps(told, indent=1))
    raise SystemExit(int(told["failures"] > 0))


if __name__ == "__main__":
    main()
