"""`python -m benchmarks.checks [NAME …] [--device cuda] [--jobs N]`: reproduce published figures.

Each system's card in `h3gnn.baselines` holds the figure that its authors report on a graph, and how they
measured it. The system is trained with its authors' settings, and scored as they score, even if they
select on test nodes, which the table states. A finished check is stored in `benchmarks/results/checks.json`
with graph, hash, settings, seeds, versions, origin and seconds; `--document` writes docs/baselines.md.
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
from h3gnn.storage.atomic import write_atomically
from reproduction.files import write_json
from reproduction.markdown import made_at

KEPT = HERE.parent / "results" / "checks.json"
DOCUMENT = HERE.parent.parent / "docs" / "baselines.md"
BEGIN, END = "<!-- checks -->", "<!-- /checks -->"


def table(kept: dict[str, Any]) -> str:
    """Return the stored checks as a Markdown table, in the order of the systems."""
    lines = [
        "| system | graph | reported | here | runs | within | how it is scored | to know |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    order = list(systems())
    place = {key: (order.index(one["check"]["system"]), one["check"]["graph"]) for key, one in kept.items()}
    for one in (kept[key] for key in sorted(kept, key=lambda key: place[key])):
        check = one["check"]
        lines.append(
            f"| {systems()[check['system']].title} | {check['graph']} "
            f"| {check['figure']} ± {check['spread']} ({check['source']}) "
            f"| {one['test']:.1f} ± {one['spread']:.1f} | {one['runs']} | {_within(one)} "
            f"| {_how(check)} | {check.get('note', '')} |"
        )
    return "\n".join(lines)


def _within(one: dict[str, Any]) -> str:
    """Compare the measured with the reported figure."""
    check = one["check"]
    apart = one["test"] - check["figure"]
    if abs(apart) <= max(check["spread"], one["spread"]):
        return "yes"
    return f"{abs(apart):.1f} {'above' if apart > 0 else 'below'}"


def _how(check: dict[str, Any]) -> str:
    """Describe how a figure is measured."""
    options, splits = check["probe"], check.get("splits", "own")
    clusters = "its own clusters" if options.get("own") else "k-means"
    probes = {
        "adam": f"linear layer, {options.get('steps')} steps, step by {options.get('choose', 'validation')}",
        "mlp": f"MLP of {options.get('layers')} layers, step by {options.get('choose', 'validation')}",
        "logistic": "logistic regression, strength by cross-validation",
        "own": "its own classes",
        "clusters": f"{clusters}, {options.get('measure', 'acc')}",
    }
    epoch = check.get("epoch", "last")
    words = ["public splits" if splits == "own" else f"{splits} %", probes[options["kind"]]]
    return "; ".join([*words, "last epoch" if epoch == "last" else f"epoch by {epoch} nodes"])


def document(kept: dict[str, Any]) -> str:
    """Return docs/baselines.md with the table of the stored checks."""
    text = DOCUMENT.read_text(encoding="utf-8")
    begin, end = text.index(BEGIN) + len(BEGIN), text.index(END)
    return f"{text[:begin]}\n\n{table(kept)}\n\n{made_at(list(kept.values()))}\n\n{text[end:]}"


def main() -> None:
    """Run the requested checks that are not stored."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--kept", type=Path, default=KEPT)
    parser.add_argument("--minutes", type=float, default=1e9, help="start no check after this time")
    parser.add_argument("--repeats", type=int, default=100, help="maximum repeats of each check")
    parser.add_argument("--table", action="store_true", help="print the stored checks")
    parser.add_argument("--document", action="store_true", help="write it into docs/baselines.md")
    arguments = parser.parse_args()
    kept = json.loads(arguments.kept.read_text(encoding="utf-8")) if arguments.kept.exists() else {}
    every = {key_of(check): check for check in checks_of([])}  # words may have changed since, or the check
    kept = {key: {**kept[key], "check": check} for key, check in every.items() if key in kept}
    if arguments.table or arguments.document:
        print(table(kept))
        if arguments.document:
            write_atomically(DOCUMENT, document(kept).encode())
            write_json(arguments.kept, kept)
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
        kept[key_of(check)] = one
        write_json(arguments.kept, kept)
        if time.perf_counter() - started > 60 * arguments.minutes:
            break


if __name__ == "__main__":
    main()
