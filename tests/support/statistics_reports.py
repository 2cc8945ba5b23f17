"""A small job with statistics whose people send reports, and rounds between devices and the desk."""

import json
from typing import Any

import numpy as np

from streamdp.config.definition import Definition
from streamdp.data.records import Batch
from streamdp.estimators.statistics import Statistics
from streamdp.privacy.entropy import SeededEntropy
from streamdp.protocol.local_half import LocalHalf
from streamdp.protocol.report_desk import ReportDesk
from streamdp.runtime.learning import learn
from streamdp.store.snapshot import Counts

FEATURES: dict[str, Any] = {
    "age": {"bounds": [18, 100], "label": "How old are you?"},
    "hours": {"bounds": [0, 60]},
    "wage": {"column": "pay", "bounds": [1, 1000], "transform": "log"},
    "sector": ["public", "private", "none"],
    "word": {"text": 4},
    "unread": [0, 1],
}
STATISTICS: dict[str, Any] = {
    "ages": {"histogram": "age", "edges": [18, 30, 50, 100]},
    "hours": {"mean": "hours", "by": "sector", "share": 2},
    "median wage": {"quantile": [0.25, 0.5], "of": "wage", "by": "sector"},
    "pay": {"sum": "wage"},
    "sectors": {"proportion": "sector", "by": "age", "edges": {"age": [0, 40, 100]}},
    "table": {
        "count": ["age", "hours", "sector"],
        "edges": {"age": list(range(18, 100, 6)), "hours": list(range(0, 61, 10))},
    },
    "words": {"heavy_hitters": "word"},
}
"""Each kind; the table has so many cells that a report has a bit for each of them."""
PERSON: dict[str, Any] = {"age": 31.5, "hours": "38", "pay": 20, "sector": "private", "word": "té"}


def definition(statistics: dict[str, Any] = STATISTICS, subject: Any = None, **more: Any) -> Definition:
    """A job with these statistics."""
    schema = {"features": FEATURES} | ({"subject": subject} if subject else {})
    model = {"trust": "nobody", "budget": "eps=1"} | more.pop("model", {})
    given = {"schema": schema, "statistics": statistics, "model": {"estimator": "Statistics"} | model}
    return Definition.model_validate(given | more)


def desk_of(job: Definition, **options: Any) -> tuple[ReportDesk, Statistics]:
    """The desk and the learner of a job, which have shown version 0."""
    learner = job.build_estimator()
    assert isinstance(learner, Statistics)
    desk = ReportDesk("survey", job, **options)
    desk.show(0, learner)
    return desk, learner


def report_of(desk: ReportDesk, x: Any = PERSON, name: str = "r", rng: SeededEntropy | None = None) -> dict[str, Any]:
    """What a new device sends, after it was JSON."""
    found: dict[str, Any] = json.loads(json.dumps(LocalHalf(desk.document().text, None, rng).report(x, None, name)))
    return found


def people(n: int, seed: int = 0) -> list[dict[str, Any]]:
    """Records of people, of which half say "tea"."""
    rng = np.random.default_rng(seed)
    return [
        {
            "age": float(rng.uniform(18, 100)),
            "hours": float(rng.uniform(0, 60)),
            "pay": float(np.exp(rng.normal(3, 1))),
            "sector": str(rng.choice(["public", "private", "none"], p=[0.2, 0.5, 0.3])),
            "unread": 0.5,
            "word": "tea" if rng.random() < 0.5 else str(rng.integers(10**4)),
        }
        for _ in range(n)
    ]


def learned(desk: ReportDesk, learner: Statistics, version: int, *reports: dict[str, Any]) -> None:
    """Learn reports as a service learns a call, and show the version that follows."""
    made: list[Any] = [desk.receive(report).report for report in reports]
    none = np.zeros(len(made))
    learn(learner, Batch((), none[:, None][:, :0], none, none.astype(np.int64), {}, reports=made), Counts())
    desk.show(version, learner)


def state_of(learner: Any) -> dict[str, np.ndarray]:
    """What was learned, by part."""
    return {name: value for name, value in learner.state_dict().items() if name[0].isdigit()}
