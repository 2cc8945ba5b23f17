"""Which records are learned, refused and left out, by a plain count of caps, budgets of records and people in sums.

The count reads nothing but whether the estimator is at a boundary: then the sum that its people are in has ended.
"""

from collections import Counter
from typing import Any

import numpy as np
import pytest

import streamdp
from streamdp import Ledger
from streamdp.privacy.guarantees import with_amount
from streamdp.privacy.release import JOINED, LEFT_OUT, REFUSED
from streamdp.stats import Statistics
from tests.conformance.test_values import KINDS
from tests.support.plain_method import Plain
from tests.support.states import kept

MOST, N = 3, 600
FEATURES = {"a": (-1, 1), "b": (-1, 1)}


def made(name: str, ledger: Ledger | None, rng: np.random.Generator) -> tuple[Any, int]:
    """A model, and how many records of a person its sums take; reports of one person are 0."""
    size, items = int(rng.integers(3, 40)), int(rng.integers(1, 4))
    budget = "eps=1" if name.startswith("LDP") else "eps=1,delta=1e-6"
    if name not in KINDS:
        return Statistics({"m": {"mean": "a"}}, FEATURES, budget, name, batch_size=size, ledger=ledger, seed=1), 1
    more: dict[str, Any] = {"seed": 1} | ({"target": (0, 1)} if name.endswith("Regressor") else {})
    if name.startswith(("Pan", "Shuffle")):
        more |= {"batch_size": size + (60 if name.startswith("Shuffle") else 0)}
    if name.startswith("UserLevel"):
        more |= {"items_per_user": items, "window": size}
    if name.startswith("Windowed"):
        more |= {"items_per_user": items, "window": size, "method": Plain()}
    many = 0 if name.startswith("LDP") else items if name.startswith(("User", "Windowed")) else 1
    return getattr(streamdp, name)(features=FEATURES, budget=budget, ledger=ledger, **more), many


def outcome_of(model: Any, x: np.ndarray, y: float, own: float, person: str, by_row: bool) -> int:
    """What becomes of one record, by the array of a call or by the counts."""
    if by_row:
        outcome = model.learn_encoded(x[None], np.array([y]), np.array([own]), [person])
        return JOINED if outcome is None else int(outcome[0])
    refused, left_out = model.n_refused, model.n_left_out
    target = [] if isinstance(model, Statistics) else [bool(y) if model.predicts_classes else y]
    budget = None if np.isnan(own) else with_amount(model.record_budget, own)
    model.learn_one({"a": x[0], "b": x[1]}, *target, subject=person, budget=budget)
    return REFUSED if model.n_refused > refused else LEFT_OUT if model.n_left_out > left_out else JOINED


@pytest.mark.parametrize("name", [*KINDS, "process", "window", "shuffler"])
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_records_are_learned_as_a_plain_count_says(name: str) -> None:
    for seed in range(3):
        rng = np.random.default_rng(seed)
        people = [f"p{i}" for i in rng.integers(0, (20, 60, 150)[seed], N)]
        X, y, own = rng.uniform(-1, 1, (N, 2)), rng.integers(0, 2, N).astype(float), rng.choice([0.5, 1, 2, np.nan], N)
        with Ledger(f"eps={MOST},delta=1e-3") as mine, Ledger(f"eps={MOST},delta=1e-3") as theirs:
            (one, most), (many, _) = (made(name, each, np.random.default_rng(seed)) for each in (mine, theirs))
            spent, inside, wanted = Counter[str](), Counter[str](), []
            for i, person in enumerate(people):
                amount = own[i] if most == 0 and own[i] == own[i] else 1.0
                if most and own[i] < 1:
                    wanted.append(REFUSED)
                elif inside[person]:
                    wanted.append(JOINED if inside[person] < most else LEFT_OUT)
                    inside[person] += inside[person] < most
                elif spent[person] + amount > MOST:
                    wanted.append(REFUSED)
                else:
                    wanted.append(JOINED)
                    spent[person] += amount
                    inside[person] = min(most, 1)
                if name.startswith("UserLevel") and inside[person] == most:
                    inside[person] = 0  # it has reported
                assert outcome_of(one, X[i], y[i], own[i], person, by_row=bool(rng.integers(2))) == wanted[-1], (
                    i,
                    person,
                )
                if one.at_boundary:
                    inside.clear()
            at, found = 0, []
            while at < N:
                part = slice(at, at + int(rng.integers(1, 90)))
                outcome = many.learn_encoded(X[part], y[part], own[part], people[part])
                found.extend([JOINED] * len(X[part]) if outcome is None else outcome.tolist())
                at = part.stop
            assert found == wanted
            for model, ledger in ((one, mine), (many, theirs)):
                model.close_batch()
                assert [model.n_seen, model.n_refused, model.n_left_out] == [
                    wanted.count(k) for k in (JOINED, REFUSED, LEFT_OUT)
                ]
                assert all(ledger.spent(person).epsilon == spent[person] for person in spent)
            assert kept(one) == kept(many)
            if not most:
                (plain, _), taken = made(name, None, np.random.default_rng(seed)), np.array(wanted) == JOINED
                plain.learn_encoded(X[taken], y[taken], own[taken])
                assert plain.theta.tobytes() == many.theta.tobytes()
