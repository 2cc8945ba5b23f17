"""The JavaScript device draws the distributions that it claims, and keeps its claim against attacks on neighbours.

Its words come from WebCrypto and have no seed, so a right device fails each test with a probability of at most 1e-6
(`FALSE_ALARM`) for tests of fit, and 1e-9 for the audits.
"""

import json
import math
from typing import Any

import numpy as np
import pytest
from scipy import stats

from streamdp.config.definition import Definition
from streamdp.estimators import accepted
from streamdp.privacy import samplers
from streamdp.privacy.guarantees import amount, parse_budget
from streamdp.privacy.mechanisms import MECHANISMS, Mechanism
from streamdp.protocol.local_half import LocalHalf
from streamdp.protocol.report_desk import ReportDesk, possible
from tests.support.audit import FALSE_ALARM, epsilon_lower_bound, mu_lower_bound
from tests.support.local_reports import PERSON, truth
from tests.support.node import node
from tests.support.sizes import some
from tests.support.vectors import PATH, noiseless

CASES = json.loads(PATH.read_text())["cases"]


def case_of(job: str, ask: bool = False) -> dict[str, Any]:
    found: dict[str, Any] = next(c for c in CASES if c["job"] == job and (c["document"]["ask"] != "gradient") == ask)
    return found


def draws(case: dict[str, Any], records: list[Any], n: int, **change: float) -> np.ndarray:
    """(records, n, d) reports of the JavaScript device; `change` multiplies constants of its noise."""
    given = {"document": case["document"], "records": records, "n": n, "change": change}
    ran = node("clients/js/draws.mjs", given=json.dumps(given).encode())
    assert ran.returncode == 0, ran.stderr.decode()
    return np.frombuffer(ran.stdout).reshape(len(records), n, -1)


def mechanism_of(case: dict[str, Any]) -> Mechanism:
    loss, document = case["document"]["loss"], case["document"]
    return MECHANISMS[document["mechanism"]](parse_budget(document["budget"]), loss["bound"], loss["sensitivity"])


def true_gradient(case: dict[str, Any], x: dict[str, Any], y: Any) -> np.ndarray:
    half = LocalHalf(json.dumps(case["document"]).encode())
    row, target = half.schema.encode_one({**x, half.schema.target: y})
    assert target is not None
    return np.array(noiseless(half, row, target))


@pytest.mark.parametrize("job", ["laplace", "approx"])
def test_additive_noise_has_its_law_and_no_other_scale(job: str) -> None:
    """Chi-square on cells of equal mass and on far cells; noise 20 % off fails."""
    case, n = case_of(job), 4_000
    mechanism = mechanism_of(case)
    scale = float(mechanism.rows(5)[0, 0])
    law = (stats.laplace if job == "laplace" else stats.norm)(scale=scale)
    tails = np.geomspace(2e-3, 0.05, 6)
    edges = law.ppf(np.concatenate([tails, np.linspace(0.1, 0.9, 33), 1 - tails[::-1]]))
    truly = true_gradient(case, PERSON, truth(job))

    def fit(**change: float) -> float:
        noise = (draws(case, [[PERSON, truth(job)]], n, **change)[0] - truly).ravel()
        seen = np.bincount(np.searchsorted(edges, noise), minlength=len(edges) + 1)
        return float(stats.chisquare(seen, len(noise) * np.diff([0, *law.cdf(edges), 1])).pvalue)

    assert fit() > FALSE_ALARM
    for factor in (0.8, 1.2):
        assert fit(scale=factor) < FALSE_ALARM


@pytest.mark.parametrize("job", ["privunit", "softmax"])
def test_privunit_is_unbiased_in_its_cap_and_always_possible(job: str) -> None:
    case, n = case_of(job), 5_000
    mechanism, truly = mechanism_of(case), true_gradient(case, PERSON, truth(job))
    d = len(truly)
    reports = draws(case, [[PERSON, truth(job)]], n)[0]
    assert all(possible(mechanism, True, g) is not None for g in reports[:500])
    assert np.abs(reports.mean(axis=0) - truly).max() < 6 * np.linalg.norm(reports[0]) / math.sqrt(d * n) * 1.5
    cap, p = mechanism.rows(d)[0, [samplers.CAP_COSINE, samplers.CAP_PROBABILITY]]
    share = np.linalg.norm(truly) / mechanism.bound
    q = stats.beta((d - 1) / 2, (d - 1) / 2, loc=-1, scale=2).sf(cap)
    wrong = (1 - p) * q / (1 - q)  # the mirrored cap is off the cap
    expected = (1 + share) / 2 * p + (1 - share) / 2 * wrong
    cosines = reports @ (truly / np.linalg.norm(truly)) / np.linalg.norm(reports[0])
    inside = int(np.count_nonzero(cosines >= cap))
    assert stats.binomtest(inside, n, float(expected)).pvalue > FALSE_ALARM
    louder = draws(case, [[PERSON, truth(job)]], n, p=1.25)[0]
    cosines = louder @ (truly / np.linalg.norm(truly)) / np.linalg.norm(louder[0])
    assert stats.binomtest(int(np.count_nonzero(cosines >= cap)), n, float(expected)).pvalue < FALSE_ALARM


def test_a_bit_has_the_probability_of_its_budget() -> None:
    case, n = case_of("huber", ask=True), 10_000
    p = 1 / (1 + math.exp(-amount(parse_budget(case["document"]["budget"]))))
    assert case["document"]["ask"] == {"column": "gain", "below": 0.0}
    no, yes = draws(case, [[PERSON, 300.0], [PERSON, -100.0]], n)[:, :, 0].sum(axis=1)
    assert stats.binomtest(int(no), n, 1 - p).pvalue > FALSE_ALARM
    assert stats.binomtest(int(yes), n, p).pvalue > FALSE_ALARM
    found = math.log(yes / n / (no / n))
    assert found < 4 + 6 * math.sqrt(2 / no)
    louder = draws(case, [[PERSON, -100.0]], n, keep=1.015)[:, :, 0].sum()
    assert stats.binomtest(int(louder), n, p).pvalue < FALSE_ALARM


def worst(mechanism: str, budget: str, columns: int) -> dict[str, Any]:
    """A document in the finest units and two neighbours whose gradients are opposite and as long as the bound."""
    features = {name: [-1, 1] for name in "abc"[:columns]}
    schema = {"features": features, "target": {"column": "y", "classes": ["0", "1"]}}
    model = {"estimator": "LDPSGDClassifier", "budget": budget, "mechanism": mechanism, "scaling": "none"}
    clipped = {"intercept": False, "loss": {"name": "logistic", "clip": 1.0}}
    job = Definition.model_validate({"schema": schema, "model": model | clipped})
    desk = ReportDesk("worst", job)
    desk.show(0, job.build_estimator())  # type: ignore[arg-type]
    document = json.loads(desk.document().text)
    document["scales"] = [[0.0, accepted.FINEST]] * columns + [[0.0, 1.0]]
    return {"document": document, "records": [[dict.fromkeys(features, v), 1] for v in (1.0, -1.0)]}


def attack(case: dict[str, Any], n: int, **change: float) -> float:
    """The loss that an observer of one report finds, as epsilon or mu, with a confidence of 1 - 1e-9."""
    first, second = draws(case, case["records"], n, **change).sum(axis=2)
    bound = mu_lower_bound if "mu" in case["document"]["budget"] else epsilon_lower_bound
    return bound(first, second, false_alarm=1e-9)


@pytest.mark.parametrize(
    ("mechanism", "budget", "columns", "broken"),
    some(
        [
            ("laplace", "eps=1", 1, {"scale": 0.5}),
            ("gaussian", "mu=1", 1, {"scale": 0.5}),
            ("privunit", "eps=1", 1, {"p": 1.2}),  # e^2 to 1, as eps=2
            ("privunit", "eps=1", 3, {"p": 1.3}),
        ],
        1,
        3,
    ),
)
def test_an_attack_keeps_below_the_claim_and_finds_half_the_noise(
    mechanism: str, budget: str, columns: int, broken: dict[str, float]
) -> None:
    case = worst(mechanism, budget, columns)
    found = attack(case, 12_000)
    assert 0.5 < found <= 1
    assert attack(case, 12_000, **broken) > 1.2


def test_a_report_about_statistics_keeps_the_claim_and_finds_half_the_noise() -> None:
    """All parts, of which two are drawn by chance. The score is the log ratio of two counts of an answer."""
    declared = {"count": {"count": "g"}, "mean": {"mean": "x", "by": "g"}, "median": {"quantile": 0.5, "of": "x"}}
    schema, records = (
        {"features": {"g": ["a", "b"], "x": [-1, 1]}},
        [[{"g": "a", "x": 1}, None], [{"g": "b", "x": -1}, None]],
    )

    def found(budget: str) -> float:
        model = {"estimator": "Statistics", "trust": "nobody", "budget": budget}
        job = Definition.model_validate({"schema": schema, "statistics": declared, "model": model})
        desk = ReportDesk("worst", job)
        desk.show(0, job.build_estimator())
        made = draws({"document": json.loads(desk.document().text)}, records, 20_000)[:, :, 0].astype(int)
        counts = [np.bincount(each[:10_000], minlength=3000) + 1 for each in made]
        scores = [np.log(counts[0] / counts[1])[each[10_000:]] for each in made]
        return epsilon_lower_bound(scores[0], scores[1], false_alarm=1e-9)

    assert 0.5 < found("eps=1") <= 1
    assert found("eps=2") > 1
