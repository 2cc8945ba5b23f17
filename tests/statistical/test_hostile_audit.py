"""A hostile learner's best document tells no more of a record than its budget: attacks at the corners.

The attacker chooses theta, the units and the question at the edges of `accepted`, and two records whose true answers
differ most, and sees one report. Right code fails a test with a probability of at most 1e-9 for each corner.
"""

import json
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest

from streamdp.config.definition import Definition
from streamdp.estimators import accepted
from streamdp.estimators.ldp.randomizer import Randomizer, Report
from streamdp.privacy.guarantees import PureDP, amount, parse_budget, with_amount
from streamdp.protocol.local_half import LocalHalf
from streamdp.protocol.report_desk import ReportDesk
from tests.support.audit import epsilon_lower_bound, mu_lower_bound
from tests.support.sizes import some

CLASSES = {"column": "y", "classes": ["0", "1"]}
NUMBER = {"column": "y", "bounds": [-100, 300], "scale": 10.0}
MECHANISMS = [("privunit", "eps=1"), ("laplace", "eps=1"), ("gaussian", "mu=1")]


def document_of(target: dict[str, Any], mechanism: str, budget: str) -> dict[str, Any]:
    """One column without an intercept: true gradients are opposite, and as long as the bound."""
    kind, loss = ("Classifier", "logistic") if "classes" in target else ("Regressor", "huber")
    model = {"estimator": f"LDPSGD{kind}", "budget": budget, "mechanism": mechanism, "scaling": "none"}
    given = {"intercept": False, "loss": {"name": loss, "clip": 1.0}}
    job = Definition.model_validate({"schema": {"features": {"x": [-1, 1]}, "target": target}, "model": model | given})
    desk = ReportDesk("audit", job)
    desk.show(0, job.build_estimator())  # type: ignore[arg-type]
    found: dict[str, Any] = json.loads(desk.document().text)
    return found


def corners(document: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The column in the finest or the coarsest units, theta at 0 or as far out as it may be, and one bit."""
    for scale, centre, far in product((accepted.FINEST, 1 / accepted.FINEST), (0.0, 2.0), (0.0, accepted.FURTHEST)):
        theta = [far]
        if document["loss"]["name"] == "huber":
            theta.append(far or document["loss"]["parameters"]["sigma_min"])
        yield document | {"theta": theta, "scales": [[centre, scale], document["scales"][1]]}
    yield document | {"ask": {"column": "x", "below": 0.0}}


def true_answer(randomizer: Randomizer, row: dict[str, float], y: float) -> np.ndarray:
    found = replace(randomizer, mechanism="none", budget=with_amount(randomizer.budget, 2.0**20))(row, y)
    return found.gradient if isinstance(found, Report) else np.array([float(found.yes)])


def attack(document: dict[str, Any], n: int, louder: float = 1.0) -> float:
    """The loss that the attacker finds; `louder` multiplies the budget that the noise keeps, and not the claim."""
    half = LocalHalf(json.dumps(document).encode(), document["agreement"])
    randomizer, target = half.randomizer, document["schema"]["target"]
    records = product((-1.0, 1.0), target["classes"] or target["bounds"])
    encoded: list[Any] = [half.schema.encode_one({"x": x, "y": y}) for x, y in records]
    answers = np.array([true_answer(randomizer, *record) for record in encoded])
    apart = np.linalg.norm(answers[:, None] - answers[None], axis=2)
    one, other = np.unravel_index(int(np.argmax(apart)), apart.shape)
    drawn = replace(randomizer, budget=with_amount(randomizer.budget, amount(randomizer.budget) * louder))
    scores = []
    for row, y in (encoded[int(one)], encoded[int(other)]):
        made = [drawn(row, y) for _ in range(n)]
        vectors = np.array([m.gradient if isinstance(m, Report) else [float(m.yes)] for m in made])
        scores.append(vectors @ (answers[one] - answers[other]))
    bound = epsilon_lower_bound if isinstance(randomizer.budget, PureDP) else mu_lower_bound
    return bound(scores[0], scores[1], false_alarm=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("target", "mechanism", "budget"),
    some([(target, *kind) for target in (CLASSES, NUMBER) for kind in MECHANISMS], 0, 4),
    ids=lambda v: v if isinstance(v, str) else v["column"],
)
def test_no_document_at_a_corner_tells_more_than_the_budget(
    target: dict[str, Any], mechanism: str, budget: str
) -> None:
    found = [attack(corner, 600) for corner in corners(document_of(target, mechanism, budget))]
    assert max(found) <= amount(parse_budget(budget))


@pytest.mark.parametrize(("mechanism", "budget"), some(MECHANISMS, 0))
def test_the_attack_finds_half_the_noise(mechanism: str, budget: str) -> None:
    corner = next(corners(document_of(CLASSES, mechanism, budget)))
    assert 0.3 < attack(corner, 2_000) <= amount(parse_budget(budget))
    assert attack(corner, 2_000, louder=2.0) > 1.2
