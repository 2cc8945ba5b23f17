"""The end of a process at each step of a commit of state and spends."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from streamdp.ledger.stored import StoredLedger
from streamdp.store.store import Store

STEPS = ["before the state", "before the spends", "after the spends", "after the commit"]


class Crashed(Exception):
    """Stands for the end of the process at this step."""


def crash(*_: Any, **__: Any) -> Any:
    """Take the place of a call at which the process ends."""
    raise Crashed


def break_at(patch: pytest.MonkeyPatch, step: str) -> None:
    """Let each commit end at a step of `STEPS`."""
    real = StoredLedger.write_pending

    def after(*arguments: Any) -> None:
        real(*arguments)
        raise Crashed

    match step:
        case "before the state":
            patch.setattr(Store, "_write", crash)
        case "before the spends":
            patch.setattr(StoredLedger, "write_pending", crash)
        case "after the spends":
            patch.setattr(StoredLedger, "write_pending", after)
        case "after the commit":
            patch.setattr(StoredLedger, "mark_committed", crash)


@contextmanager
def ending(step: str) -> Iterator[None]:
    """The commit of a with statement ends at a step of `STEPS`."""
    with pytest.MonkeyPatch.context() as patch:
        break_at(patch, step)
        with pytest.raises(Crashed):
            yield
