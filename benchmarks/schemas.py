"""Which keys, links and times of well-known databases the proposed schemas have.

`python -m benchmarks.schemas --data FOLDER [--sources "berka;chinook"]` compares `h3gnn inspect` with what
the documentation of each database says, written down below. `benchmarks/results/schemas.json` holds how many
keys, links and times were found without a question, how many only as a question, which are wrong or missing,
and the seconds of reading the files and of proposing the schema. A source that is not there is left out.
`--table` prints what is stored as Markdown.

Chinook is read four times: from SQLite and PostgreSQL, which declare keys and links, and as plain tables of
either, which do not. Columns that name things without a table, such as banks, count as links.
"""

from __future__ import annotations

import argparse
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from h3gnn.tables.propose import infer_schema
from h3gnn.tables.schema import Question, Schema
from h3gnn.tables.sources import Source, open_source
from reproduction.files import read_json, rounded, write_json
from reproduction.origin import made_with
from tests.databases.server import NoServerError, postgres_server, programs

RESULTS = Path(__file__).parent / "results" / "schemas.json"
Entry = dict[str, Any]


@dataclass(frozen=True)
class Documented:
    """What the documentation of a database says.

    Attributes:
        place: below the folder of all data.
        keys: the columns of each key, joined by " + ".
        links: `table.columns`, and the table that they refer to, or `table.column` if that is not its key.
        times: the time of each row.
        nodes: columns that name the same kind of thing, which has no table, by kind.
    """

    place: str
    keys: Mapping[str, str]
    links: Mapping[str, str]
    times: Mapping[str, str] = field(default_factory=dict)
    nodes: Mapping[str, Sequence[str]] = field(default_factory=dict)


CHINOOK = Documented(
    "chinook/Chinook_Sqlite.sqlite",
    {
        **{one: f"{one}Id" for one in ("Album", "Artist", "Customer", "Employee", "Genre", "Invoice")},
        **{one: f"{one}Id" for one in ("InvoiceLine", "MediaType", "Playlist", "Track")},
        "PlaylistTrack": "PlaylistId + TrackId",
    },
    {
        "Album.ArtistId": "Artist",
        "Customer.SupportRepId": "Employee",
        "Employee.ReportsTo": "Employee",
        "Invoice.CustomerId": "Customer",
        "InvoiceLine.InvoiceId": "Invoice",
        "InvoiceLine.TrackId": "Track",
        "PlaylistTrack.PlaylistId": "Playlist",
        "PlaylistTrack.TrackId": "Track",
        "Track.AlbumId": "Album",
        "Track.GenreId": "Genre",
        "Track.MediaTypeId": "MediaType",
    },
    {"Invoice": "InvoiceDate", "Employee": "HireDate"},
)
DOCUMENTED = {
    "twitch": Documented(  # README of the MUSAE datasets; edges and features count by new_id
        "twitch",
        {"DE_target": "id", "DE_features": "id"},
        {
            "DE_edges.from": "DE_target.new_id",
            "DE_edges.to": "DE_target.new_id",
            "DE_target.new_id": "DE_features",
        },
    ),
    "facebook": Documented(
        "facebook_pages",
        {"facebook_target": "id", "facebook_features": "id"},
        {
            "facebook_edges.id_1": "facebook_target",
            "facebook_edges.id_2": "facebook_target",
            "facebook_target.id": "facebook_features",
        },
    ),
    "bitcoin": Documented(  # SNAP: SOURCE, TARGET, RATING, TIME
        "bitcoin_otc",
        {"otc_gt": "column 1"},
        {},
        {"soc-sign-bitcoinotc": "TIME_SINCE_EPOCH"},
        {"user": ("otc_gt.column 1", "soc-sign-bitcoinotc.FROM_NODE", "soc-sign-bitcoinotc.TO_NODE")},
    ),
    "berka": Documented(  # PKDD 1999 Discovery Challenge
        "berka_bank",
        {one: f"{one}_id" for one in ("account", "card", "client", "disp", "loan", "order")}
        | {"district": "A1"},
        {
            "account.district_id": "district",
            "card.disp_id": "disp",
            "client.district_id": "district",
            "disp.account_id": "account",
            "disp.client_id": "client",
            "loan.account_id": "account",
            "order.account_id": "account",
        },
        {"account": "date", "loan": "date", "card": "issued"},
    ),
    "fincen": Documented(  # ICIJ, and the import script of the repository
        "fincen_files",
        {"download_transactions_map": "id"},
        {
            "download_transactions_map.originator_iso": "countries.iso3",
            "download_transactions_map.beneficiary_iso": "countries.iso3",
            "download_bank_connections.entity_b_iso_code": "countries.iso3",
        },
        {"download_transactions_map": "begin_date"},
        {
            "bank": (
                "download_transactions_map.originator_bank_id",
                "download_transactions_map.beneficiary_bank_id",
                "download_transactions_map.filer_org_name_id",
                "download_bank_connections.filer_org_name_id",
                "download_bank_connections.entity_b_id",
            ),
            "report": ("download_transactions_map.icij_sar_id", "download_bank_connections.icij_sar_id"),
        },
    ),
    "formula1": Documented(  # Ergast, user guide of the database
        "formula1",
        {
            "circuits": "circuitId",
            "constructor_results": "constructorResultsId",
            "constructor_standings": "constructorStandingsId",
            "constructors": "constructorId",
            "driver_standings": "driverStandingsId",
            "drivers": "driverId",
            "pit_stops": "raceId + driverId + stop",
            "qualifying": "qualifyId",
            "races": "raceId",
            "results": "resultId",
            "seasons": "year",
            "sprint_results": "resultId",
            "status": "statusId",
        },
        {
            "constructor_results.constructorId": "constructors",
            "constructor_results.raceId": "races",
            "constructor_standings.constructorId": "constructors",
            "constructor_standings.raceId": "races",
            "driver_standings.driverId": "drivers",
            "driver_standings.raceId": "races",
            "pit_stops.driverId": "drivers",
            "pit_stops.raceId": "races",
            "qualifying.constructorId": "constructors",
            "qualifying.driverId": "drivers",
            "qualifying.raceId": "races",
            "races.circuitId": "circuits",
            "races.year": "seasons",
            "results.constructorId": "constructors",
            "results.driverId": "drivers",
            "results.raceId": "races",
            "results.statusId": "status",
            "sprint_results.constructorId": "constructors",
            "sprint_results.driverId": "drivers",
            "sprint_results.raceId": "races",
            "sprint_results.statusId": "status",
        },
        {"races": "date"},
    ),
    "northwind": Documented(
        "northwind",
        {
            "categories": "categoryID",
            "customers": "customerID",
            "employee-territories": "employeeID + territoryID",
            "employees": "employeeID",
            "order-details": "orderID + productID",
            "orders": "orderID",
            "products": "productID",
            "regions": "regionID",
            "shippers": "shipperID",
            "suppliers": "supplierID",
            "territories": "territoryID",
        },
        {
            "employee-territories.employeeID": "employees",
            "employee-territories.territoryID": "territories",
            "employees.reportsTo": "employees",
            "order-details.orderID": "orders",
            "order-details.productID": "products",
            "orders.customerID": "customers",
            "orders.employeeID": "employees",
            "orders.shipVia": "shippers",
            "products.categoryID": "categories",
            "products.supplierID": "suppliers",
            "territories.regionID": "regions",
        },
        {"orders": "orderDate", "employees": "hireDate"},
    ),
    "chinook": CHINOOK,
    "chinook, plain": CHINOOK,
    "chinook, PostgreSQL": CHINOOK,
    "chinook, PostgreSQL, plain": CHINOOK,
}


def snake(name: str) -> str:
    """Return a name as the PostgreSQL script of Chinook writes it: InvoiceLine -> invoice_line."""
    return "".join(f"_{one.lower()}" if one.isupper() else one for one in name).replace("._", ".").strip("_")


def in_snake_case(documented: Documented) -> Documented:
    """Return the keys, links and times with the names of the PostgreSQL script."""

    def renamed(values: Mapping[str, str]) -> dict[str, str]:
        return {snake(one): " + ".join(map(snake, of.split(" + "))) for one, of in values.items()}

    keys, links, times = (renamed(one) for one in (documented.keys, documented.links, documented.times))
    return Documented("chinook/Chinook_PostgreSql.sql", keys, links, times)


@contextmanager
def opened(name: str, path: Path) -> Iterator[Any]:
    """Open a source; the script of PostgreSQL is run by a server that is started for it."""
    if path.suffix != ".sql":
        yield plain(open_source(path)) if name.endswith("plain") else path
        return
    with tempfile.TemporaryDirectory() as folder, postgres_server(Path(folder)) as url:
        script = path.read_text(encoding="utf-8")
        tool = [str(programs() / "psql"), "-q", "-v", "ON_ERROR_STOP=1", url]
        subprocess.run(tool, input=script, text=True, check=True, capture_output=True)
        address = url.rpartition("/")[0] + "/chinook"
        yield plain(open_source(address)) if name.endswith("plain") else address


def plain(source: Source) -> dict[str, Any]:
    """Return the tables without what the source declares."""
    return {name: source.frame(name) for name in source.tables}


def is_asked(questions: Sequence[Question], link: str, to: str) -> bool:
    """Whether a question proposes a link, or names its columns and where they lead."""
    table, _, column = link.rpartition(".")
    there, _, key = to.partition(".")
    own = [one for one in questions if one.table == table]
    proposed = [one.link for one in own if one.link is not None]
    if any(("+".join(one.columns), one.to) == (column, to) for one in proposed):
        return True
    return any({column, there, key or there} <= {*one.text.replace(",", " ").split()} for one in own)


def compared(schema: Schema, documented: Documented) -> Entry:
    """Return how a schema differs from the documentation."""
    keys = {name: " + ".join(one.key) for name, one in schema.tables.items() if one.key}
    links = {
        f"{name}.{'+'.join(one.columns)}": one.to for name, of in schema.tables.items() for one in of.links
    }
    times = {name: one.time for name, one in schema.tables.items() if one.time}
    asked_times = {one.table: one.time for one in schema.questions if one.time}
    groups = [
        {f"{table}.{column}" for table, columns in one.nodes.items() for column in columns}
        for one in schema.questions
        if one.nodes
    ]
    nodes = {one: kind for kind, columns in documented.nodes.items() for one in columns}
    asked_nodes = {
        one: kind
        for one, kind in nodes.items()
        if any({*documented.nodes[kind]} <= group for group in groups)
    }
    asked_links = {one: to for one, to in documented.links.items() if is_asked(schema.questions, one, to)}
    wanted = {**documented.links, **nodes}
    return {
        "keys": _counts(keys, documented.keys, {}, only_documented=True),
        "links": _counts(links, wanted, {**asked_links, **asked_nodes}, only_documented=False),
        "times": _counts(times, documented.times, asked_times, only_documented=False),
        "questions": len(schema.questions),
    }


def _counts(
    found: Mapping[str, Any], wanted: Mapping[str, str], asked: Mapping[str, Any], *, only_documented: bool
) -> Entry:
    """Count what is found and asked; name what is wrong, and what is missing.

    A key that is not documented is not wrong: the values of a column without a key may be distinct.
    """
    right = {one for one, value in wanted.items() if found.get(one) == value}
    doubtful = {one for one, value in wanted.items() if asked.get(one) == value} - right
    wrong = [
        one for one, value in found.items() if one not in right and (one in wanted or not only_documented)
    ]
    missed = [one for one in wanted if one not in right | doubtful]
    return {
        "documented": len(wanted),
        "found": len(right),
        "asked": len(doubtful),
        "wrong": wrong,
        "missed": missed,
    }


def measured(name: str, source: Any, documented: Documented) -> Entry:
    """Return the comparison of a source, and the seconds of reading it and of proposing its schema."""
    started = time.perf_counter()
    opened_source = open_source(source)
    frames = {one: opened_source.frame(one) for one in opened_source.tables}
    read = time.perf_counter() - started
    started = time.perf_counter()
    schema = infer_schema(source)
    proposed = time.perf_counter() - started - read
    rows = sum(map(len, frames.values()))
    seconds = {"seconds reading": read, "seconds proposing": max(proposed, 0.0)}
    about = {"source": name, "tables": len(frames), "rows": rows}
    found: Entry = rounded({**about, **compared(schema, documented), **seconds})
    return found


def markdown(entries: Sequence[Entry]) -> str:
    """Return what is stored as a table: documented, found, asked, wrong and missed."""
    parts = ("keys", "links", "times")
    lines = [["source", "tables", "rows", *parts, "questions", "seconds reading, proposing"]]
    lines.append(["---"] * len(lines[0]))
    for one in entries:
        cells = [_shown(one[part]) for part in parts]
        seconds = f"{one['seconds reading']:.1f}, {one['seconds proposing']:.1f}"
        lines.append(
            [one["source"], str(one["tables"]), f"{one['rows']:,}", *cells, str(one["questions"]), seconds]
        )
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _shown(part: Entry) -> str:
    counts = f"{part['found']} found, {part['asked']} asked of {part['documented']}"
    named = [f"{what}: {', '.join(part[what])}" for what in ("wrong", "missed") if part[what]]
    return "; ".join([counts, *named])


def main() -> None:
    """Run, or print what is stored."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("..", "shared", "tables"))
    parser.add_argument("--sources", default=";".join(DOCUMENTED), help="separated by ;")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--table", action="store_true")
    asked = parser.parse_args()
    known = {one["source"]: one for one in read_json(asked.out)["sources"]} if asked.out.is_file() else {}
    for name in () if asked.table else asked.sources.split(";"):
        documented = DOCUMENTED[name]
        if "PostgreSQL" in name:
            documented = in_snake_case(documented)
        path = asked.data / documented.place
        if not path.exists():
            continue
        try:
            with opened(name, path) as source:
                known[name] = measured(name, source, documented)
        except NoServerError as error:
            print(f"{name}: {error}")
    if not asked.table:
        entries = [known[one] for one in DOCUMENTED if one in known]
        write_json(asked.out, {**made_with(), "sources": entries})
    print(markdown([known[one] for one in DOCUMENTED if one in known]))


if __name__ == "__main__":
    main()
