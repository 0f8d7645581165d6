"""Make the database of a small shop: customers, products, orders, order lines and ratings.

`python examples/make_shop.py --out shop/` writes into shop/tables/

- `customers.csv`: name, city, birth year, day of joining, and `subscribes`, known for six customers in ten;
- `products.csv`: title, category, brand, price;
- `orders.csv`: customer, day, channel, and whether the order was `returned`;
- `order_lines.csv`: order, product, quantity;
- `ratings.csv`: customer, product, stars, day;

into shop/new/ the rows of the following weeks, also of new customers, and into shop/truth.csv what the
customers without a known answer do.

Each customer prefers one category, and is content or not. Who subscribes follows from what is bought and how
it is rated, and which orders are returned from earlier ratings: from linked tables, never from the own row.
A few lines are wrong: somebody ordered a hundred teapots. The same seed gives the same files.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import pandas as pd

CATEGORIES = ("tea", "coffee", "books", "garden", "toys")
SUBSCRIBED = ("tea", "coffee")
"""Categories whose buyers subscribe, if they like what they get."""
BRANDS = ("Norda", "Halm", "Kessel", "Tarn", "Lumen", "Ostrea")
THINGS = {
    "tea": ("green tea", "black tea", "teapot", "strainer", "herbal tea"),
    "coffee": ("espresso", "filter", "grinder", "mug", "decaf"),
    "books": ("novel", "atlas", "diary", "cookbook", "crime story"),
    "garden": ("spade", "seeds", "hose", "pot", "glove"),
    "toys": ("blocks", "puzzle", "kite", "train", "ball"),
}
FIRST = ("Ann", "Bob", "Cid", "Dan", "Eve", "Fay", "Gus", "Hal", "Ida", "Jan", "Kai", "Lea", "Mia", "Ned")
LAST = ("Abel", "Berg", "Cole", "Dorn", "Egger", "Falk", "Gold", "Hahn", "Imhof", "Jung", "Kern", "Lang")
CITIES = ("Bonn", "Jena", "Ulm", "Kiel", "Trier")
START = pd.Timestamp("2023-01-01")
DAYS, LATER = 700, 60
"""Days of the tables, and of the rows that are added afterwards."""


def make_shop(
    customers: int, seed: int
) -> tuple[dict[str, pd.DataFrame], dict[str, pd.DataFrame], pd.DataFrame]:
    """Return the tables, the rows that are added to them, and the truth about all customers."""
    rng = np.random.default_rng(seed)
    products = _products(rng, max(30, customers // 4))
    joining = max(4, customers // 20)
    total = customers + joining
    joined = np.sort(rng.integers(0, DAYS - 200, total))
    joined[customers:] = rng.integers(DAYS, DAYS + LATER // 2, joining)
    taste, content = rng.integers(0, len(CATEGORIES), total), rng.random(total) < 0.6
    people = pd.DataFrame(
        {
            "customer_id": 1000 + np.arange(total),
            "name": [f"{rng.choice(FIRST)} {rng.choice(LAST)} {number}" for number in range(total)],
            "city": rng.choice(CITIES, total),
            "birth_year": rng.integers(1945, 2005, total),
            "joined": _days(joined),
        }
    )
    orders, lines, ratings = _purchases(rng, products, joined, taste, content)
    likes = np.isin(np.array(CATEGORIES)[taste], SUBSCRIBED) & content
    subscribes = np.where(likes ^ (rng.random(total) < 0.05), "yes", "no")
    people["subscribes"] = pd.Series(subscribes).where(rng.random(total) < 0.6, None)
    people.loc[customers:, "subscribes"] = None
    truth = pd.DataFrame({"customer_id": people["customer_id"], "subscribes": subscribes})
    later = orders["day"] >= DAYS
    late_line = lines["order_id"].isin(orders["order_id"][later])
    parts = {
        "customers": (people, np.arange(total) >= customers),
        "products": (products, np.zeros(len(products), bool)),
        "orders": (orders.assign(day=_days(orders["day"])), later.to_numpy()),
        "order_lines": (lines, late_line.to_numpy()),
        "ratings": (ratings.assign(day=_days(ratings["day"])), (ratings["day"] >= DAYS).to_numpy()),
    }
    parts["orders"][0].loc[later, "returned"] = None
    known = {name: table[~new] for name, (table, new) in parts.items()}
    added = {name: table[new] for name, (table, new) in parts.items() if new.any()}
    return known, added, truth


def _products(rng: np.random.Generator, count: int) -> pd.DataFrame:
    category = np.arange(count) % len(CATEGORIES)
    brand = rng.choice(BRANDS, count)
    titles = [f"{brand[at]} {rng.choice(THINGS[CATEGORIES[one]])} {at}" for at, one in enumerate(category)]
    return pd.DataFrame(
        {
            "product_id": 1 + np.arange(count),
            "title": titles,
            "category": np.array(CATEGORIES)[category],
            "brand": brand,
            "price": np.round(rng.lognormal(2.5, 0.6, count), 2),
        }
    )


def _purchases(
    rng: np.random.Generator,
    products: pd.DataFrame,
    joined: np.ndarray,
    taste: np.ndarray,
    content: np.ndarray,
) -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]:
    """Return the orders, their lines and the ratings of all customers, with days as numbers."""
    category = products["category"].map(CATEGORIES.index).to_numpy()
    orders = list[tuple[int, int, int, str, str]]()
    lines, ratings = list[tuple[int, int, int]](), list[tuple[int, int, int, int]]()
    for customer, day in enumerate(joined):
        weight = np.where(category == taste[customer], 5.0, 1.0) * rng.random(len(products)) ** 2
        last = min(DAYS + LATER, int(day) + 400)
        for bought in sorted(rng.integers(day, last, 3 + rng.poisson(3))):
            size = 1 + min(rng.poisson(1.4), 5)
            chosen = rng.choice(len(products), size, replace=False, p=weight / weight.sum())
            returned = "yes" if rng.random() < (0.05 if content[customer] else 0.6) else "no"
            channel = rng.choice(["web", "app", "desk"])
            orders.append((5000 + len(orders), 1000 + customer, int(bought), channel, returned))
            lines += [(orders[-1][0], 1 + item, 1 + rng.poisson(0.5)) for item in chosen]
            for item in chosen[rng.random(size) < 0.6]:
                stars = rng.normal(4.2 if content[customer] else 2.4, 0.8) + 0.5 * (
                    category[item] == taste[customer]
                )
                ratings.append((1000 + customer, 1 + item, int(np.clip(round(stars), 1, 5)), int(bought) + 3))
    wrong = rng.choice(len(lines), 5, replace=False)
    lines = [(*line[:2], 100) if at in wrong else line for at, line in enumerate(lines)]
    made = pd.DataFrame(ratings, columns=["customer_id", "product_id", "stars", "day"])
    made = made.drop_duplicates(["customer_id", "product_id"]).reset_index(drop=True)
    return (
        pd.DataFrame(orders, columns=["order_id", "customer_id", "day", "channel", "returned"]),
        pd.DataFrame(lines, columns=["order_id", "product_id", "quantity"]),
        made,
    )


def _days(days: np.ndarray | pd.Series) -> pd.Series:
    return (START + pd.to_timedelta(pd.Series(days), unit="D")).dt.strftime("%Y-%m-%d")


def main() -> None:
    """Write the files."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--out", type=Path, required=True, help="folder to write to")
    parser.add_argument("--customers", type=int, default=240, help="number of customers (at least 40)")
    parser.add_argument("--seed", type=int, default=0, help="seed of all that is drawn")
    given = parser.parse_args()
    if given.customers < 40:
        parser.error("--customers must be at least 40")
    known, added, truth = make_shop(given.customers, given.seed)
    for folder, tables in (("tables", known), ("new", added)):
        (given.out / folder).mkdir(parents=True, exist_ok=True)
        for name, table in tables.items():
            table.to_csv(given.out / folder / f"{name}.csv", index=False)
    truth.to_csv(given.out / "truth.csv", index=False)
    rows = ", ".join(f"{len(table):,} {name}" for name, table in known.items())
    print(f"wrote {given.out / 'tables'}: {rows.replace('_', ' ')}")


if __name__ == "__main__":
    main()
