"""One attempt to read a file and its outcome, bounded in memory and time."""

from __future__ import annotations

import re
import resource
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from hypothesis import HealthCheck, settings

from h3gnn.errors import InputError
from h3gnn.tables.files import MOST_SHOWN

ROOM = 2 * 2**30
"""Bytes that an attempt may take beyond what the process has; more is a failure."""
PATIENCE = 120
"""Seconds after which an attempt on a file of a few kilobytes counts as a hang."""


def examples(count: int) -> settings:
    """So many attempts, with nothing kept from run to run."""
    return settings(
        max_examples=count,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
        print_blob=True,
    )


class Hung(BaseException):
    """An attempt takes too long; nothing that is read may take this for one of its own errors."""


@contextmanager
def bounded() -> Iterator[None]:
    """Bound the memory of the block, and end it if it hangs."""

    def hung(number: int, frame: FrameType | None) -> None:
        raise Hung("an attempt hangs")

    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    before = signal.signal(signal.SIGALRM, hung)
    resource.setrlimit(resource.RLIMIT_AS, (used + ROOM, hard))
    signal.alarm(PATIENCE)
    try:
        yield
    finally:
        signal.alarm(0)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
        signal.signal(signal.SIGALRM, before)


def is_sentence(said: str) -> bool:
    """Tell one sentence; or the list of what is wrong with a table (`h3gnn.tables.reader`), whole.

    Such a list begins with how many problems there are, of which it describes at most `MOST_SHOWN`, each in
    one indented line that names its place, and the remedies below them.
    """
    first, *others = said.split("\n")
    if not others:
        return bool(first)
    head = re.fullmatch(r".+: ([\d,]+) problems(, the first (\d+) of which are)?:", first)
    remedies = [line for line in others if line.startswith("    what to do: ")]
    told = [line for line in others if line not in remedies]
    if head is None or not all(re.fullmatch(r"  \S.*: .+", line) for line in told):
        return False
    count = int(head[1].replace(",", ""))
    return count > 1 and len(told) == min(count, MOST_SHOWN) and (head[3] is not None) == (count > MOST_SHOWN)


class Tally:
    """Counts how the attempts on one format ended."""

    def __init__(self, name: str) -> None:
        self.name, self.ended = name, Counter[str]()

    def attempt(self, read: Callable[[], object]) -> None:
        """Read a changed file: it is good, or there is a sentence; anything else is the test's failure."""
        self.ended["failures"] += 1
        with bounded():
            said = None
            try:
                read()
            except InputError as error:
                said = str(error)
        assert said is None or is_sentence(said), f"not one sentence: {said!r}"
        end = "good results" if said is None else "sentences"
        self.ended["failures"] -= 1
        self.ended[end] += 1
