"""docs/reproduction.md, written from the stored results and the shipped presets, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from h3gnn.errors import InputError
from h3gnn.evaluation.protocols import PROTOCOLS
from h3gnn.experiments.stored import read_table
from h3gnn.experiments.tables.markdown import figure_of, figures_of, graph_title, grid, markdown_of, percent
from h3gnn.experiments.tables.specifications import DIFFI, PAPER_TITLE, PROB, TABLES, printed
from h3gnn.settings import tuned_presets

HEAD = f"""# The paper's tables and figures, made again

This page is written by `h3gnn reproduce --document` from the files in `results/`; a test checks that it is
what they give. The paper is *{PAPER_TITLE}*; its figures stand here as it prints them.

```
h3gnn reproduce all                      # everything, on the GPU if there is one; goes on where it stopped
h3gnn reproduce classification           # one experiment: NAME.json and NAME.md in results/
h3gnn reproduce classification --quick   # minutes on two cores: does everything run?
h3gnn reproduce --document               # this page again
```
"""

PROTOCOL_WORDS = """## Two protocols, never mixed

- `validation`: {validation}. The training runs as many epochs as the graph's preset says, and the embedding
  after the last is probed.
- `published`: {published}. Of the epochs that were looked at, each split has its best. The paper says that
  its figures belong to "the time at which the best model is selected", and its released code keeps the best
  test accuracy over all epochs; so the paper's figures are to be compared with these, and with these only.

Both come from the same training runs. Each row of H3GNN uses the preset that ships for its graph, found by
`h3gnn tune` on validation nodes. Figures are test accuracy of a linear probe in percent, mean ± standard
deviation over splits and seeds: ten splits for the heterophilic graphs, the public split with ten seeds for
Cora, CiteSeer and PubMed."""


def document(results: Path) -> str:
    """Return the page for the results in a folder; figures are linked as `../results/NAME.png`."""
    stored = {
        name: read_table(results / f"{name}.json", name, table.rows, table.kind)
        for name, table in TABLES.items()
        if (results / f"{name}.json").is_file()
    }
    words = {name: protocol.words for name, protocol in PROTOCOLS.items()}
    parts = [HEAD, PROTOCOL_WORDS.format(**words)]
    with _rows_of(results):
        parts += [_presets(stored), _in_short(stored), _origin(stored)]
    for name, content in stored.items():
        with _rows_of(results / f"{name}.json"):
            parts.append(markdown_of(content))
        if TABLES[name].picture:
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


def _presets(stored: dict[str, dict[str, Any]]) -> str:
    """Return the shipped presets with what each scores: the row whose mask is the preset's own."""
    masks = {entry.title: entry.changes["mask"] for entry in (DIFFI, PROB)}
    tables = [stored[name] for name in ("classification", "filtered") if name in stored]
    lines = []
    for row in (row for one in tables for row in one["rows"]):
        mask = tuned_presets().get(row["graph"], {"params": {"mask": None}})["params"]["mask"]
        if masks.get(row["method"]) == mask is not None and row["protocol"] == "validation":
            settings = [str(row["params"][one]) for one in ("mask", "epochs", "n_models", "smoothing")]
            runs = f"{len(row['seeds'])} × {len(row['probe']['per_split'][0])}"
            lines.append([graph_title(row["graph"]), *settings, percent(figure_of(row)), runs])
    if not lines:
        return ""
    headings = ["graph", "mask", "epochs", "models joined", "smoothing", "test accuracy", "seeds × splits"]
    return (
        "## The shipped presets, `validation`\n\nOne preset for each graph, with its own kind of mask "
        "(`h3gnn evaluate GRAPH --preset GRAPH`); what the tables below call Diffi and Prob is the preset "
        "with either mask.\n\n" + grid(headings, lines)
    )


def _in_short(stored: dict[str, dict[str, Any]]) -> str:
    """Say where the paper's figures rest on test nodes, and what the same models score without them."""
    sentences = []
    for name in ("classification", "filtered"):
        if name not in stored:
            continue
        figures, paper = figures_of(stored[name]["rows"]), printed(name)[PROB.title]
        for graph, theirs in paper.items():
            chosen, honest = (figures.get((PROB.title, graph, one)) for one in ("published", "validation"))
            if theirs is None or chosen is None or honest is None:
                continue
            sentences.append(
                f"- {graph_title(graph)}: the paper prints {theirs[0]:.2f}; ours with the epoch and the "
                f"probe chosen on test nodes {chosen[0]:.2f}; the same runs with nothing chosen there "
                f"{honest[0]:.2f}."
            )
    if not sentences:
        return ""
    lead = (
        "## In short\n\nThe paper's figures rest on test nodes: its released code reports the best test "
        "accuracy over epochs. With probability masks (Prob):\n\n"
    )
    return lead + "\n".join(sentences)


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
