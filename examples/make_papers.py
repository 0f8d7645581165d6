"""Make the tables of a library: papers with titles, which cites which, and few that have a field.

`python examples/make_papers.py --out papers/` writes

- `papers.csv`: one row per paper: title, year, venue, and `field`, which a librarian has filled in for one
  paper in ten;
- `citations.csv`: which paper cites which;
- `truth.csv`: the field of every paper, to see afterwards how good an answer was.

Three fields cite themselves. Two do not: `methods` are cited by `applications` and cite mathematics outside
this library, so that the neighbours of a paper on methods are papers on something else. The same seed gives
the same files.
"""

from __future__ import annotations

import argparse
import csv
from pathlib import Path
from typing import Any

import numpy as np

WORDS = {
    "genetics": "gene genome mutation expression sequence protein cell heredity",
    "ecology": "species habitat forest climate population diversity river season",
    "linguistics": "syntax grammar corpus speech dialect meaning verb language",
    "methods": "estimator bound likelihood sampling kernel regression convergence test",
    "applications": "survey trial field prediction evidence outcome regional sample",
}
CITES = {"methods": "applications", "applications": "methods"}
COMMON = (
    *("study", "analysis", "model", "effects", "new", "approach"),
    *("data", "large", "evaluation", "review", "structure", "patterns"),
)
VENUES = ("Annals", "Letters", "Proceedings", "Quarterly", "Reports")
SHARE_LABELLED, CITATIONS = 0.1, 4


def make_papers(rng: np.random.Generator, count: int) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the rows of the papers, the oldest first, and their fields."""
    fields = [str(one) for one in rng.choice(list(WORDS), count)]
    years = np.sort(rng.integers(1990, 2024, count))
    rows = []
    for number, field in enumerate(fields):
        own = WORDS[field if rng.random() < 0.7 else str(rng.choice(list(WORDS)))].split()
        words = [*rng.choice(own, 2, replace=False), *rng.choice(COMMON, 4, replace=False)]
        rows.append(
            {
                "paper_id": f"W{number:05d}",
                "title": " ".join(str(word) for word in rng.permutation(words)).capitalize(),
                "year": int(years[number]),
                "venue": str(rng.choice(VENUES)),
                "field": field if rng.random() < SHARE_LABELLED else "",
            }
        )
    return rows, fields


def make_citations(rng: np.random.Generator, fields: list[str]) -> list[tuple[int, int]]:
    """Return (citing, cited): papers cite older ones, four in five of the field that theirs goes with."""
    of = np.array(fields)
    found = set()
    for paper in range(20, len(fields)):
        wanted = np.flatnonzero(of[:paper] == CITES.get(fields[paper], fields[paper]))
        for _ in range(int(rng.poisson(CITATIONS))):
            close = rng.random() < 0.8 and wanted.size
            found.add((paper, int(rng.choice(wanted)) if close else int(rng.integers(paper))))
    return sorted(found)


def write(path: Path, rows: list[dict[str, Any]]) -> None:
    """Write rows as CSV."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def main() -> None:
    """Write the three tables."""
    parser = argparse.ArgumentParser(description="Make papers.csv, citations.csv and truth.csv.")
    parser.add_argument("--out", type=Path, default=Path("papers"))
    parser.add_argument("--papers", type=int, default=1200)
    parser.add_argument("--seed", type=int, default=0)
    said = parser.parse_args()
    rng = np.random.default_rng(said.seed)
    rows, fields = make_papers(rng, said.papers)
    names = [row["paper_id"] for row in rows]
    citations = [{"citing": names[a], "cited": names[b]} for a, b in make_citations(rng, fields)]
    said.out.mkdir(parents=True, exist_ok=True)
    write(said.out / "papers.csv", rows)
    write(said.out / "citations.csv", citations)
    truth = [{"paper_id": name, "field": one} for name, one in zip(names, fields, strict=True)]
    write(said.out / "truth.csv", truth)
    print(f"wrote {said.out}: {len(rows):,} papers, {len(citations):,} citations")


if __name__ == "__main__":
    main()
