"""Writes docs/performance.md from its template and the stored results: `python -m benchmarks.tables`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results"
TEMPLATE, DOCUMENT = ROOT / "docs" / "performance.md.in", ROOT / "docs" / "performance.md"

MEASURED = {
    "graph": "graph",
    "channels": "C",
    "precision": "precision",
    "reference_ms": "reference ms",
    "engine_ms": "engine ms",
    "ratio": "times faster",
    "reference_mb": "reference MB",
    "engine_mb": "engine MB",
}
STACKED = {
    "graph": "graph",
    "models": "models",
    "precision": "precision",
    "reference_ms": "reference, one after another ms",
    "one_after_another_ms": "engine, one after another ms",
    "engine_ms": "engine, at once ms",
    "ratio": "times faster than the reference",
    "ratio_to_engine": "times faster than the engine",
}


def table(rows: list[dict[str, Any]], columns: dict[str, str]) -> str:
    """Return a Markdown table with these columns (name in the results: heading)."""
    lines = ["| " + " | ".join(columns.values()) + " |", "| " + " | ".join("---" for _ in columns) + " |"]
    lines += ["| " + " | ".join(str(row.get(name, "")) for name in columns) + " |" for row in rows]
    return "\n".join(lines)


def document() -> str:
    """Return the document, each mark of the template replaced by its table."""
    cpu, gpu, precision = (
        json.loads((RESULTS / f"{name}.json").read_text()) for name in ("cpu", "gpu", "precision")
    )
    floors = {(row["graph"], row["channels"]): row["floor_ms"] for row in cpu["floors"]}
    single = [
        row | {"floor_ms": floors[row["graph"], row["channels"]]} for row in cpu["rows"] if row["models"] == 1
    ]
    several = [row for row in cpu["rows"] if row["models"] > 1]
    marks = {
        "cpu_machine": "{processor}, {threads} threads, torch {torch}.".format(**cpu["machine"]),
        "cpu": table(single, MEASURED | {"floor_ms": "floor ms (float32)"}),
        "stack": table(several, STACKED),
        "growth": table(cpu["growth"], {"graph": "shape", "engine_ms": "ms", "times": "times the base"}),
        "gpu_machine": "{device}, torch {torch}.".format(**gpu["machine"]),
        "gpu": table(gpu["rows"], {"models": "models"} | MEASURED | {"ms_per_model": "ms per model"}),
        "precision": table(
            precision, {name: name.replace("_", " ") for name in precision[0] if name != "sha256"}
        ),
    }
    text = TEMPLATE.read_text()
    for mark, content in marks.items():
        text = text.replace("{" + mark + "}", content)
    return text


if __name__ == "__main__":
    DOCUMENT.write_text(document())
    print(f"wrote {DOCUMENT.relative_to(ROOT)}")
