"""What tests of databases share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.databases.server import NoServerError, postgres_server


@pytest.fixture(scope="session")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a server that runs for all tests that need it."""
    with ExitStack() as stack:
        try:
            url = stack.enter_context(postgres_server(tmp_path_factory.mktemp("postgres")))
        except NoServerError as error:
            pytest.skip(str(error))
        yield url
