"""Recommenders of several linked tables: fitted once for each choice of users and items, and kept."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from h3gnn.answers.interactions import Interactions, LinkRows
from h3gnn.answers.recommend import recommender_for
from h3gnn.answers.recommender import CUTOFF, Recommender
from h3gnn.errors import InputError
from h3gnn.storage import models as storage
from h3gnn.storage.models import FittedLinks
from h3gnn.tables.rows import Rows, listed, rows_of

if TYPE_CHECKING:
    import pandas as pd

    from h3gnn.graphs.relational import RelationalGraph
    from h3gnn.storage.models import StoredDatabase
    from h3gnn.tables.database import OpenedTables


class Recommenders:
    """The part of `Database` that recommends rows of one table to those of another."""

    folder: Path | None
    stored: StoredDatabase
    _rows: dict[str, Rows]
    _recommenders: dict[FittedLinks, Recommender]
    if TYPE_CHECKING:

        @property
        def source(self) -> OpenedTables:
            """The tables."""

        def type_of(self, name: str) -> str:
            """Return the node type of a name."""

        def graph(self, label: str | None = None, *, names: bool | None = None) -> RelationalGraph:
            """Return the nodes of all types and their relations."""

        def rows(self, node_type: str) -> Rows:
            """Return keys, names and times of the rows of a type."""

        def _record(self, *types: str, **changes: Any) -> None: ...

    def recommender(
        self,
        table: str,
        *,
        users: str | None = None,
        items: str | None = None,
        weight: str | None = None,
        at_least: float | None = None,
        named_users: Any = (),
        named_items: Any = (),
    ) -> Recommender:
        """Return what ranks the items that the rows of a table link to users; it is fitted once.

        Args:
            table: a table whose rows lead to users and items, such as ratings.
            users, items, weight, at_least: as of `h3gnn.answers.recommend.recommender_for`.
            named_users, named_items: keys or names; unknown ones are an error before the work.
        """
        asked = FittedLinks(self.type_of(table), users, items, weight, at_least)
        known = self.find_links(asked)
        if known is not None:
            return self._recommender(known)
        graph = self.graph(None if weight is None else f"{asked.table}.{weight}", names=True)

        def check(data: Interactions) -> None:
            for kind, ids, names in (
                (data.user_type, data.user_ids, named_users),
                (data.item_type, data.item_ids, named_items),
            ):
                if listed(names):
                    rows_of(self.source, self.stored.schema, graph.type(kind)).find(ids, listed(names))

        seed = int(self.stored.params.get("random_state") or 0)
        found = recommender_for(graph, seed=seed, check=check, **vars(asked))
        if self.folder is not None:
            found.save(self.folder / storage.links_folder_of(asked, self.stored.links))
        self._recommenders[asked] = found
        types = dict.fromkeys([found.user_type, found.item_type])
        self._rows |= {one: rows_of(self.source, self.stored.schema, graph.type(one)) for one in types}
        self._record(*types, links=(*self.stored.links, asked))
        return found

    def find_links(self, asked: FittedLinks) -> FittedLinks | None:
        """Return the fitted recommender that is meant: of those with the given options, the only one."""
        found = [one for one in self.stored.links if one.table == asked.table and self._agrees(one, asked)]
        if asked in found or len(found) == 1:
            return asked if asked in found else found[0]
        if found:
            listed = " or ".join(f"`{one.title}`" for one in found)
            message = f"{asked.table} has several recommenders: name one by its options, {listed}"
            raise InputError(message, code="recommender-ambiguous")
        return None

    def _agrees(self, known: FittedLinks, asked: FittedLinks) -> bool:
        """Whether a recommender has the given options; types may be named that were not given before."""
        for name, value in asked.options.items():
            same = value == getattr(known, name)
            if not same and name in ("users", "items"):
                found = self._recommender(known)
                same = value.lower() == (found.user_type if name == "users" else found.item_type).lower()
            if not same:
                return False
        return True

    def options_of(self, found: Recommender) -> dict[str, Any]:
        """Return the table and the options of a recommender."""
        return next(
            {"table": one.table, **one.options}
            for one in self._recommenders
            if self._recommenders[one] is found
        )

    def _recommender(self, known: FittedLinks) -> Recommender:
        if known not in self._recommenders:
            assert self.folder is not None
            folder = self.folder / storage.links_folder_of(known, self.stored.links)
            self._recommenders[known] = Recommender.load(folder)
        return self._recommenders[known]

    def recommend(self, table: str, users: Any = None, /, top: int = CUTOFF, **options: Any) -> pd.DataFrame:
        """Return the best new items for some users, or all, as of `Recommender.rank`.

        Args:
            table: as of `recommender`, which has the options.
            users: keys or names.
            top: items for each.
        """
        found = self.recommender(table, **options, named_users=() if users is None else users)
        rows = self.rows(found.user_type)
        try:
            keys = found.user_ids if users is None else rows.find(found.user_ids, listed(users))
        except InputError as error:
            if error.code != "unknown-node" or options.get("users") is not None:
                raise
            message = f"{error}; users of this recommender are {found.user_type}: choose others with --users"
            raise InputError(message, code=error.code) from None
        ranked = rows.with_names(found.rank(keys, top), ("user",))
        return self.rows(found.item_type).with_names(ranked, ("item",))

    def together(self, table: str, items: Any, /, top: int = CUTOFF, **options: Any) -> pd.DataFrame:
        """Return the items that are most often chosen together with some, as of `Recommender.together`."""
        found = self.recommender_of_items(table, items, **options)
        rows = self.rows(found.item_type)
        return rows.with_names(
            found.together(rows.find(found.item_ids, listed(items)), top), ("similar", "item")
        )

    def recommender_of_items(self, table: str, named: Any = (), /, **options: Any) -> Recommender:
        """Return the recommender of `together`; who chooses does not matter where items are in baskets."""
        asked = FittedLinks(self.type_of(table), **options)
        try:
            return self.recommender(table, **options, named_items=named)
        except InputError as error:
            if asked.users is not None or error.code not in ("ends-ambiguous", "recommender-ambiguous"):
                raise
            known = [
                one for one in self.stored.links if one.table == asked.table and self._agrees(one, asked)
            ]
            alike = {(self._recommender(one).item_type, one.weight, one.at_least) for one in known}
            if len(alike) == 1:
                return self._recommender(known[0])
            basket = LinkRows(self.graph(names=True), asked.table).basket(asked.items)
            if known or basket is None:
                raise
            return self.recommender(table, **{**options, "users": basket}, named_items=named)
