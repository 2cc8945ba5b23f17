"""What the service shows of a job: its committed snapshots, and problem documents."""

import gzip
import time
from collections.abc import Callable
from http import HTTPStatus
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streamdp.config.job import JobConfig
from streamdp.data.records import Shard
from streamdp.service.schemas import ModelAnswer, Models, Predictions, Weights
from streamdp.serving.snapshots import combined, restore
from streamdp.store.snapshot import Counts, Part
from streamdp.store.store import Store
from tests.support.service import SECRET, client, job

FILE = {"type": "csv", "path": "never-read.csv"}


def learned_elsewhere(config: JobConfig, n: int, commits: int = 1) -> Any:
    """Commit what a worker of the job would; returns the estimator."""
    rng = np.random.default_rng(0)
    with Store(
        config.store_path, config.job, config.fingerprint(), cap=config.cap_budget, config=config.text()
    ) as store:
        estimator: Any = config.build_estimator(store.ledger)
        for k in range(1, commits + 1):
            X = rng.uniform(-1, 1, (n, 3))
            estimator.learn_encoded(X, (X[:, 0] > 0).astype(float), subjects=range(k * n, k * n + n))
            store.commit(estimator.state_dict(), {"row": k * n}, Counts(k * n))
    return estimator


def test_a_job_without_a_commit_is_version_0(tmp_path: Path) -> None:
    with client(job(tmp_path, source=FILE)) as http:
        (found,) = http.get("/v1/models").json()["models"]
        assert (found["job"], found["version"], found["learned"], found["committed_at"]) == ("late", 0, 0, None)
        assert http.get("/v1/models/late/weights").json()["version"] == 0


def test_a_job_that_learns_elsewhere_is_served_from_its_store(tmp_path: Path) -> None:
    config = job(tmp_path, source=FILE)
    estimator = learned_elsewhere(config, 500, commits=3)
    before = Path(config.store_path).read_bytes()
    with client(config) as http:
        assert http.get("/readyz").status_code == 200
        found = http.get("/v1/models/late").json()
        ModelAnswer.model_validate(found)
        Models.model_validate(http.get("/v1/models").json())
        assert (found["version"], found["learned"], found["guarantee"]["epsilon"]) == (3, 1500, 1.0)
        assert found["schema"]["features"] == {"dep_delay": [-30.0, 60.0], "origin": ["EWR", "JFK", "LGA"]}
        assert "replace-one" in found["guarantee"]["neighbours"]
        weights = http.get("/v1/models/late/weights").json()
        Weights.model_validate(weights)
        assert weights["weights"]
        assert {w["name"]: w["value"] for w in weights["weights"]} == estimator.weights
    assert Path(config.store_path).read_bytes() == before


@pytest.mark.parametrize("loss", ["logistic", "hinge"])
def test_nothing_learned_is_nothing_predicted(tmp_path: Path, loss: str) -> None:
    """The first class and even probabilities were predicted, and weights of 0 were shown with what they need."""
    model = {"estimator": "PanPrivateClassifier", "budget": "eps=1", "batch_size": 4, "loss": loss}
    one, learn = {"dep_delay": 1, "origin": "EWR"}, "/v1/models/late/learn"
    with client(job(tmp_path, model=model, cap=None)) as http:
        answer = http.post("/v1/models/late/predict", json={"records": [one, one], "ids": ["a", "b"]}).json()
        Predictions.model_validate(answer)
        assert answer["predictions"] == [None, None]
        assert answer["probabilities"] is None
        assert http.get("/v1/models/late/weights").json()["weights"] == []
        labels = [{"id": name, "y": "True", "subject": name} for name in "ab"]
        assert http.post(learn, json={"records": labels}).json()["learned"] == 2
        answer = http.post("/v1/models/late/predict", json={"records": [one]}).json()
        assert answer["predictions"][0] in ("False", "True")
        assert (answer["probabilities"] is None) == (loss == "hinge")
        assert len(http.get("/v1/models/late/weights").json()["weights"]) == 4


def test_a_store_that_is_not_there_yet_is_no_reason_to_stop(tmp_path: Path) -> None:
    with client(job(tmp_path, source=FILE)) as http:
        assert http.get("/healthz").json() == {"status": "up"}
        answer = http.get("/readyz")
        assert (answer.status_code, answer.headers["Retry-After"]) == (503, "1")
        assert 'streamdp_ready{job="late"} 0.0' in http.get("/metrics").text


@pytest.mark.parametrize(
    ("text", "times"),
    [(float, 1), (str, 1), (float, 20), (str, 20)],
    ids=["plain", "exactly", "many plain", "by columns"],
)
@pytest.mark.slow
def test_predictions_are_those_of_the_model(tmp_path: Path, text: Callable[[float], Any], times: int) -> None:
    config = job(tmp_path, source=FILE)
    estimator = learned_elsewhere(config, 500)
    with client(config) as http:
        records = [{"dep_delay": text(d), "origin": o} for d in (-31, 0, 20.5) for o in ("EWR", "JFK", "LGA")]
        records *= times
        answer = http.post("/v1/models/late/predict", json={"records": records}).json()
        Predictions.model_validate(answer)
        assert answer["version"] == 1
        x = [{"dep_delay": float(r["dep_delay"]), "origin": r["origin"]} for r in records]
        assert answer["predictions"] == [str(estimator.predict_one(one)) for one in x]
        for shares, one in zip(answer["probabilities"], x, strict=True):
            expected = {str(label): p for label, p in estimator.predict_proba_one(one).items()}
            assert shares == pytest.approx(expected, rel=1e-12)


def test_predictions_and_weights_of_a_regressor_are_in_the_unit_of_the_column(tmp_path: Path) -> None:
    schema = {"features": {"a": [0, 10]}, "target": {"column": "b", "bounds": [0, 100], "scale": 10}}
    config = job(
        tmp_path, source=FILE, schema=schema, cap=None, model={"estimator": "LDPASGDRegressor", "budget": "eps=8"}
    )
    with Store(config.store_path, config.job, config.fingerprint(), config=config.text()) as store:
        estimator: Any = config.build_estimator()
        X = np.random.default_rng(1).uniform(-1, 1, (20_000, 1))
        estimator.learn_encoded(X, (X[:, 0] + 1) * 5)
        store.commit(estimator.state_dict(), {}, Counts(20_000))
    with client(config) as http:
        found = http.post("/v1/models/late/predict", json={"records": [{"a": 7}]}).json()
        assert found["predictions"] == [pytest.approx(10 * estimator.predict_one({"a": 7}), rel=1e-12)]
        assert found["probabilities"] is None
        assert found["doubts"] == http.get("/v1/models/late/weights").json()["doubts"]
        assert {*found["doubts"]} <= {*http.get("/v1/models/late").json()["doubts"]}
        assert abs(found["predictions"][0] - 70) < 20
        slope, at_0, *_ = (row["value"] for row in http.get("/v1/models/late/weights").json()["weights"])
        assert found["predictions"] == [pytest.approx(7 * slope + at_0, rel=1e-9)]


UNFIT = [
    ({"origin": "EWR"}, "missing, in column 'dep_delay'"),
    ({"dep_delay": SECRET + "x", "origin": "EWR"}, "not_a_number, in column 'dep_delay'"),
    ({"dep_delay": 1, "origin": SECRET}, "unknown_category, in column 'origin'"),
    ({"dep_delay": {"a": SECRET}, "origin": "EWR"}, "nested, in column 'dep_delay'"),
]


def test_a_record_that_does_not_fit_is_named_by_its_index(tmp_path: Path) -> None:
    good = {"dep_delay": "3", "origin": "EWR"}
    with client(job(tmp_path, source=FILE)) as http:
        for record, reason in UNFIT:
            answer = http.post("/v1/models/late/predict", json={"records": [good, record]})
            assert answer.status_code == 422
            assert answer.headers["content-type"] == "application/problem+json"
            document = answer.json()
            assert (document["status"], document["index"], document["title"]) == (422, 1, HTTPStatus(422).phrase)
            assert document["detail"].endswith(reason)
            assert SECRET not in answer.text


FAULTS = [
    ("/v1/models/other/predict", b"{}", "application/json", 404),
    ("/v1/nothing", b"{}", "application/json", 404),
    ("/v1/models", b"{}", "application/json", 405),
    ("/v1/models/late/predict", b'{"records": [', "application/json", 400),
    ("/v1/models/late/predict", b'{"records": [NaN], "more": 1}', "application/json", 400),
    ("/v1/models/late/predict", b'{"records": []}', "text/plain", 415),
    ("/v1/models/late/predict", b'{"records": [%s{}]}' % (b"{}," * 10_000), "application/json", 413),
    ("/v1/models/late/predict", b" " * (8 << 20) + b"{}", "application/json", 413),
]


@pytest.mark.slow
def test_every_error_is_a_problem_document(tmp_path: Path) -> None:
    with client(job(tmp_path, source=FILE)) as http:
        for path, body, kind, status in FAULTS:
            answer = http.post(path, content=body, headers={"Content-Type": kind})
            assert answer.status_code == status
            assert answer.headers["content-type"] == "application/problem+json"
            assert answer.json().keys() >= {"type", "title", "status", "detail"}


def test_the_shards_of_workers_are_one_model(tmp_path: Path) -> None:
    config = job(tmp_path, source={"type": "kafka", "topic": "flights", "brokers": "localhost:1"}, cap=None)
    shards = [Shard("flights", 0), Shard("flights", 1)]
    with Store(config.store_path, config.job, config.fingerprint(), config=config.text(), shared=True) as store:
        store.claim(shards)
        for k, shard in enumerate(shards):
            estimator: Any = config.build_estimator()
            X = np.random.default_rng(k).uniform(-1, 1, (200, 3))
            estimator.learn_encoded(X, (X[:, 0] > 0).astype(float))
            store.commit_parts({shard: Part(estimator.state_dict(), {"offset": 200}, Counts(200))})
        merged = combined(Store.snapshots(config.store_path))
    with client(config) as http:
        assert http.get("/v1/models/late").json()["learned"] == 400
        weights = http.get("/v1/models/late/weights").json()["weights"]
        expected: Any = restore(merged).estimator.weights
        assert {w["name"]: w["value"] for w in weights} == pytest.approx(expected)


def test_a_store_of_another_configuration_is_not_served(tmp_path: Path) -> None:
    config = job(tmp_path, source=FILE)
    learned_elsewhere(config, 100)
    other = job(tmp_path, source=FILE, model={"estimator": "LDPSGDClassifier", "budget": "eps=1"})
    with client(other) as http:
        assert http.get("/v1/models/late").json()["version"] == 0
        answer = http.get("/readyz")
        assert (answer.status_code, "another configuration" in answer.json()["detail"]) == (503, True)


def test_what_is_committed_meanwhile_is_shown(tmp_path: Path) -> None:
    config = job(tmp_path, source=FILE)
    with client(config) as http:
        learned_elsewhere(config, 100, commits=2)
        while http.get("/v1/models/late").json()["version"] < 2:  # it looks twice a second
            time.sleep(0.02)
        assert http.get("/readyz").status_code == 200


def test_private_validation_is_shown_beside_the_model(tmp_path: Path) -> None:
    plain, config = job(tmp_path, "plain", source=FILE), job(tmp_path, source=FILE, validation={"budget": "eps=1"})
    learned_elsewhere(plain, 50)
    estimator = learned_elsewhere(config, 2000)
    with client(plain, config) as http:
        assert "validation" not in http.get("/v1/models/plain").json()
        found = http.get("/v1/models/late").json()
        ModelAnswer.model_validate(found)
        assert found["validation"]["total"]["answers"] == 2000
        assert found["validation"]["sentence"] == estimator.quality.sentence()
        assert found["guarantee"]["epsilon"] == 2.0
        assert "beside its gradient" in found["statement"]


def test_a_body_may_be_packed_by_gzip(tmp_path: Path) -> None:
    packed = gzip.compress(b'{"records": []}')
    with client(job(tmp_path, source=FILE)) as http:
        for body, encoding, status in (
            (packed, "gzip", 200),
            (b'{"records": []}', "gzip", 400),
            (packed[:-4], "gzip", 400),
            (packed + packed, "gzip", 400),
            (gzip.compress(b" " * (9 << 20)), "gzip", 413),
            (b"x", "br", 415),
        ):
            headers = {"Content-Type": "application/json", "Content-Encoding": encoding}
            assert http.post("/v1/models/late/predict", content=body, headers=headers).status_code == status
