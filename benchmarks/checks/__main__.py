"""`python -m benchmarks.checks [NAME …] [--device cuda] [--jobs N]`: authors' figures, measured again.

Each system has a `NAME.toml` beside this file: the figure that its authors report on a graph, and how they
measured it. The system is trained with its authors' settings, and scored as they score: also where they
choose on test nodes, which the row then says. A finished check is kept in `benchmarks/results/checks.json`
with graph, hash, settings, seeds, versions and seconds; `--table` prints it as docs/baselines.md has it.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

from benchmarks.checks.measuring import HERE, checks_of, key_of, run
from h3gnn.baselines.registry import systems
from h3gnn.experiments.workers import in_processes
from h3gnn.storage.files import write_json

KEPT = HERE.parent / "results" / "checks.json"


def table(kept: dict[str, Any]) -> str:
    """Return what is kept as Markdown."""
    lines = [
        "| system | graph | authors | here | difference | within one deviation | how it is scored |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    order = list(systems())
    for one in sorted(kept.values(), key=lambda one: order.index(one["check"]["system"])):
        check = one["check"]
        apart = one["test"] - check["figure"]
        within = abs(apart) <= max(check["spread"], one["spread"])
        words = [check.get("splits", "own") + " splits", f"epoch: {check.get('epoch', 'last')}"]
        words.append(f"probe: {check['probe']['kind']}")
        lines.append(
            f"| {systems()[check['system']].title} | {check['graph']} "
            f"| {check['figure']} ± {check['spread']} "
            f"| {one['test']:.1f} ± {one['spread']:.1f} | {apart:+.1f} | {'yes' if within else 'no'} "
            f"| {', '.join(words)} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Run what is asked for and is not kept."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--kept", type=Path, default=KEPT)
    parser.add_argument("--minutes", type=float, default=1e9, help="begin no check after so many")
    parser.add_argument("--repeats", type=int, default=100, help="at most so many of each check")
    parser.add_argument("--table", action="store_true")
    arguments = parser.parse_args()
    kept = json.loads(arguments.kept.read_text(encoding="utf-8")) if arguments.kept.exists() else {}
    if arguments.table:
        print(table(kept))
        return
    asked = {key_of(check): check for check in checks_of(arguments.names)}
    few = {"device": arguments.device, "most": arguments.repeats}
    missing = [{**check, **few} for key, check in asked.items() if key not in kept]
    started = time.perf_counter()
    for finished in in_processes(missing, run, arguments.jobs, threads=1):
        check = {name: value for name, value in finished.task.items() if name not in few}
        words = f"{check['system']} on {check['graph']}: authors {check['figure']} ± {check['spread']}"
        if finished.record is None:
            print(f"{words}; FAILED {finished.fault}: {finished.failure}", flush=True)
            continue
        one = finished.record
        print(f"{words}; here {one['test']} ± {one['spread']} ({one['seconds']:.0f} s)", flush=True)
        stale = [key for key, old in kept.items() if _same(old["check"], check)]
        kept = {key: old for key, old in kept.items() if key not in stale} | {key_of(check): one}
        write_json(arguments.kept, kept)
        if time.perf_counter() - started > 60 * arguments.minutes:
            break


def _same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return all(one[name] == other[name] for name in ("system", "graph", "probe"))


if __name__ == "__main__":
    main()
