"""The tables of docs/performance.md, from the stored results: `python -m benchmarks.tables`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"


def table(rows: list[dict[str, Any]], columns: dict[str, str]) -> str:
    """Return a Markdown table with these columns (name in the results: heading)."""
    lines = ["| " + " | ".join(columns.values()) + " |", "| " + " | ".join("---" for _ in columns) + " |"]
    lines += ["| " + " | ".join(str(row.get(name, "")) for name in columns) + " |" for row in rows]
    return "\n".join(lines)


def document() -> str:
    """Return all tables, each under the name that the document marks its place with."""
    cpu = json.loads((RESULTS / "cpu.json").read_text())
    gpu = json.loads((RESULTS / "gpu.json").read_text())
    precision = json.loads((RESULTS / "precision.json").read_text())
    measured = {
        "graph": "graph",
        "channels": "C",
        "precision": "precision",
        "reference_ms": "reference ms",
        "engine_ms": "engine ms",
        "ratio": "times faster",
        "reference_mb": "reference MB",
        "engine_mb": "engine MB",
    }
    single = [row for row in cpu["rows"] if row["models"] == 1]
    floors = {(row["graph"], row["channels"]): row["floor_ms"] for row in cpu["floors"]}
    single = [row | {"floor_ms": floors[row["graph"], row["channels"]]} for row in single]
    stacks = [row for row in cpu["rows"] if row["models"] > 1]
    parts = [
        f"On {cpu['machine']['processor']}, {cpu['machine']['threads']} threads, torch {cpu['machine']['torch']}:",
        table(single, measured | {"floor_ms": "floor ms (float32)"}),
        table(
            stacks,
            {
                "graph": "graph",
                "models": "models",
                "precision": "precision",
                "one_after_another_ms": "one after another ms",
                "engine_ms": "at once ms",
                "ratio": "times faster",
            },
        ),
        table(cpu["growth"], {"graph": "shape", "engine_ms": "engine ms", "times": "times the base"}),
        f"On an {gpu['machine']['device']}, torch {gpu['machine']['torch']}:",
        table(gpu["rows"], measured | {"models": "models", "ms_per_model": "ms per model"}),
        table(
            precision,
            {
                "graph": "graph",
                "seeds": "seeds",
                "float32": "float32",
                "bfloat16": "bfloat16",
                "difference": "difference",
                "standard_error": "standard error",
            },
        ),
    ]
    return "\n\n".join(parts) + "\n"


if __name__ == "__main__":
    print(document(), end="")
