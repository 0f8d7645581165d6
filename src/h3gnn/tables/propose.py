"""Propose the schema of several tables: declared keys and links, or those that names and values agree on.

A link is accepted if its name says so and its values are keys of the other table. What rests on one of the
two alone is a question, which the schema file lists as a comment.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from itertools import chain, combinations, count
from typing import Any

import numpy as np
import pandas as pd

from h3gnn.errors import GraphError, shortened
from h3gnn.graphs.relational import UNKNOWN_TIME
from h3gnn.tables.roles import END_WORDS, INDEX_NAMES, is_id_name, pairs_of_ends, words_in
from h3gnn.tables.rows import decode_times
from h3gnn.tables.schema import MATCHING, UNLIKELY_CHANCE, Link, Match, Profile, Question, Schema, TableSchema
from h3gnn.tables.sources import Declared, open_source

UNLIKELY = 0.05
"""With a smaller share, a column is no link, whatever its name."""
ID_WORDS = frozenset({"id", "ids", "key", "no", "nr", "num", "code", "uuid", "guid", "fk", "pk", "ref"})
GENERIC = frozenset({"id", "key", "code", "name", "index", "date", "type", "number", "position", "value"})
"""Names of keys that say nothing about the table."""
NOISE = frozenset({"tbl", "table", "tab", "dim", "fact", "data", "dataset", "list"})
"""Words in names of tables that say nothing about their rows."""
IRREGULAR = {"people": "person", "children": "child", "men": "man", "women": "woman"}
"""Singular nouns of plural ones."""
SELF_WORDS = {
    *("parent", "manager", "boss", "supervisor", "reports", "reply", "previous", "next", "root", "superior"),
    "mentor",
}
"""Words of links from a table to itself."""
ROLES = frozenset({*SELF_WORDS, *END_WORDS, *(two for other in END_WORDS.values() for two in other)}) | {
    *("home", "away", "primary", "main", "billing", "shipping", "default", "owner", "new", "old", "winner"),
    *("loser", "host", "guest"),
}
"""Words before the name of a table that say in which role it is referenced: home_team_id."""
SEQUENCE = frozenset(
    {"line", "lap", "stop", "seq", "sequence", "number", "no", "nr", "position", "item", "step", "round"}
)
"""Words of columns that number the rows that belong to the same ids."""
NOT_THE_ROW = {
    *("birth", "born", "birthday", "dob", "due", "required", "expires", "expiry", "until", "end", "to"),
    *("update", "updated", "modified", "modification", "changed", "edited", "last", "limit", "deadline"),
    *("estimated", "expected", "planned"),
}
"""Words in dates that are not those of the row."""
TIME_WORDS = (
    *("time", "timestamp", "date", "datetime", "created", "creation", "at", "on", "day", "when", "start"),
    "begin",
)
EPOCH_WORDS = frozenset({"time", "timestamp", "epoch", "ts", "created", "date", "unix"})
EPOCH = (3e8, 4e9)
"""Seconds from 1970 to 1979 and 2096."""
SHARED_LETTERS = 4

Words = tuple[str, ...]


def infer_schema(source: Any) -> Schema:
    """Propose a schema: what the source declares, else keys and links by name and values."""
    opened = open_source(source)
    profiles = {name: Profile(name, opened.frame(name)) for name in opened.tables}
    return _Inference(profiles, opened.declared).schema()


def stems(name: str) -> Words:
    """Return the words of a name in the singular, without words for ids: order-details -> order, detail."""
    return tuple(_singular(word) for word in words_in(name) if word not in ID_WORDS)


def _singular(word: str) -> str:
    """Return the singular of a noun; of movies and movie, movy, as of categories and category."""
    if word in IRREGULAR:
        return IRREGULAR[word]
    if ends := re.fullmatch(r"(\w{2,})ies?", word):
        return ends[1] + "y"
    if re.search(r"(ss|x|ch|sh|[^aeo]us)es$", word):
        return word[:-2]
    return word[:-1] if word.endswith("s") and not word.endswith(("ss", "us", "is")) else word


def words_of_tables(names: Collection[str]) -> dict[str, Words]:
    """Return what the rows of each table are, in words: olist_orders_dataset -> order, if all are olist."""
    words = {name: stems(name) for name in names}
    common = {*NOISE}
    if len(words) > 2:
        common |= set.intersection(*({*one} for one in words.values()))
    return {name: tuple(one for one in all_ if one not in common) or all_ for name, all_ in words.items()}


def is_named_after(column: str, table: Words) -> bool:
    """Whether a column has the name of a table: account_id, account, fk_account or accountid in accounts."""
    joined = "".join(table)
    plain = "".join(words_in(column))
    return bool(table) and (stems(column) == table or plain in (f"{joined}id", f"{joined}sid", f"fk{joined}"))


def _names_ids(column: str, table: Words = ()) -> bool:
    """Whether a column is named as one of ids: account_id, idAccount, fk_account, or accountid of a table."""
    words = words_in(column)
    return is_id_name(column) or "fk" in words or words[:1] == ["id"] or words == ["".join(table) + "id"]


def _has_no_name(column: str) -> bool:
    return re.fullmatch(r"column \d+", column) is not None


class _Inference:
    """Finds keys, links, times and nodes of tables, and questions about them."""

    def __init__(self, profiles: Mapping[str, Profile], declared: Mapping[str, Declared]) -> None:
        self.profiles = profiles
        self.declared = {name: declared.get(name, Declared()) for name in profiles}
        self.declares_links = any(one.links for one in declared.values())
        self.words = words_of_tables(profiles)
        self.questions: list[Question] = []
        self.keys = self._declared_keys()
        self._infer_keys()

    def schema(self) -> Schema:
        """Return the tables, and what only the user can answer."""
        links = {name: [*self._links(profile)] for name, profile in self.profiles.items()}
        for name, profile in self.profiles.items():
            self.keys[name] = self.keys[name] or _composite_key(profile, links[name])
        self._ask_about_composite_links(links)
        self._ask_about_nodes(links)
        tables = {}
        for name, profile in self.profiles.items():
            linked = {column for link in links[name] for column in link.columns}
            time = self._declared_time(profile, linked)
            tables[name] = TableSchema(name, self.keys[name], tuple(links[name]), time, len(profile.frame))
        return Schema(tables, tuple(self.questions))

    def _ask(self, table: str, text: str, link: Link | None = None, **proposal: Any) -> None:
        self.questions.append(Question(table, text, link, **proposal))

    def _table(self, name: str) -> str | None:
        return next((one for one in self.profiles if one.lower() == name.lower()), None)

    def _declared_keys(self) -> dict[str, Words]:
        """Return the keys that a source declares, if they hold: a file may contain repeated keys."""
        keys: dict[str, Words] = {}
        for name, profile in self.profiles.items():
            key = self.declared[name].key
            if key and not ({*key} <= {*profile.names} and profile.is_key(key)):
                self._ask(name, f"the declared key {' + '.join(key)} is missing or repeated in some rows")
            elif key:
                keys[name] = key
        for link in (link for one in self.declared.values() for link in one.links if link.key):
            to = self._table(link.to)
            if to is not None and to not in keys and {*link.key} <= {*self.profiles[to].names}:
                keys |= {to: link.key} if self.profiles[to].is_key(link.key) else {}
        return keys

    def _infer_keys(self) -> None:
        """Add the keys of other tables: first those that are named after their table, then others."""
        places = Counter(one.lower() for profile in self.profiles.values() for one in profile.names)
        waiting = [name for name in self.profiles if name not in self.keys]
        for name in waiting:
            found = self.profiles[name].candidates
            usual = [one for one in found if one.lower() in ("id", "_id", *INDEX_NAMES)]
            named = [one for one in found if self._is_own_name(one, self.profiles[name])]
            elsewhere = [one for one in named if places[one.lower()] > 1]
            self.keys[name] = tuple((elsewhere or usual or named)[:1])
        taken = {one.lower() for key in self.keys.values() for one in key} - GENERIC
        for name in (one for one in waiting if not self.keys[one]):
            profile, others = self.profiles[name], [self.words[one] for one in self.profiles if one != name]
            likely = [one for one in profile.candidates if is_id_name(one) or one == profile.names[0]]
            own = [one for one in likely if one.lower() not in taken and not {*words_in(one)} & SELF_WORDS]
            own = [one for one in own if not any(is_named_after(one, words) for words in others)]
            extends = [
                one for one in likely if one == profile.names[0] and {*stems(one)} & {*self.words[name]}
            ]
            if own and is_id_name(profile.names[0]):  # the ids of another table, before others of its own
                own = [one for one in likely if one in (profile.names[0], own[0])]
            self.keys[name] = tuple((own or extends or self._referenced_texts(profile))[:1])

    def _is_own_name(self, column: str, profile: Profile) -> bool:
        """Whether a column has the name of its table; a column of numbers needs that of ids."""
        words = self.words[profile.name]
        is_text = not len(profile.integers(column))
        return is_named_after(column, words) and (is_text or _names_ids(column, words))

    def _referenced_texts(self, profile: Profile) -> list[str]:
        """Return unique texts of a table, such as codes of countries, that others hold, most used first."""
        texts = [one for one in profile.candidates if not len(profile.integers(one))]
        columns = [
            (other, column)
            for other in self.profiles.values()
            for column in (other.names if texts and other is not profile else ())
            if other.may_be_id(column)
        ]
        matches = {one: [other.match((it,), profile, (one,)) for other, it in columns] for one in texts}
        tell = {one: sum(match.tells for match in found) for one, found in matches.items()}
        return sorted((one for one in texts if tell[one]), key=lambda one: -tell[one])

    def _links(self, profile: Profile) -> Iterator[Link]:
        """Yield the links that are declared, or that names and values agree on; others become questions."""
        declared = [*self._declared_links(profile)]
        yield from declared
        covered = {column for link in self.declared[profile.name].links for column in link.columns}
        for column in profile.names:
            is_own = self.keys[profile.name] == (column,)
            same = is_own and is_named_after(column, self.words[profile.name])
            if column not in covered and not same and profile.may_be_id(column):
                yield from self._links_of(profile, column, is_own=is_own)

    def _declared_links(self, profile: Profile) -> Iterator[Link]:
        real = {name.lower(): name for name in profile.names}
        for one in self.declared[profile.name].links:
            shown = f"the declared link {' + '.join(one.columns)} to {one.to} is left out"
            columns, to = tuple(real.get(name.lower(), "") for name in one.columns), self._table(one.to)
            if to is None or not all(columns):
                self._ask(profile.name, f"{shown}: there is no such {'table' if to is None else 'column'}")
                continue
            key = self.keys[to]
            there, wanted = [name.lower() for name in one.key or key], [name.lower() for name in key]
            if sorted(there) != sorted(wanted) or not key or len(there) != len(columns):
                own = f"the key of {to} is {' + '.join(key)}" if key else f"{to} has no key"
                self._ask(profile.name, f"{shown}: it refers to {' + '.join(one.key)}, and {own}")
                continue
            columns = tuple(columns[there.index(name)] for name in wanted)
            share = profile.match(columns, self.profiles[to], key).share
            yield Link(columns, to, share, "declared")

    def _links_of(self, profile: Profile, column: str, *, is_own: bool) -> Iterator[Link]:
        """Yield the link of a column if names and values agree on one; ask about others."""
        sure: list[tuple[int, Link]] = []
        asked: list[Link] = []
        doubts: list[str] = []
        rest: list[Profile] = []
        for name, other in self.profiles.items():
            key, evidence = self.keys[name], self._evidence(column, profile, other)
            if is_own and (other is profile or evidence in (1, 2)):
                continue
            doubt = self._key_doubt(profile, column, other, evidence)
            if doubt is not None:
                doubts += [doubt] * bool(doubt)
                continue
            if len(key) != 1 or (not evidence and not self._may_be_unnamed_link(profile, column)):
                rest.append(other)
                continue
            match = profile.match((column,), other, key)
            link = Link((column,), name, match.share, _REASONS[evidence])
            if not is_own and not self.declares_links and self._is_sure(evidence, column, other, match):
                sure.append((evidence, link))
            elif self._is_possible(profile, column, other, evidence, match, is_own=is_own):
                asked.append(link)
            else:
                rest.append(other)
        best = max((evidence for evidence, _ in sure), default=0)
        chosen = [link for evidence, link in sure if evidence == best]
        if len(chosen) == 1 and not (best < 3 and doubts):
            yield chosen[0]
            return
        for link in (*chosen, *asked):
            self._ask(profile.name, _doubt(link, several=len(chosen) > 1), link)
        if not (is_own or self.declares_links):
            doubts += [text for other in rest for text in self._other_ids(profile, column, other)]
            if all(link.reason == _REASONS[0] for link in (*chosen, *asked)):
                doubts += self._tables_without_its_name(profile, column, rest)
        for text in doubts:
            self._ask(profile.name, text)

    def _key_doubt(self, profile: Profile, column: str, other: Profile, evidence: int) -> str | None:
        """Say why a column is not compared with the key of a table: None if it is, "" if nobody need know."""
        key = self.keys[other.name]
        if not key and evidence == 4 and _names_ids(column, self.words[other.name]):
            return self._no_key(column, other)
        if len(key) != 1 or other is profile or not _names_ids(column):
            return None
        alternative = next((one for one in other.candidates if one.lower() == column.lower()), key[0])
        if alternative == key[0] or (self.declares_links and not evidence):
            return None
        likely = evidence > 1 or profile.match((column,), other, (alternative,)).share >= MATCHING
        return f"{column} may refer to {alternative} of {other.name}, whose key is {key[0]}" * likely

    def _evidence(self, column: str, profile: Profile, other: Profile) -> int:
        """Return how clearly a name refers to another table: 0 not at all, 1 perhaps, 4 by its full name."""
        words, table, is_self = stems(column), self.words[other.name], other is profile
        key = self.keys[other.name]
        if is_self and is_named_after(column, table):
            return 0
        same = len(key) == 1 and column.lower() == key[0].lower()
        if not is_self and is_named_after(column, table):
            return 4
        if not is_self and same and column.lower() not in GENERIC:
            return 3
        if _names_ids(column) and table and words[-len(table) :] == table:
            return 2
        if is_self:
            return int(bool({*words_in(column)} & SELF_WORDS))
        near = any(_share_letters(one, two) for one in words for two in table)
        return int(near or (same and column.lower() not in ("id", *INDEX_NAMES)))

    def _may_be_unnamed_link(self, profile: Profile, column: str) -> bool:
        """Whether a column could refer to a table whose name it does not have: texts, ids, ends of edges."""
        return not self.declares_links and (_is_like_id(profile, column) or not len(profile.integers(column)))

    def _is_sure(self, evidence: int, column: str, other: Profile, match: Match) -> bool:
        """Whether names and values say that a column refers to a table.

        Small integers are keys of many tables, whatever they count: then the name must be that of an id.
        """
        table = self.words[other.name]
        if match.share < MATCHING or evidence < 2:
            return False
        if evidence == 2:
            in_role = {*stems(column)[: -len(table)]} <= ROLES
            return in_role or match.tells or (match.coverage >= 0.5 and match.found >= 10)
        return _names_ids(column, table) or match.tells

    def _is_possible(
        self, profile: Profile, column: str, other: Profile, evidence: int, match: Match, *, is_own: bool
    ) -> bool:
        """Whether a column could refer to a table, so that the user is asked."""
        if is_own:  # a table that extends another; of two with the same keys, only the later one
            alike, names = match.coverage >= MATCHING, [*self.profiles]
            later = names.index(profile.name) > names.index(other.name)
            named = evidence > 2 or (alike and match.found >= 10)
            return match.share >= MATCHING and named and (later or not alike)
        if evidence > 1 or (evidence and other is profile):
            return match.share > UNLIKELY
        if self.declares_links:
            return False
        likely = _is_like_id(profile, column)
        covers = match.coverage >= 0.5 and match.share >= MATCHING
        if evidence:
            return match.share > 0.5 and (likely or covers or match.chance < UNLIKELY_CHANCE)
        return match.tells or (likely and covers)

    def _other_ids(self, profile: Profile, column: str, other: Profile) -> Iterator[str]:
        """Say which column of a table may be referred to, although it is not the key: nearly unique ids."""
        likely = _is_like_id(profile, column)
        if other is profile or not (likely or profile.repeats(column)):
            return
        for one in other.names:
            named = is_id_name(one)
            if (one,) == self.keys[other.name] or not other.may_be_id(one) or other.repeats(one):
                continue
            match = profile.match((column,), other, (one,)) if named or not len(other.integers(one)) else None
            if match is not None and (
                match.tells or (likely and named and match.share >= MATCHING and match.coverage >= 0.5)
            ):
                gaps = other.gaps(one)
                yield f"{column} may refer to {other.name}.{one}, which is not the key of {other.name}" + (
                    f": it is {gaps} there" if gaps else ""
                )

    def _tables_without_its_name(
        self, profile: Profile, column: str, others: Sequence[Profile]
    ) -> Iterator[str]:
        """Name the tables whose keys contain the values of a column that has the name of other ids."""
        if not _names_ids(column):
            return
        keyed = [one for one in others if len(self.keys[one.name]) == 1]
        matches = [(profile.match((column,), one, self.keys[one.name]), one.name) for one in keyed]
        found = sorted((-match.coverage, name) for match, name in matches if match.share >= MATCHING)
        if found:
            names = shortened((name for _, name in found), 6)
            yield f"{column} has the name of no table, and its values are keys of {names}"

    def _no_key(self, column: str, other: Profile) -> str:
        """Say why a table that a column names cannot be linked to."""
        text = f"{column} names {other.name}, which has no key"
        likely = [one for one in other.names if is_named_after(one, self.words[other.name])]
        if not likely:
            return text
        gaps = other.gaps(likely[0])
        return f"{text}: {likely[0]}{f' is {gaps} there' if gaps else ''}"

    def _ask_about_composite_links(self, links: Mapping[str, list[Link]]) -> None:
        """Ask about columns that have the names of a key of several columns."""
        for name, profile in self.profiles.items():
            real = {one.lower(): one for one in profile.names}
            known = [{*link.columns} for link in links[name]]
            for other, key in self.keys.items():
                columns = tuple(real.get(one.lower(), "") for one in key)
                if len(key) > 1 and other != name and all(columns) and {*columns} not in known:
                    link = Link(columns, other, profile.match(columns, self.profiles[other], key).share)
                    if link.share >= (MATCHING if {*self.keys[name]} == {*columns} else 0.5):
                        self._ask(name, _doubt(link, several=False), link)

    def _ask_about_nodes(self, links: Mapping[str, list[Link]]) -> None:
        """Ask about repeated ids of things that have no table of their own: banks in transfers."""
        groups: list[list[tuple[Profile, str]]] = []
        asked = {(one.table, column) for one in self.questions if one.link for column in one.link.columns}
        asked |= {(name, column) for name in links for link in links[name] for column in link.columns}
        for name, profile in self.profiles.items():
            own = {*self.keys[name]} if len(self.keys[name]) == 1 else set()
            columns = [
                one for one in profile.names if (name, one) not in asked and _may_be_node(profile, one)
            ]
            for column in (one for one in columns if one not in own or _has_no_name(one)):
                near = [one for one in groups if any(_same_kind((profile, column), member) for member in one)]
                groups = [one for one in groups if one not in near]
                groups.append([*(member for one in near for member in one), (profile, column)])
        for group in groups:
            keys = all(self.keys[profile.name] == (column,) for profile, column in group)
            if not keys and (len(group) > 1 or _names_ids(group[0][1])):
                self._ask_about_group(group)

    def _ask_about_group(self, group: list[tuple[Profile, str]]) -> None:
        named = [one for one in dict.fromkeys(column for _, column in group) if not _has_no_name(one)]
        words = [[word for word in words_in(one) if word not in ID_WORDS] for one in named]
        last = Counter(one[-1] for one in words if one and one[-1] not in GENERIC)
        kind = last.most_common(1)[0][0] if last else "node"
        taken = {one.kind for one in self.questions} | {one.lower() for one in self.profiles}
        others = (f"{kind}_{at}" for at in count(2))
        kind = next(one for one in chain((kind,), others) if one not in taken)
        first = group[0][0]
        shown = [column if one is first else f"{column} of {one.name}" for one, column in group]
        text = f"{shortened(shown, 6)} may name nodes of one kind ({kind})"
        if len(group) == 1:
            text = f"{shown[0]} has no table: its values may be nodes ({kind})"
        nodes: dict[str, Words] = {}
        for profile, column in group:
            nodes[profile.name] = (*nodes.get(profile.name, ()), column)
        self._ask(first.name, text, kind=kind, nodes=nodes)

    def _declared_time(self, profile: Profile, linked: set[str]) -> str | None:
        """Return the time that is declared; where nothing is, the likely one."""
        time = self.declared[profile.name].time
        if time is None:
            return self._time(profile, linked)
        if time and time not in profile.names:
            self._ask(profile.name, f"the declared time {time} is left out: there is no such column")
        return time if time in profile.names else None

    def _time(self, profile: Profile, linked: set[str]) -> str | None:
        """Return the only column of times, or the only one that is named as the time of a row."""
        times = [one for one in profile.names if one not in linked and _may_be_time(one, profile)]
        if times and all(map(_has_no_name, times)):
            self._ask(profile.name, f"{times[0]} may be the time of a row", time=times[0])
            return None
        named = {*TIME_WORDS, *words_in(profile.name), *self.words[profile.name]}
        of_row = [one for one in times if {*words_in(one)} <= named]
        if len(times) > 1 and len(of_row) != 1:
            first = _earliest(profile, of_row or times)
            others = shortened((one for one in times if one != first), 6)
            self._ask(profile.name, f"{first} may be the time of a row, rather than {others}", time=first)
            return None
        return times[0] if len(times) == 1 else of_row[0] if of_row else None


_REASONS = (
    "its values are keys there",
    "its name resembles that of the table",
    "its name ends with that of the table",
    "its name is that of the key",
    "its name is that of the table",
)


def _share_letters(one: str, two: str) -> bool:
    """Whether two words begin alike: ship, shipper."""
    length = min(len(one), len(two))
    return length >= SHARED_LETTERS and one[:length] == two[:length]


def _doubt(link: Link, *, several: bool) -> str:
    column, share = " + ".join(link.columns), f"{100 * link.share:.3g} %"
    if link.share < MATCHING:
        return f"{column} is named like {link.to}, but only {share} of its values are keys there"
    text = f"{column} may refer to {link.to}{', or to another table' if several else ''}"
    return f"{text}: {share} of its values are keys there"


@cache
def _ends(names: Words) -> frozenset[str]:
    """Return columns that are the ends of an edge by name: from and to, id_1 and id_2."""
    return frozenset(names[at] for pair in pairs_of_ends(names) for at in pair)


def _is_like_id(profile: Profile, column: str) -> bool:
    """Whether a column has the name of ids or of an end of edges, or no name."""
    return _names_ids(column) or _has_no_name(column) or column in _ends(tuple(profile.names))


def _may_be_node(profile: Profile, column: str) -> bool:
    """Whether values may be nodes: repeated ids, ends of edges, or the first columns without names."""
    values = len(profile.distinct((column,)))
    if values < 2 or not profile.may_be_id(column):
        return False
    if _has_no_name(column):
        return column in profile.names[:2]
    if is_id_name(column):
        return values < len(profile.texts(column).dropna())
    return (
        column in _ends(tuple(profile.names))
        and values < 0.7 * len(profile.frame)
        and not profile.is_date(column)
    )


def _same_kind(one: tuple[Profile, str], two: tuple[Profile, str]) -> bool:
    """Whether two columns hold ids of the same things: by name and some common values, or by most values."""
    (profile, column), (other, second) = one, two
    values, others = profile.distinct((column,)), other.distinct((second,))
    common, least = len(values & others), min(len(values), len(others))
    if _has_no_name(column) or _has_no_name(second):
        return common >= max(10, least / 2)
    ends = profile is other and {column, second} <= _ends(tuple(profile.names))
    same = stems(column)[-1:] == stems(second)[-1:] != ()
    texts = not len(profile.integers(column)) and common >= least / 10
    return common > 0 and (ends or same or texts)


def _composite_key(profile: Profile, links: Sequence[Link]) -> Words:
    """Return ids, and perhaps a number in a sequence, that only together are distinct in every row.

    If few rows have many ids, pairs are distinct by chance, and no key.
    """
    linked = {link.columns[0] for link in links if len(link.columns) == 1}
    ids = [one for one in profile.names if one in linked or (is_id_name(one) and profile.may_be_id(one))]
    steps = [one for one in profile.names if one not in ids and {*words_in(one)} & SEQUENCE]
    sets: list[Words] = [*combinations(ids, 2), *((one, step) for one in ids for step in steps)]
    sets += [*combinations(ids, 3), *((*two, step) for two in combinations(ids, 2) for step in steps)]
    rows = len(profile.frame)
    for columns in sets if rows > 1 else ():
        possible = np.prod([float(len(profile.distinct((one,)))) for one in columns])
        whole = {*columns} == {*profile.names}
        if (whole or rows**2 / 2 > 5 * possible) and profile.is_key(columns):
            return columns
    return ()


def _earliest(profile: Profile, columns: Sequence[str]) -> str:
    """Return the column of times that is the earliest in most rows."""
    latest = np.iinfo(np.int64).max
    times = np.full((len(columns), len(profile.frame)), latest)
    for at, column in enumerate(columns):
        with suppress(GraphError):
            times[at] = decode_times(profile.frame, column, profile.name)
    first = np.where(times == UNKNOWN_TIME, latest, times).argmin(axis=0)
    return columns[int(np.bincount(first).argmax())]


def _may_be_time(name: str, profile: Profile) -> bool:
    """Whether a column holds times: dates, or seconds since 1970 if its name says that, or it has no name."""
    known = profile.texts(name).dropna()
    if NOT_THE_ROW & {*words_in(name)} or known.empty:
        return False
    written = any(one.isdigit() for one in known.iloc[0]) and len(known.iloc[0]) >= 6
    is_moment = pd.api.types.is_datetime64_any_dtype(profile.frame[name].dtype)
    if (written or is_moment) and profile.is_date(name):
        return True
    if not written or not ({*words_in(name)} & EPOCH_WORDS or _has_no_name(name)):
        return False
    return bool(pd.to_numeric(known, errors="coerce").between(*EPOCH).all()) and known.nunique() > 1
