"""Assert that input is rejected, by error code rather than by wording."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace

import pytest

from h3gnn.errors import InputError


@contextmanager
def rejects(code: str, kind: type[InputError] = InputError) -> Iterator[SimpleNamespace]:
    """Expect an error of a class and with a code; yields an object whose `message` is set afterwards."""
    caught = SimpleNamespace(message="")
    with pytest.raises(kind) as info:
        yield caught
    assert info.value.code == code, str(info.value)
    caught.message = str(info.value)
