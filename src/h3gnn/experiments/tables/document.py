"""docs/reproduction.md, written from the stored results and the shipped presets, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from h3gnn.errors import InputError
from h3gnn.evaluation.protocols import EVERY
from h3gnn.experiments.stored import read_table
from h3gnn.experiments.tables.markdown import NOTHING, figures_of, graph_title, grid, markdown_of
from h3gnn.experiments.tables.specifications import (
    PAPER_TITLE,
    PROB,
    TABLES,
    TUNED,
    UNTUNED,
    MeanStd,
    printed,
)

HEAD = f"""# The paper's tables and figures, made again

{{in_short}}

Its method (Prob and Diffi are the two ways in which it draws masks) was searched with a hundred settings a
graph, but mostly with narrower tokens and fewer epochs than its appendix has (Table 1 says which): where it
stays far below what is printed, as on Cora, CiteSeer and PubMed, whether wider tokens would close the gap is
not known. `nested` and "untuned" are told below.

The paper is *{PAPER_TITLE}*; its figures stand here as it prints them. This page is written by
`h3gnn reproduce --document` from the files in `results/`; a test checks that it is what they give.

```
h3gnn reproduce all                      # everything, on the GPU if there is one; goes on where it stopped
h3gnn reproduce classification           # one experiment: NAME.json and NAME.md in results/
h3gnn reproduce classification --quick   # minutes on two cores: does everything run?
h3gnn reproduce --document               # this page again
```
"""

PROTOCOL_WORDS = """## Rules of choosing, never mixed

- `nested`: {nested}.
- `pooled`: {pooled}.
- `published`: {published}. The setting is the best on test nodes, and of the epochs that were looked at each
  split has its best. The paper says that its figures belong to "the time at which the best model is
  selected", and its released code keeps the best test accuracy over all epochs; so the paper's figures are to
  be compared with these, and with these only.

The three rules are told of the same trainings. *The paper's method* is the structure as printed (preset
`paper`), one model, without smoothing, with the ranges of its appendix searched. *H3GNN, untuned* is the
defaults, the same for all graphs: only the probe's strength is chosen; it is to be compared with the other
systems, which have their defaults. *H3GNN, tuned* tried as many settings as stands under its table. Figures
are test accuracy of a linear probe in percent, mean ± standard deviation over splits and seeds; how many
stands in `results/*.json`. What was in view when something was chosen is told in [Evidence](evidence.md)."""


def document(results: Path) -> str:
    """Return the page for the results in a folder; figures are linked as `../results/NAME.png`."""
    stored = {
        name: read_table(results / f"{name}.json", name, table.rows, table.kind)
        for name, table in TABLES.items()
        if (results / f"{name}.json").is_file()
    }
    words = {name: protocol.words for name, protocol in EVERY.items()}
    with _rows_of(results):
        parts = [HEAD.format(in_short=_in_short(stored)), PROTOCOL_WORDS.format(**words), _origin(stored)]
    for name, content in stored.items():
        with _rows_of(results / f"{name}.json"):
            parts.append(markdown_of(content))
        if TABLES[name].picture and content["rows"]:
            parts.append(f"![{TABLES[name].title}](../results/{name}.png)")
    return "\n\n".join(part.strip() for part in parts if part) + "\n"


@contextmanager
def _rows_of(path: Path) -> Iterator[None]:
    """Turn what goes wrong with rows that are declared well and belong to no run of ours into a sentence."""
    try:
        yield
    except (LookupError, TypeError, ValueError, ArithmeticError, AttributeError) as error:
        raise InputError(
            f"{path} holds rows that no run of ours has left ({type(error).__name__}: {error}); "
            "`h3gnn reproduce` makes them again from the cells"
        ) from error


def _in_short(stored: dict[str, dict[str, Any]]) -> str:
    """Say what the paper prints, what its method gives here by either rule, and what ours gives."""
    tables = [name for name in ("classification", "filtered") if name in stored]
    graphs = [graph for name in tables for graph in TABLES[name].graphs]
    figures = {key: one for name in tables for key, one in figures_of(stored[name]["rows"]).items()}
    paper = {graph: one for name in tables for graph, one in printed(name)[PROB.printed].items()}
    rows = {
        "the paper prints (Prob)": [paper.get(graph) for graph in graphs],
        "its method here, chosen on test nodes": [figures.get((PROB.title, g, "published")) for g in graphs],
        "its method here, `nested`": [figures.get((PROB.title, graph, "nested")) for graph in graphs],
        "ours, untuned, `nested`": [figures.get((UNTUNED.title, graph, "nested")) for graph in graphs],
        "ours, tuned, `nested`": [figures.get((TUNED.title, graph, "nested")) for graph in graphs],
    }
    if not graphs:
        return ""
    lines = [[title, *map(_mean, row)] for title, row in rows.items()]
    return grid(["test accuracy, %", *map(graph_title, graphs)], lines)


def _mean(figure: MeanStd | None) -> str:
    return NOTHING if figure is None else f"{figure[0]:.2f}"


def _origin(stored: dict[str, dict[str, Any]]) -> str:
    """Say what computed the results."""
    rows = [row for content in stored.values() for row in content["rows"]]
    versions = _different(
        ", ".join(f"{name} {value}" for name, value in row["versions"].items())
        for row in rows
        if "versions" in row
    )
    devices = _different(row["device"] for row in rows if "device" in row)
    if not versions:
        return ""
    return (
        "## Origin\n\nEvery row in `results/*.json` carries the hash of its graph, its full configuration, "
        "seeds, protocol, versions, device and wall time.\n\n"
        f"- Versions: {'; '.join(versions)}\n- Devices: {'; '.join(devices)}"
    )


def _different(values: Any) -> Sequence[str]:
    return sorted(set(values))
