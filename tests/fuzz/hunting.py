"""One attempt to read a file and its outcome, bounded in memory and time; and the counts of the long runs."""

from __future__ import annotations

import json
import re
import resource
import signal
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from hypothesis import HealthCheck, settings

from h3gnn.errors import InputError
from h3gnn.storage.runs import made_with
from h3gnn.tables.files import MOST_SHOWN

MEMORY = 2 * 2**30
"""Bytes that an attempt may allocate; more is a failure."""
TIMEOUT = 120
"""Seconds after which an attempt on a file of a few kilobytes counts as a hang."""

COUNTS = Path(__file__).parent / "counts.json"
"""How the attempts of the last long run ended, by format or runner; `make test-slow` writes it."""


def store(name: str, ended: Mapping[str, int]) -> None:
    """Store the counts of a long run, with the commit and the versions of libraries."""
    known = json.loads(COUNTS.read_text()) if COUNTS.exists() else {}
    made = made_with()
    known[name] = dict(sorted(ended.items())) | {
        "commit": made["origin"]["commit"],
        "versions": made["versions"],
    }
    COUNTS.write_text(json.dumps(dict(sorted(known.items())), indent=1) + "\n")


def examples(count: int) -> settings:
    """Return settings for a number of attempts, without a database of examples."""
    ignored = list(HealthCheck)
    return settings(
        max_examples=count, deadline=None, database=None, suppress_health_check=ignored, print_blob=True
    )


class Hung(BaseException):
    """An attempt takes too long; a BaseException, so that no reader catches it."""


@contextmanager
def bounded() -> Iterator[None]:
    """Bound the memory of the block, and end it if it hangs."""

    def hung(number: int, frame: FrameType | None) -> None:
        raise Hung("an attempt hangs")

    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    before = signal.signal(signal.SIGALRM, hung)
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, hard))
    signal.alarm(TIMEOUT)
    try:
        yield
    finally:
        signal.alarm(0)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
        signal.signal(signal.SIGALRM, before)


def is_message(text: str) -> bool:
    """Return whether a text is one line, or a list of the problems of a table (`h3gnn.tables.reader`).

    Such a list begins with the number of problems, and has an indented line with the location of each, at
    most `MOST_SHOWN`, and the remedies.
    """
    first, *others = text.split("\n")
    if not others:
        return bool(first)
    head = re.fullmatch(r".+: ([\d,]+) problems(, the first (\d+) of which are)?:", first)
    remedies = [line for line in others if line.startswith("    what to do: ")]
    listed = [line for line in others if line not in remedies]
    if head is None or not all(re.fullmatch(r"  \S.*: .+", line) for line in listed):
        return False
    count = int(head[1].replace(",", ""))
    shortened = head[3] is not None
    return count > 1 and len(listed) == min(count, MOST_SHOWN) and shortened == (count > MOST_SHOWN)


class Tally:
    """Counts how the attempts on one format ended."""

    def __init__(self, name: str) -> None:
        self.name, self.ended = name, Counter[str]()

    def attempt(self, read: Callable[[], object]) -> None:
        """Read a changed file, which has to succeed or to be rejected with a message."""
        self.ended["failures"] += 1
        with bounded():
            message = None
            try:
                read()
            except InputError as error:
                message = str(error)
        assert message is None or is_message(message), f"not one message: {message!r}"
        end = "accepted" if message is None else "rejected"
        self.ended["failures"] -= 1
        self.ended[end] += 1
