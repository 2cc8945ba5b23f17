"""Small jobs whose people send reports, and one round between a device and the desk."""

import json
from typing import Any

from streamdp.config.definition import Definition
from streamdp.learners.local_reports import LocalReports
from streamdp.privacy.entropy import SeededEntropy
from streamdp.protocol.local_half import LocalHalf
from streamdp.protocol.report_desk import ReportDesk

FEATURES: dict[str, Any] = {"delay": [-30, 60], "hour": [0, 24], "origin": ["EWR", "JFK", "LGA"]}
TRANSFORMS: dict[str, Any] = {
    "delay": {"bounds": [-30, 60], "transform": {"asinh": 10}},
    "hour": {"bounds": [0, 24], "knots": [6.5, 18]},
    "origin": ["EWR", "JFK", "LGA"],
    "turn": {"column": "hour", "cyclic": 24},
    "weekday": {"column": "when", "cyclic": "weekday"},
    "minute": {"column": "when", "cyclic": "minute"},
    "miles": {"bounds": [50, 5000], "transform": "log"},
    "root": {"column": "miles", "bounds": [0, 5000], "transform": {"power": 0.5}},
    "far": {"column": "miles", "bins": [1e-5, 700, 2e16]},
    "tail": {"hash": 5},
    "delay x far": {"product": ["delay", "far", "origin"]},
    "both": {"product": ["delay", "miles"]},
}
GROUPS: dict[str, Any] = {"origin": {"categories": ["JFK", "EWR", "LGA"], "per": True}} | {
    name: TRANSFORMS[name] for name in ("delay", "hour", "tail")
}
PERSON: dict[str, Any] = {"delay": 12.5, "hour": 7, "origin": "JFK"}
PERSON |= {"when": "2013-07-05T17:59:00+02:00", "miles": 719, "tail": "N14\u00fc28"}
EDGES: dict[str, list[Any]] = {
    "delay": [-1e300, -30, 0, "60", 61, "x", ""],
    "hour": [-1, 0, 6.5, 12, 18, 23.99, 24, 1e17],
    "when": ["2013-01-31", "2013-12-31 00:00", "17:59", "2013-02-29T10:00", "2000-02-29T24:00", " 1999-06-06T05:07Z ",
        7],
    "miles": [1e-9, 1e-5, 49, 50, 700, 5000, 3e16, -1, None],
    "tail": ["", "a", " a", "\U0001f600", "N1", "N2", "N3", 7],
}  # fmt: skip
"""Values at the edges of `TRANSFORMS`; each alone in place of the person's."""


def definition(
    target: dict[str, Any] | None = None, subject: Any = None, features: dict[str, Any] = FEATURES, **model: Any
) -> Definition:
    """A job on departures; a classifier of two classes unless the target says otherwise."""
    target = {"column": "late", "classes": ["False", "True"]} if target is None else target
    kind = "LDPASGDClassifier" if "classes" in target else "LDPASGDRegressor"
    schema = {"features": features, "target": target} | ({"subject": subject} if subject else {})
    cap = {"cap": model.pop("cap")} if "cap" in model else {}
    return Definition.model_validate({"schema": schema, "model": {"estimator": kind} | model} | cap)


NUMBER = {"column": "gain", "bounds": [-100, 300], "scale": 10.0}
THREE = {"column": "how", "classes": ["early", "on time", "late"]}
JOBS: dict[str, Definition] = {
    "privunit": definition(scaling="none"),
    "laplace": definition(mechanism="laplace", scaling="none", loss="hinge"),
    "gaussian": definition(budget="mu=0.7", scaling="declared"),
    "approx": definition(budget="eps=1.5,delta=1e-6", scaling="none", loss={"name": "logistic", "clip": 0.5}),
    "softmax": definition(THREE, budget="eps=2", scaling="none"),
    "huber": definition(NUMBER, budget="eps=4"),
    "quantile": definition(NUMBER, mechanism="laplace", loss={"name": "quantile", "tau": 0.9}, scaling="declared"),
    "squared": definition(NUMBER, loss="squared", budget="eps=0.3"),
    "transforms": definition(NUMBER, features=TRANSFORMS, budget="eps=4"),
    "groups": definition(NUMBER, features=GROUPS, budget="eps=4"),
}
TRUTH: dict[str, Any] = dict.fromkeys(("huber", "quantile", "squared", "transforms", "groups"), 37.0) | {
    "softmax": "on time"
}


def truth(job: str) -> Any:
    """The target of the person."""
    return TRUTH.get(job, "True")


def desk_of(job: str, **options: Any) -> tuple[ReportDesk, Any]:
    """The desk and the learner of a job, which have shown version 0."""
    learner = JOBS[job].build_estimator()
    assert isinstance(learner.learner, LocalReports)
    desk = ReportDesk(job, JOBS[job], **options)
    desk.show(0, learner)
    return desk, learner


def report_of(desk: ReportDesk, y: Any, name: str = "r", seed: int | None = None, **more: Any) -> dict[str, Any]:
    """What a new device sends, after it was JSON."""
    half = LocalHalf(desk.document().text, None, None if seed is None else SeededEntropy(seed))
    found: dict[str, Any] = json.loads(json.dumps(half.report(PERSON, y, name, **more)))
    return found
