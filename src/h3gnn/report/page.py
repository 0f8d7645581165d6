"""The report page: one self-contained HTML file.

The data is a gzip stream of a length, a JSON description, and arrays aligned to eight bytes. In base64 it
cannot be mistaken for markup.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import html
import json
import math
import re
import struct
from collections.abc import Callable, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from h3gnn.evaluation.clustering import LANDMARKS, MAPS, project_to_plane
from h3gnn.evaluation.metrics import PREDICTION_TITLES, TITLES
from h3gnn.evaluation.probe import standardise
from h3gnn.report.findings import (
    MEMBER_NOTES,
    RAW,
    TRAINED,
    UNTRAINED,
    Findings,
    Floats,
    NeighborWeights,
    Scoreboard,
    member_representation,
)
from h3gnn.resources import map_in_threads
from h3gnn.storage.atomic import write_atomically

SCRIPTS = ("data", "colours", "points", "map", "node", "charts", "find", "scores", "main")
FINE, COARSE = "uint16", "uint8"
"""Types of quantised numbers, with 65,535 or 255 steps; the largest value means unknown."""
ALIGNMENT = 8
DOMINANT = 0.5  # a feature column with more than this share of the variance would determine a map alone
COLOUR_INDEX = {RAW: 7, UNTRAINED: 1, TRAINED: 0}
"""Colours of the representations among the page's sixteen; the others are for members."""
OTHER_RUN_COLOUR = 13  # members start from the front


def page_maps(
    findings: Findings,
    *,
    method: str = "tsne",
    seed: int = 0,
    progress: Callable[[str, float], None] = lambda words, share: None,
) -> dict[str, npt.NDArray[np.float32]]:
    """Return the two maps of a page: the embedding, and that of the other run or the raw features.

    The method is "tsne", "umap" or "pca"; `progress` receives the next step and the fraction of the maps that
    is done.
    """
    kind = MAPS[method]
    if method == "tsne" and findings.nodes > LANDMARKS:
        kind += f" by {LANDMARKS:,} landmarks"
    raw, scaled = balance_columns(findings.embeddings[RAW])
    first, second = "H3GNN embedding", {"raw features, scaled" if scaled else "raw features": raw}
    if findings.other is not None:
        first, second = "this run", {findings.other.name: findings.embeddings[findings.other.name]}
    shown = {first: findings.embeddings[TRAINED], **second}
    begun: list[str] = []

    def placed(title: str) -> npt.NDArray[np.float32]:
        progress(f"placing {findings.nodes:,} nodes: {title}", len(begun) / len(shown))
        begun.append(title)
        return project_to_plane(shown[title], method=method, seed=seed)

    places = map_in_threads(placed, shown, min(findings.nodes, LANDMARKS))  # t-SNE's maximum
    return {f"{title}, {kind}": one for title, one in zip(shown, places, strict=True)}


def balance_columns(rows: Floats) -> tuple[Floats, bool]:
    """Return features for a map, and whether they were standardised because one column dominates."""
    variance = np.var(rows, axis=0, dtype=np.float64)
    if rows.shape[1] < 2 or variance.max(initial=0) <= DOMINANT * variance.sum():
        return rows, False
    return standardise(torch.from_numpy(np.asarray(rows, dtype=np.float32))).numpy(), True


def write_page(path: Path, findings: Findings, maps: Mapping[str, npt.NDArray[np.floating]]) -> None:
    """Write the page atomically."""
    write_atomically(path, render_page(findings, maps).encode())


def render_page(findings: Findings, maps: Mapping[str, npt.NDArray[np.floating]]) -> str:
    """Return the page as HTML.

    Args:
        findings: the content.
        maps: positions of the nodes by title, each `[nodes, 2]`; the first is shown first.
    """
    script = '(() => {\n"use strict";\n' + "\n".join(read_asset(f"{name}.js") for name in SCRIPTS) + "})();"
    style = read_asset("page.css")
    policy = (
        f"default-src 'none'; script-src '{_fingerprint(script)}'; style-src '{_fingerprint(style)}'; "
        "img-src data: blob:"
    )
    filled = {
        "policy": policy,
        "title": html.escape(findings.title),
        "style": style,
        "script": script,
        "data": pack_findings(findings, maps),
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda mark: filled[mark[1]], read_asset("page.html"))


def pack_findings(findings: Findings, maps: Mapping[str, npt.NDArray[np.floating]]) -> str:
    """Return the data of the page's script as base64."""
    packer = Packer()
    run = findings.run
    colours = colour_indices([member.name for member in run.members])
    description = {
        "title": findings.title,
        "shown": findings.shown,
        "figures": findings.figures,
        "ids": list(findings.ids),
        "names": list(findings.names),
        "tables": None if findings.tables is None else vars(findings.tables),
        "maps": [
            {"title": title, "x": packer.scaled(places[:, 0]), "y": packer.scaled(places[:, 1])}
            for title, places in maps.items()
        ],
        "categories": [
            {"key": c.key, "title": c.title, "names": list(c.names), "values": packer.whole(c.values + 1)}
            for c in findings.categories
        ],
        "measures": [
            {"key": m.key, "title": m.title, "values": packer.scaled(m.values)}
            for m in findings.measures
            if not m.key.startswith("attention")  # computed by the page
        ],
        "texts": [{"title": name, "words": list(words)} for name, words in findings.texts.items()],
        "other": _other(findings),
        "tokens": list(findings.tokens),
        "attention": None if findings.attention is None else packer.scaled(findings.attention, low=0.0),
        "nearest": _nearest(findings, packer),
        "neighbors": _neighbors(findings.neighbors, packer),
        "predictions": _predictions(findings.predictions),
        "edgeChanges": [vars(change) for change in findings.edge_changes],
        "scores": _scores(findings.scores, colours),
        "history": _plain(run.columns),
        "members": [_plain(vars(one)) | {"colour": colours[one.name]} for one in run.members],
        "bestMembers": [_plain(vars(one)) for one in findings.scores.best_members] if findings.scores else [],
        "notes": MEMBER_NOTES if run.members else {},
        "collapsed": run.collapsed,
        "facts": _plain(run.facts),
        "settings": _plain(run.settings),
        "provenance": run.provenance,
    }
    return packer.pack(description)


def _nearest(findings: Findings, packer: Packer) -> dict[str, Any] | None:
    if findings.nearest is None or findings.similarity is None or not findings.nearest.size:
        return None
    return {
        "count": findings.nearest.shape[1],
        "nodes": packer.whole(findings.nearest),
        "similarity": packer.scaled(findings.similarity, kind=COARSE),
    }


def _neighbors(neighbors: NeighborWeights | None, packer: Packer) -> dict[str, Any] | None:
    if neighbors is None:
        return None
    return {
        "crow": packer.whole(neighbors.crow),
        "sources": packer.whole(neighbors.sources),
        "weight": packer.scaled(neighbors.weight, low=float(neighbors.weight.min(initial=0.0)), kind=COARSE),
        "change": packer.scaled(neighbors.weight / neighbors.start - 1),
        "total": packer.whole(neighbors.total),
    }


def _other(findings: Findings) -> dict[str, Any] | None:
    """Return the name of the other run and the differing settings as rows of name, here, there."""
    if findings.other is None:
        return None
    rows = [[name, _text(here), _text(there)] for name, (here, there) in findings.other.different.items()]
    return {"name": findings.other.name, "rows": rows, "notes": list(findings.other.notes)}


def _predictions(found: dict[str, Any] | None) -> dict[str, Any] | None:
    """Return the summary of predictions with the titles of its measures, and digits that suit them."""
    if found is None:
        return None
    errors = found["held_out"]["standard_error"]
    scores = [
        [PREDICTION_TITLES.get(name, name.replace("_", " ")), _figure(value, errors.get(name))]
        for name, value in found["held_out"]["mean"].items()
    ]
    measure = PREDICTION_TITLES.get(found["main_measure"], found["main_measure"].replace("_", " "))
    summary: dict[str, Any] = _plain(found | {"scores": scores, "measure": measure})
    return summary


def _figure(value: float, error: float | None) -> str:
    """Return a value with its standard error: three decimals, or none of a large number."""
    digits = ".3f" if abs(value) < 1000 else ",.0f"
    return f"{value:{digits}}" + (f" ± {error:{digits}}" if error else "")


def _text(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)


def colour_indices(members: Sequence[str]) -> dict[str, int]:
    """Return the colour of each representation and member by name."""
    free = [index for index in range(16) if index not in COLOUR_INDEX.values()]
    own = {name: free[which % len(free)] for which, name in enumerate(members)}
    return COLOUR_INDEX | {member_representation(name): index for name, index in own.items()} | own


def _scores(scores: Scoreboard | None, colours: Mapping[str, int]) -> dict[str, Any] | None:
    if scores is None:
        return None
    return {
        "protocol": scores.protocol,
        "leading": scores.leading,
        "titles": TITLES,
        "rare": scores.rare,
        "classNames": list(scores.class_names),
        "classCounts": _plain(scores.class_counts),
        "confusion": _plain(scores.confusion),
        "homophilyBins": _plain(scores.homophily_bins),
        "homophilyCounts": _plain(scores.homophily_counts),
        "rows": [
            {
                "representation": row.representation,
                "colour": colours.get(row.representation, OTHER_RUN_COLOUR),
                "probe": _plain(row.probe),
                "clustering": _plain(row.clustering),
                "byClass": _plain(row.by_class),
                "byHomophily": _plain(row.by_homophily),
                "secondary": _plain({"accuracy": row.probe} | row.secondary),
                "precision": _plain(row.precision),
            }
            for row in scores.rows
        ],
    }


def _plain(value: Any) -> Any:
    """Return a value for JSON: arrays as lists, NaN and infinity as null."""
    if isinstance(value, np.ndarray):
        return _plain(value.tolist())
    if isinstance(value, dict):
        return {name: _plain(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in value]
    if isinstance(value, (float, np.floating)):
        return float(f"{value:.7g}") if math.isfinite(value) else None
    if isinstance(value, np.integer):
        return int(value)
    return value if value is None or isinstance(value, (bool, int, str)) else str(value)


def read_asset(name: str) -> str:
    """Return a file of the page without indentation and comments."""
    text = (resources.files("h3gnn.report") / "assets" / name).read_text(encoding="utf-8")
    text = re.sub(r"^ */\*\*.*?\*/$", "", text, flags=re.DOTALL | re.MULTILINE)
    lines = (line.strip() for line in text.splitlines())
    return "".join(f"{line}\n" for line in lines if line and not line.startswith("//"))


def _fingerprint(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


class Packer:
    """Concatenates arrays; each method returns the description of one array."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._length = 0

    def whole(self, values: npt.NDArray[Any]) -> dict[str, Any]:
        """Add non-negative integers, in the smallest type that holds them."""
        largest = int(values.max(initial=0))
        kind = "uint8" if largest < 2**8 else "uint16" if largest < 2**16 else "uint32"
        return self._add(np.asarray(values).astype(kind), kind)

    def scaled(self, values: npt.NDArray[Any], low: float | None = None, kind: str = FINE) -> dict[str, Any]:
        """Add numbers quantised between their minimum (or `low`) and maximum; NaN means unknown."""
        unknown = int(np.iinfo(kind).max)
        numbers = np.asarray(values, dtype=np.float64)
        known = np.isfinite(numbers)
        smallest = (float(numbers[known].min()) if known.any() else 0.0) if low is None else low
        largest = float(numbers[known].max()) if known.any() else smallest
        step = (largest - smallest) / (unknown - 1) or 1.0
        steps = np.where(known, np.round((np.where(known, numbers, smallest) - smallest) / step), unknown)
        return self._add(steps.astype(kind), kind) | {"low": smallest, "step": step}

    def _add(self, values: npt.NDArray[Any], kind: str) -> dict[str, Any]:
        content = np.ascontiguousarray(values).astype(values.dtype.newbyteorder("<")).tobytes()
        described = {"at": self._length, "length": int(values.size), "kind": kind}
        self._parts += [content, bytes(-len(content) % ALIGNMENT)]
        self._length += len(content) + (-len(content) % ALIGNMENT)
        return described

    def pack(self, description: dict[str, Any]) -> str:
        """Return the description and all arrays as base64."""
        text = json.dumps(description, ensure_ascii=True, allow_nan=False, separators=(",", ":")).encode()
        text += b" " * (-(len(text) + ALIGNMENT) % ALIGNMENT)
        content = struct.pack("<II", len(text), 0) + text + b"".join(self._parts)
        return base64.b64encode(gzip.compress(content, compresslevel=6, mtime=0)).decode("ascii")
