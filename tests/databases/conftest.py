"""What tests of databases share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.databases.server import NoServerError, postgres_server


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """The URL of a server that runs for all tests that need it.

    Its folder is none of pytest's, which another run of pytest makes unreadable for the user of the server.
    """
    with ExitStack() as stack:
        try:
            folder = Path(stack.enter_context(TemporaryDirectory(prefix="h3gnn-postgres-")))
            url = stack.enter_context(postgres_server(folder))
        except NoServerError as error:
            pytest.skip(str(error))
        yield url
