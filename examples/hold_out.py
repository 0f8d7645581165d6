"""Keep half of the labels aside: `python examples/hold_out.py bitcoin/labels.csv --out bitcoin/`.

Writes `known.csv`, labels for `h3gnn predict --labels`, and `truth.csv`, to score the predictions with.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import pandas as pd


def main() -> None:
    """Write both files."""
    parser = argparse.ArgumentParser(description="Keep half of the labels of each class aside.")
    parser.add_argument("labels", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    labels = pd.read_csv(given.labels, dtype=str)
    known = labels.groupby(labels.columns[1]).sample(frac=0.5, random_state=given.seed).sort_index()
    known.to_csv(given.out / "known.csv", index=False)
    labels.drop(index=known.index).to_csv(given.out / "truth.csv", index=False)
    print(f"wrote {given.out}: {len(known):,} labels to learn from, {len(labels) - len(known):,} kept aside")


if __name__ == "__main__":
    main()
