"""Every command that writes, under fire: random signals at random moments, then to the end.

`python tests/fuzz/signal_rounds.py --rounds 100 --out tests/fuzz/counts/signals.json`

A round starts a command in a folder of its own and sends it one of four signals at a random moment, up to
three times, each time on what the last one left; then it lets the command end. What is there afterwards has
to be what one uninterrupted command writes, byte for byte but for seconds, and nothing else may lie around.
Libraries are loaded once and processes are forked, so that a round takes about as long as the work itself;
`demo`, which chooses its graph itself, gets a small one. With `--go-on`, the rounds that
`--out` tells of count, and only those that are missing are played; commands that failed are played anew.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import copy
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
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL)
STOPPING = SIGNALS[:3]
GRAPH = ("--edges", "e.csv", "--features", "f.csv", "--labels", "y.csv")
SMALL = ("--preset", "single", "--epochs", "12", "--set", "channels=8", "--models", "2")
CHOICES = ("--choices", "channels=8", "--choices", "hidden_channels=8", "--choices", "hops=1,2")
OURS = ("words", "ready", "modules")
"""Files of the runner's own in the folder of a command."""
MEASURED = ("seconds", "cost", "peak_megabytes")
"""What a run costs, which is never the same twice."""
FEW = 5
"""The epochs of what is trained by `demo`."""
TUNE = ("--space", "paper", "--trials", "4", "--epochs", "1,2", "--at-once", "2", "--models", "1")
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
    "tune": (
        "tune",
        *GRAPH,
        *TUNE,
        *CHOICES,
        "--finalists",
        "1",
        "--out",
        "new.json",
        "--record",
        "all.json",
    ),
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
    """Write thirty nodes in a ring, and a run of theirs."""
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

    small = partial(synthetic.mixed_graph, 60, words=20, splits=2)
    if command == "demo":
        from h3gnn.cli import options as settings

        usual, few = settings.build_estimator, {"epochs": FEW, "channels": 8, "heads": 2}

        def build(preset: str | None, named: dict[str, Any], *more: Any, **how: Any) -> Any:
            return usual(preset, named | few, *more, **how)

        vars(settings)["build_estimator"] = build
        vars(synthetic)["mixed_graph"] = small


def start(arguments: tuple[str, ...], home: Path, before: Callable[[], None] = lambda: None) -> int:
    """Fork a process that runs a command, and return its number as soon as it would hear a signal.

    Args:
        arguments: of the command line.
        home: where it runs.
        before: what the process does to itself first.
    """
    (home / "ready").unlink(missing_ok=True)
    child = os.fork()
    if child == 0:
        try:
            _become(arguments, home, before)
        except SystemExit as end:  # a signal after the command itself had ended
            os._exit(end.code if isinstance(end.code, int) else 99)
        finally:
            os._exit(99)  # whatever comes, a child never goes on as its parent
    while not (home / "ready").exists():
        time.sleep(0.001)
    return child


def warm(commands: Iterable[tuple[str, ...]], inputs: Path, place: Path) -> None:
    """Load what commands load on their way, so that each round does not load it again."""
    for number, arguments in enumerate(commands):
        home = place / f"warm-{number}"
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
        for number in STOPPING:  # from here on the runner's own work
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
    """Return a page without the seconds that its run took, which stand in what is packed within it."""
    ((packed, about),) = [
        (one, gzip.decompress(base64.b64decode(one))) for one in re.findall(rb"H4sI[\w+/=]{99,}", content)
    ]
    size = int.from_bytes(about[:4], "little")
    told = _timeless(json.loads(about[8 : 8 + size]))
    return [content.replace(packed, b""), told, about[8 + size :]]


def _timeless(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _timeless(one) for name, one in value.items() if name not in MEASURED}
    return [_timeless(one) for one in value] if isinstance(value, list) else value


def play(
    name: str, inputs: Path, home: Path, wanted: dict[str, Any], longest: float, chance: random.Random
) -> dict[str, Any]:
    """Play one round and return what happened: the signals, and what was wrong, if anything."""
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
        if (
            name == "fit with checkpoints"
            and list(home.glob("new/checkpoints/start-*"))
            and chance.random() < 0.7
        ):
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
    wrong += [f"{one} is another" for one in wanted if one in there and there[one] != wanted[one]]
    wrong += [f"{one} is not there" for one in wanted.keys() - there.keys()]
    wrong += [f"{one} was left behind" for one in there.keys() - wanted.keys()]
    if wrong:
        wrong.append(re.sub(r"\s+", " ", words)[-600:])
    shutil.rmtree(home)
    return {"sent": sent, "wrong": wrong}


def rounds_of(
    name: str,
    given: argparse.Namespace,
    place: Path,
    chance: random.Random,
    kept: dict[str, Any],
    keep: Callable[[], None],
) -> None:
    """Play rounds of one command until there are so many, and count them in `kept`."""
    inputs, whole = place / "inputs", place / f"whole-{name}"
    shutil.copytree(inputs, whole)
    began = time.monotonic()
    if ended(start(COMMANDS[name], whole)) != 0:
        kept["failures"].append((whole / "words").read_text()[-600:])
        keep()
        return
    longest = 1.1 * (time.monotonic() - began)
    wanted = result(whole)
    while kept["rounds"] < given.rounds:
        played = play(name, inputs, place / f"{name}-{kept['rounds']}", wanted, longest, chance)
        for one in played["sent"]:
            kept["sent"][one] = kept["sent"].get(one, 0) + 1
        kept["failures"] += [played] if played["wrong"] else []
        kept["sent"] = dict(sorted(kept["sent"].items()))
        kept["rounds"] += 1
        keep()
    shutil.rmtree(whole)


def load_libraries() -> None:
    """Load what every command needs."""
    import matplotlib as mpl
    import optuna  # noqa: F401
    import torch

    mpl.use("Agg")
    torch.set_num_threads(1)


Counts = dict[str, Any]
"""Of one command: its rounds, what became of them, and those that failed."""
RoundsOf = Callable[[str, argparse.Namespace, Path, random.Random, Counts, Callable[[], None]], None]
"""Plays rounds of a command until there are as many as were asked for, counts them, and keeps the counts."""


def play_all(
    parser: argparse.ArgumentParser,
    about: Callable[[argparse.Namespace], dict[str, Any]],
    new: Counts,
    totals: Callable[[list[Counts]], dict[str, int]],
    rounds_of: RoundsOf,
) -> None:
    """Play rounds of every command that is asked for; the exit code is 1 where one failed.

    Args:
        parser: with a runner's own options.
        about: what is told beside the counts.
        new: the counts of a command before its first round.
        totals: over the counts of all commands, beside their failures.
        rounds_of: plays those of one command.
    """
    parser.add_argument("--rounds", type=int, default=1, help="of each command")
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--commands", default=",".join(COMMANDS))
    parser.add_argument("--out", type=Path, default=None)
    parser.add_argument("--go-on", action="store_true", help="count the rounds that --out tells of")
    given = parser.parse_args()
    seed = random.SystemRandom().randrange(10**6) if given.seed is None else given.seed
    told: dict[str, Any] = {"seeds": [], **about(given), "commands": {}}
    if given.go_on and given.out is not None and given.out.exists():
        told |= json.loads(given.out.read_text())
        told["commands"] = {name: one for name, one in told["commands"].items() if not one["failures"]}
    told["seeds"].append(seed)

    def keep() -> None:
        every = list(told["commands"].values())
        told.update(totals(every), failures=sum(len(one["failures"]) for one in every))
        if given.out is not None:
            given.out.write_text(json.dumps(told, indent=1) + "\n")

    load_libraries()
    with tempfile.TemporaryDirectory(prefix="h3gnn-fuzz-") as folder:
        place = Path(folder)
        write_inputs(place / "inputs")
        for name in given.commands.split(","):
            kept = told["commands"].setdefault(name, copy.deepcopy(new))
            if kept["rounds"] < given.rounds:
                warm([COMMANDS[name]], place / "inputs", place)
                rounds_of(name, given, place, random.Random(f"{seed} {name}"), kept, keep)
            print(
                f"{name}: {kept['rounds']} rounds, {len(kept['failures'])} failed",
                file=sys.stderr,
                flush=True,
            )
    keep()
    print(json.dumps(told, indent=1))
    raise SystemExit(int(told["failures"] > 0))


def main() -> None:
    """Play rounds of signals."""
    play_all(
        argparse.ArgumentParser(description=__doc__),
        lambda given: {"signals": [one.name for one in SIGNALS]},
        {"rounds": 0, "sent": {}, "failures": []},
        lambda every: {
            "rounds": sum(one["rounds"] for one in every),
            "attempts": sum(sum(one["sent"].values()) for one in every),
        },
        rounds_of,
    )


if __name__ == "__main__":
    main()
