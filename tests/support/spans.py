"""The end of a process at each step of a commit to a store and to a ledger that several jobs share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from streamdp.ledger.shared import SharedLedger
from streamdp.ledger.shared_rows import SharedRows

STEPS = ["before the charge", "within the charge", "after the charge", "within the commit", "after the commit"]


class Crashed(Exception):
    """Stands for the end of the process at this step."""


def crash(*_: Any, **__: Any) -> Any:
    """Take the place of a call at which the process ends."""
    raise Crashed


def break_at(patch: pytest.MonkeyPatch, step: str) -> None:
    """Let each commit end at a step of `STEPS`."""

    def after(owner: Any, name: str) -> None:
        real = getattr(owner, name)

        def call(*arguments: Any, **more: Any) -> Any:
            real(*arguments, **more)
            raise Crashed

        patch.setattr(owner, name, call)

    match step:
        case "before the charge":
            patch.setattr(SharedLedger, "before_commit", crash)
        case "within the charge":
            after(SharedRows, "write_at")
        case "after the charge":
            after(SharedLedger, "before_commit")
        case "within the commit":
            after(SharedLedger, "within_commit")
        case "after the commit":
            patch.setattr(SharedLedger, "after_commit", crash)


@contextmanager
def ending(step: str) -> Iterator[None]:
    """The commit of a with statement ends at a step of `STEPS`."""
    with pytest.MonkeyPatch.context() as patch:
        break_at(patch, step)
        with pytest.raises(Crashed):
            yield
