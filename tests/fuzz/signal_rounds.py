"""Send random signals at random moments to every command that writes, then run it to the end.

`python tests/fuzz/signal_rounds.py --rounds 100 --out signals.json`

A round starts a command in a new folder and sends one of four signals at a random moment, up to three times,
each time continuing with the files of the last one; then the command runs to its end. The files have to be
those of an uninterrupted command, byte for byte except for measured times, and no others. Libraries are
loaded once and processes are forked; `demo`, which has its own graph, gets a small one.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import gzip
import importlib
import json
import os
import random
import re
import shutil
import signal
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL)
STOPPING = SIGNALS[:3]
GRAPH = ("--edges", "e.csv", "--features", "f.csv", "--labels", "y.csv")
SMALL = ("--preset", "single", "--epochs", "12", "--set", "channels=8", "--models", "2")
CHOICES = ("--choices", "channels=8", "--choices", "hidden_channels=8", "--choices", "hops=1,2")
OURS = ("words", "ready", "modules")
"""Files of this script in the folder of a command."""
MEASURED = ("seconds", "cost", "peak_megabytes", "seconds_per_model", "megabytes_per_model")
"""Keys of measured costs, which differ from run to run."""
TUNE = ("--space", "paper", "--trials", "4", "--epochs", "1,2", "--models", "1", "--finalists", "1")
COMMANDS: dict[str, tuple[str, ...]] = {
    "fit": ("fit", *GRAPH, *SMALL, "--out", "new", "--embeddings", "new.csv"),
    "fit with checkpoints": (
        *("fit", *GRAPH, *SMALL, "--out", "new", "--embeddings", "new.csv"),
        *("--checkpoint-every", "1"),
    ),
    "embed": ("embed", "run", "--out", "new.parquet"),
    "cluster": ("cluster", "run", "--out", "new.csv", "--clusters", "3"),
    "prepare": ("prepare", "--edges", "e.csv", "--features", "f.csv", "--out", "new"),
    "compare": ("compare", *GRAPH, "--methods", "raw,h3gnn", "--seeds", "1", *SMALL, "--out", "new.json"),
    "tune": ("tune", *GRAPH, *TUNE, *CHOICES, "--out", "new.json", "--record", "all.json"),
    "report": ("report", "run", "--out", "new.html", "--map", "pca", "--table", "new.parquet"),
    "plot": ("plot", "run", "--out", "new.png", "--map", "pca"),
    "inspect": ("inspect", *GRAPH, "--plot", "new.png"),
    "predict": ("predict", "run", "--all", "--out", "new.csv"),
    "similar": ("similar", "run", "n1", "n2", "--out", "new.parquet"),
    "anomalies": ("anomalies", "run", "--out", "new.csv"),
    "links": ("links", "run", "--check", "none", "--out", "new.csv"),
    "export": ("export", "run", "--to", "neo4j", "--out", "new"),
    "demo": ("demo", "--out", "new.png"),
}
"""Every command that writes."""
RESUME = ("fit", "--resume", "new")


def write_inputs(home: Path) -> None:
    """Write thirty nodes in a ring, and a run fitted on them."""
    home.mkdir(parents=True)
    ring = [(f"n{i}", f"n{(i + 1) % 30}") for i in range(30)]
    (home / "e.csv").write_text("source,target\n" + "".join(f"{a},{b}\n" for a, b in ring))
    (home / "f.csv").write_text("id,a,b\n" + "".join(f"n{i},{i},{i * i % 7}\n" for i in range(30)))
    parts = ("train", "train", "train", "val", "test")
    labels = "".join(f"n{i},{'abc'[i % 3]},{parts[i // 3 % 5]}\n" for i in range(30))
    (home / "y.csv").write_text(f"id,label,split\n{labels}")
    fit = ("fit", *GRAPH, *SMALL, "--out", "run")
    if ended(start(fit, home)) != 0:
        raise SystemExit(f"the inputs cannot be made: {(home / 'words').read_text()}")
    for name in OURS:
        (home / name).unlink()


def shrink(command: str) -> None:
    """Give `demo` small graphs and few epochs in this process."""
    from h3gnn.graphs import synthetic

    if command == "demo":
        from h3gnn.cli import options

        usual, few = options.build_estimator, {"epochs": 5, "channels": 8, "heads": 2}

        def build(preset: str | None, named: dict[str, Any], *more: Any, **how: Any) -> Any:
            return usual(preset, named | few, *more, **how)

        vars(options)["build_estimator"] = build
        vars(synthetic)["mixed_graph"] = partial(synthetic.mixed_graph, 60, words=20, splits=2)


def start(arguments: tuple[str, ...], home: Path, before: Callable[[], None] = lambda: None) -> int:
    """Fork a process that runs a command in `home`; return its id as soon as it handles signals."""
    (home / "ready").unlink(missing_ok=True)
    child = os.fork()
    if child == 0:
        try:
            _become(arguments, home, before)
        except SystemExit as end:  # a signal after the command itself had ended
            os._exit(end.code if isinstance(end.code, int) else 99)
        finally:
            os._exit(99)  # a child never returns as its parent
    while not (home / "ready").exists():
        time.sleep(0.001)
    return child


def warm(arguments: tuple[str, ...], inputs: Path, home: Path) -> None:
    """Import the modules that a command imports, so that each round does not import them again."""
    shutil.copytree(inputs, home)
    ended(start(arguments, home))
    for name in (home / "modules").read_text().split():
        if name not in sys.modules:
            with contextlib.suppress(Exception), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                importlib.import_module(name)
    shutil.rmtree(home)


def _become(arguments: tuple[str, ...], home: Path, before: Callable[[], None]) -> None:
    code = 99
    try:
        os.chdir(home)
        words = os.open("words", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(words, 1)
        os.dup2(words, 2)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        from h3gnn.cli import exit as ending
        from h3gnn.cli import main

        shrink(arguments[0])
        ending.end_on_signals()
        sys.argv = ["h3gnn", *arguments]
        Path("ready").touch()
        before()
        main()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(bool(end.code))
    finally:
        for number in STOPPING:
            signal.signal(number, signal.SIG_IGN)
        with contextlib.suppress(OSError):
            Path("modules").write_text("\n".join(list(sys.modules)))
        sys.stdout.flush()
        os._exit(code)


def ended(child: int) -> int:
    """Wait for a process; a signal that ended it counts below 0."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def result(home: Path) -> dict[str, Any]:
    """Return all files of a folder by name; of JSON the content, without seconds."""
    found: dict[str, Any] = {}
    for path in sorted(home.rglob("*")):
        name = str(path.relative_to(home))
        if path.is_dir() or name in OURS or name == "h3gnn-studies.db":
            continue
        content = path.read_bytes()
        if path.suffix == ".html":
            found[name] = _page(content)
        else:
            found[name] = _timeless(json.loads(content)) if path.suffix == ".json" else content
    return found


def _page(content: bytes) -> list[Any]:
    """Return a page without the measured times in its packed data."""
    ((packed, about),) = [
        (one, gzip.decompress(base64.b64decode(one))) for one in re.findall(rb"H4sI[\w+/=]{99,}", content)
    ]
    size = int.from_bytes(about[:4], "little")
    return [content.replace(packed, b""), _timeless(json.loads(about[8 : 8 + size])), about[8 + size :]]


def _timeless(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _timeless(one) for name, one in value.items() if name not in MEASURED}
    return [_timeless(one) for one in value] if isinstance(value, list) else value


def play(
    name: str, inputs: Path, home: Path, wanted: dict[str, Any], longest: float, chance: random.Random
) -> dict[str, Any]:
    """Play one round; return the signals with the exit codes, and what went wrong."""
    shutil.copytree(inputs, home)
    sent: list[str] = []
    wrong: list[str] = []
    arguments = COMMANDS[name]
    for _ in range(chance.randint(1, 3)):
        child, number = start(arguments, home), chance.choice(SIGNALS)
        time.sleep(chance.uniform(0, longest))
        os.kill(child, number)
        code = ended(child)
        sent.append(f"{number.name}: {code}")
        if code not in (0, 128 + number, -signal.SIGKILL if number == signal.SIGKILL else 0):
            wrong.append(f"{number.name} ended with {code}")
        begun = name == "fit with checkpoints" and any(home.glob("new/checkpoints/start-*"))
        if begun and chance.random() < 0.7:
            arguments = RESUME
        if code == 0 and arguments == RESUME:
            arguments = COMMANDS[name]
    if arguments == RESUME and not list(home.glob("new/checkpoints/start-*")):
        arguments = COMMANDS[name]
    if (code := ended(start(arguments, home))) != 0:
        wrong.append(f"the last one ended with {code}")
    words = (home / "words").read_text()
    if "Traceback" in words:
        wrong.append("a traceback was shown")
    there = result(home)
    wrong += [f"{one} differs or is missing" for one in wanted if there.get(one) != wanted[one]]
    wrong += [f"{one} was left behind" for one in there.keys() - wanted.keys()]
    if wrong:
        wrong.append(re.sub(r"\s+", " ", words)[-600:])
    shutil.rmtree(home)
    return {"sent": sent, "wrong": wrong}


def rounds_of(name: str, given: argparse.Namespace, place: Path, chance: random.Random) -> dict[str, Any]:
    """Play the rounds of one command; return how they ended."""
    inputs, whole, sent = place / "inputs", place / f"whole-{name}", Counter[str]()
    shutil.copytree(inputs, whole)
    began = time.monotonic()
    if ended(start(COMMANDS[name], whole)) != 0:
        return {"attempts": 0, "failures": [(whole / "words").read_text()[-600:]]}
    longest, wanted = 1.1 * (time.monotonic() - began), result(whole)
    failures = []
    for number in range(given.rounds):
        played = play(name, inputs, place / f"{name}-{number}", wanted, longest, chance)
        sent.update(played["sent"])
        failures += [played] if played["wrong"] else []
    return {"attempts": sent.total(), "ended": dict(sorted(sent.items())), "failures": failures}


def load_libraries() -> None:
    """Import the libraries that every command needs."""
    import matplotlib as mpl
    import optuna  # noqa: F401
    import torch

    mpl.use("Agg")
    torch.set_num_threads(1)


RoundsOf = Callable[[str, argparse.Namespace, Path, random.Random], dict[str, Any]]


def play_all(parser: argparse.ArgumentParser, rounds_of: RoundsOf) -> None:
    """Play rounds of the chosen commands and print the counts; the exit code is 1 if one failed."""
    parser.add_argument("--rounds", type=int, default=1, help="of each command")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--commands", default=",".join(COMMANDS))
    parser.add_argument("--out", type=Path, default=None)
    given, counts = parser.parse_args(), dict[str, Any]()
    load_libraries()
    with tempfile.TemporaryDirectory(prefix="h3gnn-fuzz-") as folder:
        place = Path(folder)
        write_inputs(place / "inputs")
        for name in given.commands.split(","):
            warm(COMMANDS[name], place / "inputs", place / "warm")
            counts[name] = rounds_of(name, given, place, random.Random(f"{given.seed} {name}"))
            print(f"{name}: {len(counts[name]['failures'])} failed", file=sys.stderr, flush=True)
    failures = sum(len(one["failures"]) for one in counts.values())
    attempts = sum(one["attempts"] for one in counts.values())
    summary = {"seed": given.seed, "attempts": attempts, "failures": failures, "commands": counts}
    text = json.dumps(summary, indent=1)
    if given.out is not None:
        given.out.write_text(text + "\n")
    print(text)
    raise SystemExit(int(failures > 0))


if __name__ == "__main__":
    play_all(argparse.ArgumentParser(description=__doc__), rounds_of)
