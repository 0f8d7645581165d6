"""Compare predictions with the truth: `python examples/score.py predictions.csv fraud/truth.csv`.

The truth of the generated cases is known for all nodes. For real data, `hold_out.py` keeps labels aside.
Nodes without a truth are left out.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import pandas as pd
from sklearn.metrics import average_precision_score, balanced_accuracy_score

TOP = 50


def score(predictions: pd.DataFrame, truth: pd.DataFrame, positive: str | None = None) -> list[str]:
    """Return lines for a person.

    Args:
        predictions: as `h3gnn predict` writes them.
        truth: ids, then classes.
        positive: the class whose average precision is computed; default: the rarer of two.
    """
    known = truth.set_index(truth.columns[0])[truth.columns[1]].reindex(predictions["node"].astype(str))
    predictions = predictions[known.notna().to_numpy()].reset_index(drop=True)
    known = known.dropna()
    if known.empty:
        raise SystemExit("the truth has no row for any predicted node")
    right = predictions["class"].to_numpy() == known.to_numpy()
    unmarked = ~predictions["cannot_tell"].to_numpy(dtype=bool)
    shares = known.value_counts(normalize=True)
    lines = [
        f"{len(known):,} nodes, {shares.iloc[0]:.1%} of them {shares.index[0]}",
        f"accuracy            {right.mean():.3f}",
        f"balanced accuracy   {balanced_accuracy_score(known, predictions['class']):.3f}",
        f"share unmarked      {unmarked.mean():.3f}",
    ]
    if unmarked.any():
        lines.append(f"accuracy unmarked   {right[unmarked].mean():.3f}")
    if len(shares) == 2:
        rare = positive or shares.index[1]
        is_rare, chance = (known == rare).to_numpy(), predictions[f"p_{rare}"]
        top = is_rare[chance.nlargest(TOP).index]
        lines.append(f"average precision   {average_precision_score(is_rare, chance):.3f} of {rare}")
        lines.append(f"by chance           {is_rare.mean():.3f}")
        lines.append(f"mean probability    {chance.mean():.3f}, and {is_rare.mean():.3f} are {rare}")
        lines.append(f"among the first {len(top)}  {top.sum()} of {is_rare.sum()} are {rare}")
    return lines


def main() -> None:
    """Print the scores."""
    parser = argparse.ArgumentParser(description="Compare predictions with the truth.")
    parser.add_argument("predictions", type=Path)
    parser.add_argument("truth", type=Path)
    parser.add_argument(
        "--of", help="the class whose average precision is printed; default: the rarer of two"
    )
    given = parser.parse_args()
    read = pd.read_csv if given.predictions.suffix == ".csv" else pd.read_parquet
    print("\n".join(score(read(given.predictions), pd.read_csv(given.truth, dtype=str), given.of)))


if __name__ == "__main__":
    main()
