"""The report page: one HTML file that holds its data, its drawing and nothing from elsewhere."""

from __future__ import annotations

import base64
import hashlib
import html
import math
import re
from collections.abc import Mapping
from importlib import resources
from typing import Any

import numpy as np
import numpy.typing as npt

from h3gnn.findings import Findings, Heard, Scores
from h3gnn.report.packing import COARSE, Packer

SCRIPTS = ("data.js", "colours.js", "points.js", "map.js", "node.js", "charts.js", "scores.js", "main.js")
"""In the order in which they are read; together they are one script."""


def render_page(findings: Findings, maps: Mapping[str, npt.NDArray[np.floating]]) -> str:
    """Return the page as HTML.

    Args:
        findings: what is shown.
        maps: places of the nodes by title, each `[nodes, 2]`; the first is the one that is looked at first.
    """
    script = '(() => {\n"use strict";\n' + "\n".join(_asset(name) for name in SCRIPTS) + "})();"
    style = _asset("page.css")
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
    return re.sub(r"\{\{(\w+)\}\}", lambda mark: filled[mark[1]], _asset("page.html"))


def pack_findings(findings: Findings, maps: Mapping[str, npt.NDArray[np.floating]]) -> str:
    """Return everything that the page's script reads, as base64."""
    packer = Packer()
    run = findings.run
    description = {
        "title": findings.title,
        "shown": findings.shown,
        "figures": findings.figures,
        "ids": list(findings.ids),
        "maps": [
            {
                "title": title,
                "x": packer.scaled(np.asarray(places)[:, 0]),
                "y": packer.scaled(np.asarray(places)[:, 1]),
            }
            for title, places in maps.items()
        ],
        "categories": [
            {"key": c.key, "title": c.title, "names": list(c.names), "values": packer.whole(c.values + 1)}
            for c in findings.categories
        ],
        "measures": [
            {"key": m.key, "title": m.title, "values": packer.scaled(m.values)}
            for m in findings.measures
            if not m.key.startswith("attention")  # the page works these out
        ],
        "tokens": list(findings.tokens),
        "attention": None if findings.attention is None else packer.scaled(findings.attention, low=0.0),
        "nearest": _nearest(findings, packer),
        "heard": _heard(findings.heard, packer),
        "edgeChanges": [vars(change) for change in findings.edge_changes],
        "scores": _scores(findings.scores),
        "history": {name: _plain(values) for name, values in run.columns.items()},
        "collapsed": run.collapsed,
        "facts": {name: _plain(value) for name, value in run.facts.items()},
        "settings": {k: _plain(v) for k, v in run.settings.items()},
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


def _heard(heard: Heard | None, packer: Packer) -> dict[str, Any] | None:
    if heard is None:
        return None
    return {
        "crow": packer.whole(heard.crow),
        "sources": packer.whole(heard.sources),
        "weight": packer.scaled(heard.weight, low=0.0, kind=COARSE),
        "change": packer.scaled(heard.weight / heard.start - 1),
        "total": packer.whole(heard.total),
    }


def _scores(scores: Scores | None) -> dict[str, Any] | None:
    if scores is None:
        return None
    return {
        "protocol": scores.protocol,
        "classNames": list(scores.class_names),
        "classCounts": _plain(scores.class_counts),
        "confusion": _plain(scores.confusion),
        "homophilyBins": _plain(scores.homophily_bins),
        "homophilyCounts": _plain(scores.homophily_counts),
        "rows": [
            {
                "representation": row.representation,
                "probe": _plain(row.probe),
                "clustering": {name: _plain(values) for name, values in row.clustering.items()},
                "byClass": _plain(row.by_class),
                "byHomophily": _plain(row.by_homophily),
            }
            for row in scores.rows
        ],
    }


def _plain(value: Any) -> Any:
    """Return a value for JSON: arrays as lists, what is not a number as null."""
    if isinstance(value, np.ndarray):
        return _plain(value.tolist())
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in value]
    if isinstance(value, (float, np.floating)):
        return float(f"{value:.7g}") if math.isfinite(value) else None
    if isinstance(value, np.integer):
        return int(value)
    return value if value is None or isinstance(value, (bool, int, str)) else str(value)


def _asset(name: str) -> str:
    return (resources.files("h3gnn.report") / "assets" / name).read_text(encoding="utf-8")


def _fingerprint(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
