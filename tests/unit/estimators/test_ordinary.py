"""Tables as people have them, at the defaults: long tails, rare flags, rare classes (`benchmarks.ordinary`)."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.ordinary import TABLES, constant, ours

BETTER = {
    "amounts and flags, MAE": 0.85,  # they were three times as far as the constant
    "the same, 15 % positive, 1 - AUC": 0.6,
    "linear truth with flags, 1 - R²": 0.4,  # 35 times the variance
    "5 % positive, log loss": 0.97,
}


@pytest.mark.parametrize("trust", ["process", "shuffler"])
@pytest.mark.parametrize("name", BETTER)
def test_no_ordinary_table_is_learned_worse_than_a_constant(name: str, trust: str) -> None:
    case, rng = TABLES[name], np.random.default_rng([1, 5])
    data, held = case.draw(rng, min(case.records, 50_000)), case.draw(rng, 10_000)
    found = case.score(held, ours(trust, case, data, held, 4.0, 1))
    assert found < BETTER[name] * case.score(held, constant(case, data, held))
