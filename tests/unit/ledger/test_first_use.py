"""An interruption in the first use of a ledger leaves a whole ledger, or none."""

import gc
import itertools
from pathlib import Path

import pytest

from streamdp import Ledger, PureDP
from tests.support.interruptions import interrupted, lines_of
from tests.support.kept import kept


def first_use(path: Path) -> None:
    with kept("eps=2", path) as ledger:
        assert ledger.admit("ann", PureDP(1))


@pytest.mark.slow
def test_an_interruption_at_any_line_leaves_a_whole_ledger_or_none(tmp_path: Path) -> None:
    number = itertools.count()
    lines = lines_of(lambda: first_use(tmp_path / "whole.db"))
    for after in range(0, lines, 61):
        path = tmp_path / f"{next(number)}.db"
        interrupted(lambda path=path: first_use(path), after)
        gc.collect()  # a lock that was taken in the interrupted line ends with its object
        with kept("eps=2", path) as ledger:
            spent = ledger.spent("ann").records
            assert spent in (0, 1)
            assert ledger.admit("ann", PureDP(1))


@pytest.mark.slow
def test_an_interruption_of_a_temporary_ledger_leaves_models_whole() -> None:
    from streamdp import LDPASGDRegressor

    def learn(model: LDPASGDRegressor) -> None:
        model.learn_one({"a": 0.5}, 0.5, subject="ann")

    def make() -> LDPASGDRegressor:
        return LDPASGDRegressor(features=["a"], ledger=Ledger("eps=9"), seed=1)

    for after in range(0, lines_of(lambda: learn(make())), 13):
        model = make()
        interrupted(lambda model=model: learn(model), after)
        learn(model)
        assert model.n_seen in (1, 2)
