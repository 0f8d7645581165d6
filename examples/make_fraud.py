"""Make the tables of a bank that looks for fraud: accounts, transactions between them, and few known cases.

`python examples/make_fraud.py --out fraud/` writes

- `accounts.csv`: one row per account: country, date of opening, balance (with gaps), type, a free-text memo,
  and `is_fraud`, which is known for 5 % of the accounts only: cases that were reported, and accounts that
  were checked and found clean;
- `transactions.csv`: one row per transfer, often several between the same two accounts;
- `new-accounts.csv`, `new-transactions.csv`: accounts that joined afterwards, a tenth as many, and the
  transfers to and from them;
- `truth.csv`: what nobody would have, the class of every account, to see afterwards how good an answer was.

4 % of the accounts are fraudulent. They are not much different from the others to look at; what gives them
away is with whom they deal: they collect from strangers and pass on to a few accounts of their own ring,
which pretend to be ordinary. The same seed gives the same files.
"""

from __future__ import annotations

import argparse
import csv
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import numpy as np

COUNTRIES = ("DE", "FR", "NL", "PL", "ES", "IT", "AT", "PT", "LU", "MT")
TYPES = ("private", "business", "student", "savings")
MEMOS = {
    "private": ("rent and groceries for the family", "salary comes in monthly, standing orders for rent"),
    "business": (
        "invoices to suppliers, payroll at the end of the month",
        "online shop, many small payments",
    ),
    "student": ("allowance from parents and a part time job", "shared flat, scholarship twice a year"),
    "savings": ("saves for a house, hardly ever used", "college fund, one deposit a month"),
}
ODD_MEMOS = (
    "new customer, asked about limits for transfers abroad",
    "wants instant transfers, no history yet",
)
SHARE_OF_FRAUD, SHARE_LABELLED, RING = 0.04, 0.05, 8


def make_accounts(
    rng: np.random.Generator, count: int, first: int = 0
) -> tuple[list[dict[str, Any]], np.ndarray[Any, Any]]:
    """Return the rows of accounts, numbered from `first` on, and which of them are fraudulent."""
    fraud = np.zeros(count, dtype=bool)
    fraud[rng.choice(count, round(SHARE_OF_FRAUD * count), replace=False)] = True
    rows = []
    for number in range(count):
        kind = str(rng.choice(TYPES, p=[0.55, 0.2, 0.15, 0.1]))
        age = int(rng.integers(30, 900) if fraud[number] and rng.random() < 0.6 else rng.integers(30, 4000))
        balance = float(rng.lognormal(8.5 if kind == "business" else 7.2, 1.2))
        odd = rng.random() < (0.25 if fraud[number] else 0.04)
        memo = str(rng.choice(ODD_MEMOS if odd else MEMOS[kind]))
        rows.append(
            {
                "account_id": f"A{100000 + 7 * (first + number)}",
                "country": str(
                    rng.choice(COUNTRIES, p=[0.3, 0.2, 0.12, 0.1, 0.08, 0.08, 0.06, 0.03, 0.02, 0.01])
                ),
                "opened": (date(2024, 6, 30) - timedelta(days=age)).isoformat(),
                "balance": "" if rng.random() < 0.12 else f"{balance:.2f}",
                "account_type": kind,
                "memo": "" if rng.random() < 0.2 else f"{memo}, branch {int(rng.integers(1, 40))}",
                "is_fraud": "",
            }
        )
    return rows, fraud


def label_some(rng: np.random.Generator, rows: list[dict[str, Any]], fraud: np.ndarray[Any, Any]) -> None:
    """Mark reported cases and checked accounts; all others stay unknown."""
    labelled = round(SHARE_LABELLED * len(rows))
    reported = rng.choice(np.flatnonzero(fraud), min(labelled // 4, int(fraud.sum()) // 2), replace=False)
    checked = rng.choice(np.flatnonzero(~fraud), labelled - len(reported), replace=False)
    for number in reported:
        rows[number]["is_fraud"] = "yes"
    for number in checked:
        rows[number]["is_fraud"] = "no"


def make_transactions(rng: np.random.Generator, fraud: np.ndarray[Any, Any]) -> list[tuple[int, int, float]]:
    """Return (from, to, amount): people pay those of their own circle, rings collect and pass on."""
    count = len(fraud)
    circle = rng.integers(0, max(2, count // 25), count)
    members = [np.flatnonzero(circle == one) for one in range(circle.max() + 1)]
    found = []
    for payer in np.flatnonzero(~fraud):
        for _ in range(int(rng.poisson(2.2))):
            near = members[circle[payer]]
            payee = int(rng.choice(near)) if rng.random() < 0.75 else int(rng.integers(count))
            if payee != payer and not fraud[payee]:
                found += [(int(payer), payee, float(rng.lognormal(4.5, 1.0)))] * int(rng.choice([1, 1, 2, 4]))
    culprits = rng.permutation(np.flatnonzero(fraud))
    for start in range(0, len(culprits), RING):
        ring = culprits[start : start + RING]
        for one in ring:
            for victim in rng.choice(np.flatnonzero(~fraud), int(rng.integers(3, 8)), replace=False):
                found.append((int(victim), int(one), float(rng.lognormal(5.2, 0.8))))
            for other in rng.choice(ring, min(3, len(ring)), replace=False):
                if other != one:
                    found.append((int(one), int(other), float(rng.lognormal(5.6, 0.6))))
            for front in rng.choice(np.flatnonzero(~fraud), 2, replace=False):
                found.append((int(one), int(front), float(rng.lognormal(4.5, 1.0))))
    return [found[at] for at in rng.permutation(len(found))]


def write(path: Path, rows: list[dict[str, Any]]) -> None:
    """Write rows as CSV."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def named(
    rng: np.random.Generator, transfers: list[tuple[int, int, float]], names: list[str], first: int
) -> list[dict[str, Any]]:
    """Return the rows of transfers, numbered from `first` on."""
    return [
        {
            "tx_id": first + number,
            "from_account": names[payer],
            "to_account": names[payee],
            "amount": f"{amount:.2f}",
            "booked": (date(2024, 1, 1) + timedelta(days=int(rng.integers(0, 180)))).isoformat(),
        }
        for number, (payer, payee, amount) in enumerate(transfers)
    ]


def main() -> None:
    """Write the tables."""
    parser = argparse.ArgumentParser(description="Make tables of accounts and transactions, and the truth.")
    parser.add_argument("--out", type=Path, default=Path("fraud"))
    parser.add_argument("--accounts", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    said = parser.parse_args()
    rng = np.random.default_rng(said.seed)
    rows, fraud = make_accounts(rng, said.accounts)
    label_some(rng, rows, fraud)
    names = [row["account_id"] for row in rows]
    transfers = named(rng, make_transactions(rng, fraud), names, 5_000_000)
    later, later_fraud = make_accounts(rng, said.accounts // 10, said.accounts)
    fraud = np.concatenate([fraud, later_fraud])
    names += [row["account_id"] for row in later]
    joining = [one for one in make_transactions(rng, fraud) if max(one[:2]) >= said.accounts]
    truth = ["yes" if one else "no" for one in fraud]
    tables = {
        "accounts.csv": rows,
        "transactions.csv": transfers,
        "new-accounts.csv": [{name: row[name] for name in row if name != "is_fraud"} for row in later],
        "new-transactions.csv": named(rng, joining, names, 6_000_000),
        "truth.csv": [{"account_id": n, "is_fraud": t} for n, t in zip(names, truth, strict=True)],
    }
    said.out.mkdir(parents=True, exist_ok=True)
    for name, table in tables.items():
        write(said.out / name, table)
    found = f"{len(rows):,} accounts, {len(transfers):,} transactions, {len(later):,} new accounts"
    print(f"wrote {said.out}: {found}, {fraud.mean():.0%} fraudulent")


if __name__ == "__main__":
    main()
