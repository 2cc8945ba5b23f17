"""The search for columns and the target: its records spend the budget once, and an interruption loses no count."""

from typing import Any

import numpy as np
import pytest

from streamdp import Ledger, PanPrivateClassifier, PanPrivateRegressor, ShuffleRegressor

KINDS: dict[str, tuple[Any, dict[str, Any]]] = {
    "pan": (PanPrivateRegressor, {"target": (0, 4000)}),
    "squared": (PanPrivateRegressor, {"target": (0, 4000), "loss": "squared"}),
    "poisson": (PanPrivateRegressor, {"target": (0, 4000), "loss": "poisson"}),
    "classes": (PanPrivateClassifier, {"classes": [False, True]}),
    "shuffle": (ShuffleRegressor, {"target": (0, 4000)}),
}


def model(kind: str, **more: Any) -> Any:
    make, options = KINDS[kind]
    return make(features={"a": (-100, 100), "b": (-1, 1)}, budget="eps=1,delta=1e-6", seed=1, **options, **more)


def rows(n: int, kind: str, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    X = np.column_stack([rng.normal(0.2, 0.02, n), rng.uniform(-1, 1, n)])
    y = 60 * X[:, 1] + rng.normal(100, 20, n)
    return X, (y > 100).astype(float) if kind == "classes" else y


@pytest.mark.parametrize("kind", KINDS)
def test_each_record_of_a_search_spends_its_budget_once(kind: str) -> None:
    found = model(kind, ledger=Ledger("eps=1,delta=1e-6"))
    learner = found.learner
    walk, n = learner.batch_steps, learner.batch_steps.batch
    assert walk.searching
    for _ in range(2):  # those of the second time have nothing left
        found.learn_encoded(*rows(n, kind), None, list(range(n)))
    assert (found.n_seen, found.n_refused) == (n, n)
    assert walk.searching
    assert {found.ledger.spent(person).records for person in range(n)} == {1}


@pytest.mark.parametrize("kind", KINDS)
def test_an_interruption_in_a_search_keeps_counts_and_units(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = model(kind)
    learner = found.learner
    walk = learner.batch_steps
    found.learn_encoded(*rows(walk.batch, kind))
    found.close_batch()
    before = walk.state.numbers()

    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    for place in ("_add", "_close"):
        seen = found.n_seen
        with monkeypatch.context() as patch:
            patch.setattr(learner, place, interrupted)
            with pytest.raises(KeyboardInterrupt):
                found.learn_encoded(*rows(walk.batch, kind, 1))
        np.testing.assert_array_equal(walk.state.numbers(), before)
        assert found.n_seen > seen
        learner.discard()
    for seed in range(2, 40):
        found.learn_encoded(*rows(walk.batch, kind, seed))
        if not walk.searching:
            break
    assert not walk.searching
    low, high = learner.ranges[:, 0]
    assert 0 < low < 0.2 < high < 1 or kind != "classes"
    assert 1 / walk.state.units[1, 0] < 0.1 < 1 / walk.state.units[1, 1]
