"""The test vectors of local reports, which every language must reproduce.

`python -m tests.support.vectors` writes new ones. A draw is named by the job and a number n. Its word k is the first 8
bytes, most significant first, of the SHA-256 of the text `streamdp/1/JOB/n/k`. So the same words give the same report
everywhere.
"""

import contextlib
import json
from dataclasses import replace
from hashlib import sha256
from itertools import count
from typing import Any

import numpy as np
import polars as pl

from streamdp.errors import SchemaError
from streamdp.estimators.ldp.randomizer import Report
from streamdp.privacy import samplers
from streamdp.privacy.entropy import SeededEntropy
from streamdp.privacy.guarantees import amount, parse_budget
from streamdp.privacy.mechanisms import MECHANISMS, record_rows
from streamdp.privacy.mechanisms.response import truth as probability
from streamdp.protocol.local_half import LocalHalf
from streamdp.protocol.report_desk import ReportDesk, possible
from streamdp.scaling import unit_table as k
from tests.support.local_reports import EDGES, JOBS, truth
from tests.support.local_reports import PERSON as TRAVELLER
from tests.support.paths import ROOT
from tests.support.states import units_of
from tests.support.statistics_reports import PERSON, definition, desk_of, people

PATH = ROOT / "clients" / "vectors" / "reports-1.json"
FOREVER = 4102444800.0  # the first second of 2100
WORDS = 300
_NORMAL_EDGE = 3.6541528853610088  # where the tail of the ziggurat begins

CALIBRATIONS = [
    (mechanism, budget, d, own)
    for mechanism, budgets in {
        "privunit": ["eps=0.1", "eps=1", "eps=1.1", "eps=8", "eps=400"],
        "laplace": ["eps=0.1", "eps=1.1", "eps=1000"],
        "gaussian": ["mu=0.3", "mu=5", "eps=1,delta=1e-06", "eps=0.01,delta=1e-09", "eps=20,delta=0.001"],
    }.items()
    for budget in budgets
    for d in (1, 2, 3, 6, 101)
    for own in (False, True)
]


class GivenWords(SeededEntropy):
    """The words of a named draw; more of them are an error."""

    def __init__(self, job: str, n: int) -> None:
        super().__init__(0, WORDS)
        self.words[1:] = [word(job, n, at) for at in range(WORDS)]
        self.words[0] = 1

    def _renew(self, length: int) -> None:
        raise AssertionError("a draw needs more words than it has")

    def draw(self, count: int) -> np.ndarray:
        """The words from the first one on."""
        return self.words[1 : 1 + count].copy()


def word(job: str, n: int, at: int) -> int:
    """Word `at` of draw n."""
    return int.from_bytes(sha256(f"streamdp/1/{job}/{n}/{at}".encode()).digest()[:8], "big")


def rare(job: str, n: int) -> bool:
    """Whether the first word of a draw needs the rare case of the job's sampler."""
    words = np.array([1, *(word(job, n, at) for at in range(WORDS))], dtype=np.uint64)
    noise = samplers.GAUSSIAN if job in ("gaussian", "approx") else samplers.LAPLACE
    row = np.ones((1, samplers.CALIBRATION))
    assert samplers.randomize(noise, row, np.zeros((1, 1)), words) == 1
    return bool(words[0] > 2)  # it took more than one word


def tail(job: str, n: int) -> bool:
    """Whether it needs the tail."""
    return rare(job, n) and word(job, n, 0) & 255 == 0


def noiseless(half: LocalHalf, x: dict[str, Any], y: float) -> Any:
    """The true answer: a gradient or a bit."""
    found = replace(half.randomizer, mechanism="none")(x, y)
    if isinstance(found, Report):
        return found.gradient.tolist()
    row = half.randomizer
    assert row.question is not None
    return bool(replace(row, budget=parse_budget("mu=1000000" if "mu" in str(row.budget) else "eps=1000000"))(x, y).yes)


def calibration(mechanism: str, budget: str, d: int, own: bool) -> dict[str, float]:
    """The calibration by name, for a bound of 1 and a sensitivity of 2."""
    made = MECHANISMS[mechanism](parse_budget(budget), 1.0, 2.0)
    row = (record_rows(made, d) if own else made.rows(d))[0]
    names = {"scale": samplers.SCALE, "grid": samplers.GRID, "keep": samplers.KEEP}
    if mechanism == "privunit":
        names |= {"p": samplers.CAP_PROBABILITY, "gamma": samplers.CAP_COSINE}
    return {name: float(row[at]) for name, at in names.items()}


def text_of(desk: ReportDesk, version: int) -> bytes:
    """The newest document of a desk, which does not expire."""
    return desk._written(version, desk._newest[1], FOREVER).text


def documents(job: str) -> list[bytes]:
    """A job's documents: the first one, and later ones with each question."""
    learner: Any = JOBS[job].build_estimator()
    desk = ReportDesk(job, JOBS[job])
    rng = np.random.default_rng(1)
    out = []
    for version in range(4):
        desk.show(version, learner)
        out.append(text_of(desk, version))
        if version == 1 and units_of(learner).summary.size:
            units_of(learner).progress[k.ASKED] = 0.0
            continue
        indicators = rng.integers(0, 2, (400, len(JOBS[job].build_schema().feature_names) - 2))
        X = np.column_stack([rng.uniform(-0.2, 0.4, (400, 2)), indicators])
        learner.learn_encoded(X, np.clip(rng.integers(0, 2, 400), 0, 1).astype(float))
    return out


def tail_ratio(job: str, n: int) -> float:
    """The exponential variate of the second word over the square of the first point of the tail of the normal law.

    The point is rejected up to 1/2. Without the tail: infinite.
    """
    x, y = (-np.log1p(-(word(job, n, at) >> 11) * 2.0**-53) for at in (1, 2))
    return float(y / (x / _NORMAL_EDGE) ** 2) if tail(job, n) else np.inf


def numbers_of(job: str) -> list[int]:
    """The draws of a job: the first ones, and some that need the rare cases of its sampler."""
    found = list(range(12))
    if job in ("laplace", "gaussian", "approx", "quantile"):
        found += [n for n in range(12, 1000) if rare(job, n)][:6] + [n for n in range(12, 20_000) if tail(job, n)][:3]
    if job == "gaussian":
        found.append(next(n for n in count(20_000) if tail_ratio(job, n) <= 0.5))
        found.append(next(n for n in count(20_000) if 0.5 < tail_ratio(job, n) < 1))
    return found


def case(job: str, text: bytes, numbers: list[int]) -> dict[str, Any]:
    """All that a device computes from a document and the person, with these draws."""
    half = LocalHalf(text)
    schema = JOBS[job].build_schema()
    row, y = schema.encode_one({**TRAVELLER, schema.target: truth(job)})
    assert y is not None
    reports = []
    for n in numbers:
        half.randomizer = replace(half.randomizer, rng=GivenWords(job, n))
        reports.append({"n": n, "report": half.report(TRAVELLER, truth(job), f"{job}-{n}")})
    out: dict[str, Any] = {
        "job": job,
        "document": json.loads(text),
        "x": TRAVELLER,
        "y": truth(job),
        "columns": list(row.values()),
        "target": y,
        "truth": noiseless(half, row, y),
        "reports": reports,
    }
    if half.document.ask == "gradient":
        good = np.array(reports[0]["report"]["gradient"])
        mechanism = half.randomizer._calibrated(half.budget)
        tried = [good, good * 1.0001, good * 2, -good, good * 0]
        out["possible"] = [
            {"gradient": g.tolist(), "possible": possible(mechanism, True, g) is not None} for g in tried
        ]
    return out


SURVEYS = {
    "survey": definition(),
    "survey of mu": definition(model={"budget": "mu=0.8"}),
    "survey at 4": definition(model={"budget": "eps=4"}),
}
"""Jobs with statistics: the table of the first two has a bit for each cell, and that of the last one has not."""

SURVEYED: list[dict[str, Any]] = [
    PERSON,
    {"age": 30, "hours": 60, "pay": 1, "sector": "none", "word": "tea"},
    {"age": "49.999", "hours": -3, "pay": 1e6, "sector": "public", "word": "\U0001f600x"},
    {"age": 1e300, "hours": 30, "pay": 31.622776601683793, "sector": "public", "word": " \u00e9\u00e9\u00e9"},
    {"age": 96, "hours": 9.99, "pay": 2.5, "sector": "none", "word": "a"},
]
"""Records at the edges of bins and bounds, and texts of characters of several bytes."""


def surveys() -> list[tuple[str, bytes, list[int]]]:
    """The documents of the surveys, before and after reports about quantiles, with the draws of each."""
    out = []
    for name, job in SURVEYS.items():
        desk, learner = desk_of(job)
        for version in range(2):
            desk.show(version, learner)
            out.append((name, text_of(desk, version), list(range(60))))
            learner.learn_many(pl.DataFrame(people(4000)))
    return out


def survey_case(name: str, text: bytes, numbers: list[int]) -> dict[str, Any]:
    """What a device reports about statistics, with these draws: draw n is of the record n, in turn."""
    made = [(n, SURVEYED[n % len(SURVEYED)], LocalHalf(text, None, GivenWords(name, n))) for n in numbers]
    reports = [{"n": n, "x": x, "report": half.report(x, None, f"{name}-{n}")} for n, x, half in made]
    return {"job": name, "document": json.loads(text), "reports": reports}


def columns_at(name: str, value: Any) -> dict[str, Any]:
    """The columns of a person with another value, with "job": the transforms; null if the record is refused."""
    x, columns = TRAVELLER | {name: value}, None
    with contextlib.suppress(SchemaError):
        columns = JOBS["transforms"].build_schema().encode_raw(x)
    return {"x": x, "columns": columns}


def vectors(shown: list[tuple[str, bytes, list[int]]], surveyed: list[tuple[str, bytes, list[int]]]) -> dict[str, Any]:
    """All vectors for these documents of jobs with models, and with statistics, and these draws."""
    return {
        "protocol": 1,
        "cases": [case(*each) for each in shown],
        "statistics": [survey_case(*each) for each in surveyed],
        "records": [columns_at(name, value) for name, values in EDGES.items() for value in values],
        "calibrations": [
            {"mechanism": m, "budget": b, "d": d, "own": own} | calibration(m, b, d, own)
            for m, b, d, own in CALIBRATIONS
        ],
        "keep": [
            {"budget": b, "keep": float(probability(parse_budget(b), np.array([amount(parse_budget(b))]))[0])}
            for b in ("eps=0.01", "eps=1", "eps=30", "eps=500", "mu=0.01", "mu=1", "mu=9")
        ],
    }


if __name__ == "__main__":
    found = vectors(
        [(job, text, numbers) for job in JOBS for numbers in [numbers_of(job)] for text in documents(job)], surveys()
    )
    PATH.parent.mkdir(exist_ok=True)
    PATH.write_text(json.dumps(found, separators=(",", ":")).replace('{"job":', '\n{"job":') + "\n")
