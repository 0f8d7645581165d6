"""Make the tables of a shop: products described in words, and which were bought together.

`python examples/make_products.py --out products/` writes

- `products.csv`: one row per product: title, description, brand, price (with gaps), date, tags, and
  `category`, which a person has filled in for one product in five;
- `purchases.csv`: pairs of products that were bought together, with how often;
- `truth.csv`: the category of every product, to see afterwards how good an answer was.

Titles are short and share words between categories; what is bought together is partly of one category and
partly of those that go with it (a tent with a stove), so neighbours are alike and unlike. The same seed gives
the same files.
"""

from __future__ import annotations

import argparse
import csv
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import numpy as np

WORDS = {
    "camping": "tent pole stove sleeping bag mat lantern waterproof trail canvas peg camp outdoor",
    "cycling": "bike wheel chain helmet brake saddle tube pump pedal reflector road commuter",
    "kitchen": "pan knife steel lid oven whisk bowl board nonstick dishwasher chef cast",
    "coffee": "grinder espresso filter beans kettle milk frother roast crema portable mug brewer",
    "audio": "speaker bluetooth headphones bass wireless earbuds cable amplifier stereo noise sound battery",
    "photo": "lens tripod camera filter strap memory card flash zoom bag bracket portable",
    "garden": "hose soil seeds pot spade pruning glove watering compost trellis outdoor rake",
    "toys": "puzzle wooden blocks train plush game cards colour children dice board magnetic",
}
GOES_WITH = {
    **{"camping": "kitchen", "kitchen": "coffee", "coffee": "camping", "cycling": "photo"},
    **{"photo": "audio", "audio": "cycling", "garden": "toys", "toys": "garden"},
}
COMMON = [
    *("set", "black", "light", "compact", "quality", "new", "pro"),
    *("classic", "large", "small", "pack", "easy", "strong", "design"),
]
BRANDS = ("Norda", "Halm", "Velo & Co", "Kessel", "Brunn", "Tarn", "Ostrea", "Lumen")
SHARE_LABELLED = 0.2


def make_products(rng: np.random.Generator, count: int) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the rows of the products and their categories."""
    categories = [str(one) for one in rng.choice(list(WORDS), count)]
    rows = []
    for number, category in enumerate(categories):
        own = WORDS[category].split()

        def some(of_own: int, of_common: int, own: list[str] = own) -> list[str]:
            words = [*rng.choice(own, of_own, replace=False), *rng.choice(COMMON, of_common, replace=False)]
            return [str(word) for word in rng.permutation(words)]

        other = WORDS[str(rng.choice(list(WORDS)))].split()
        text = [*some(3, 6), *(str(word) for word in rng.choice(other, 3, replace=False))]
        listed = date(2021, 1, 1) + timedelta(days=int(rng.integers(0, 1400)))
        rows.append(
            {
                "product_id": f"P{number:05d}",
                "title": " ".join(some(1, 3)).capitalize(),
                "description": ""
                if rng.random() < 0.1
                else " ".join(str(word) for word in rng.permutation(text)) + ".",
                "brand": str(rng.choice(BRANDS)),
                "price": "" if rng.random() < 0.08 else f"{float(rng.lognormal(3.2, 0.7)):.2f}",
                "listed": listed.isoformat(),
                "tags": "|".join(sorted({str(word) for word in rng.choice(COMMON[:8], 2)})),
                "category": category if rng.random() < SHARE_LABELLED else "",
            }
        )
    return rows, categories


def make_purchases(rng: np.random.Generator, categories: list[str]) -> dict[tuple[int, int], int]:
    """Return how often two products were bought together."""
    places = {one: np.flatnonzero([category == one for category in categories]) for one in WORDS}
    counts: dict[tuple[int, int], int] = {}
    for _ in range(5 * len(categories)):
        first = int(rng.integers(len(categories)))
        chance = rng.random()
        if chance < 0.45:
            second = int(rng.choice(places[categories[first]]))
        elif chance < 0.85:
            second = int(rng.choice(places[GOES_WITH[categories[first]]]))
        else:
            second = int(rng.integers(len(categories)))
        if first != second:
            pair = (min(first, second), max(first, second))
            counts[pair] = counts.get(pair, 0) + int(rng.integers(1, 4))
    return counts


def write(path: Path, rows: list[dict[str, Any]]) -> None:
    """Write rows as CSV."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def main() -> None:
    """Write the three tables."""
    parser = argparse.ArgumentParser(description="Make products.csv, purchases.csv and truth.csv.")
    parser.add_argument("--out", type=Path, default=Path("products"))
    parser.add_argument("--products", type=int, default=1500)
    parser.add_argument("--seed", type=int, default=0)
    said = parser.parse_args()
    rng = np.random.default_rng(said.seed)
    rows, categories = make_products(rng, said.products)
    names = [row["product_id"] for row in rows]
    purchases = [
        {"product_1": names[first], "product_2": names[second], "weight": count}
        for (first, second), count in make_purchases(rng, categories).items()
    ]
    said.out.mkdir(parents=True, exist_ok=True)
    write(said.out / "products.csv", rows)
    write(said.out / "purchases.csv", purchases)
    write(
        said.out / "truth.csv",
        [{"product_id": name, "category": one} for name, one in zip(names, categories, strict=True)],
    )
    print(f"wrote {said.out}: {len(rows):,} products, {len(purchases):,} pairs bought together")


if __name__ == "__main__":
    main()
