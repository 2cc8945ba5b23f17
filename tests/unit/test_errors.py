"""An error that may have been raised in the middle of another one shows nothing of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

from streamdp.errors import SourceError, raise_alone


@contextmanager
def translated() -> Iterator[None]:
    with suppress(ValueError):
        yield
    raise_alone(SourceError("a record cannot be read"))


def test_an_error_of_a_context_manager_has_no_context() -> None:
    with pytest.raises(SourceError) as caught, translated():
        raise ValueError("HIV 4711")
    assert caught.value.__cause__ is caught.value.__context__ is None
