"""Sizes of tests: the suite has some cases of a matter, and the campaign has all."""

from collections.abc import Iterable
from typing import Any

import pytest


def some(cases: Iterable[Any], *places: int) -> list[Any]:
    """The cases as parameters; all but those at these places have the marker `campaign`."""
    return [
        case if place in places else pytest.param(*_values(case), marks=pytest.mark.campaign)
        for place, case in enumerate(cases)
    ]


def _values(case: Any) -> tuple[Any, ...]:
    """A plain tuple is the values of several parameters; anything else is the value of one."""
    return case if type(case) is tuple else (case,)
