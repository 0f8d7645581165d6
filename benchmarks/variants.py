"""What each difference between the paper, its released code and its later version is worth.

`python -m benchmarks.variants GRAPH … [--seeds 3] [--device auto] [--json FILE]` trains the preset `paper`,
the same with one change at a time, and the presets `released` and `later` whole. It judges them as
`benchmarks.defaults` does: mean accuracy of ridge regression on validation nodes, never on test nodes. What
FILE holds already is not trained again; `--table FILE …` prints stored runs as one table.
"""

from __future__ import annotations

from typing import Any

from benchmarks.defaults import arguments, measure_or_show
from h3gnn.tuned import preset

CHANGES: dict[str, dict[str, Any]] = {
    "paper": {},
    "untrained": {"epochs": 0},
    "norm after the sum": {"norm": "post"},
    "norm before the block": {"norm": "pre"},
    "ReLU in the block": {"activation": "relu"},
    "first token": {"output": "first"},
    "largest over tokens": {"output": "max"},
    "hops attend first": {"fusion": "hierarchical"},
    "two layers at least": {"min_layers": 2},
    "edge weights bounded": {"edge_weights": "learned"},
    "edge weights bounded, from σ(1)": {"edge_weights": "learned", "edge_init": 0.7310586},
    "edge weights fixed": {"edge_weights": "fixed"},
    "no self-loops": {"self_loops": False},
    "batch norm between layers": {"batch_norm": True},
    "mask token from zero": {"mask_token": "zero"},
    "a tenth of the mask swapped": {"replace_rate": 0.1},
    "cosine": {"loss": "cosine"},
    "scaled cosine": {"loss": "scaled-cosine"},
    "teacher with dropout": {"teacher_mode": "train"},
    "warm-up and cosine schedule": {"schedule": "cosine", "warmup_epochs": 10},
    "masks of exact size": {"mask_size": "exact"},
    "masks of free size": {"mask_size": "free"},
    "random masks": {"mask": "random"},
    "released": preset("released"),
    "later": preset("later"),
}
VARIANTS = {name: {**preset("paper"), **change} for name, change in CHANGES.items()}


def main() -> None:
    """Measure, or show what was measured."""
    parser = arguments(__doc__)
    parser.set_defaults(seeds=3, device="auto")
    measure_or_show(parser.parse_args(), VARIANTS)


if __name__ == "__main__":
    main()
