"""Groups with effects of their own (`per`), in every way in, and pooled with what all share."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from typer.testing import CliRunner

import streamdp
from streamdp import (
    LDPASGDRegressor,
    PanPrivateClassifier,
    PanPrivateRegressor,
    ShuffleRegressor,
    UserLevelLDPRegressor,
    WindowedRegressor,
)
from streamdp.cli.main import app
from streamdp.data.schema import Schema
from streamdp.errors import NotAvailableError, SchemaError
from streamdp.optim.shrinkage import shrunk
from streamdp.serving.exported import predict

PLAIN: dict[str, Any] = {"x": (0, 1), "region": {"categories": ["n", "s", "w"], "per": True}}
OPEN: dict[str, Any] = PLAIN | {"region": PLAIN["region"] | {"other": True, "missing": "category"}}
SLOPES = {"n": 1.0, "s": 5.0, "w": -3.0}


def frame(n: int, names: str = "nsw") -> tuple[pl.DataFrame, np.ndarray]:
    """Records whose slope is that of their region, and 1 elsewhere."""
    rng = np.random.default_rng(0)
    X = pl.DataFrame({"x": rng.uniform(0, 1, n), "region": rng.choice(list(names), n)})
    slopes = np.array([SLOPES.get(name, 1.0) for name in X["region"]])
    return X, 5 + slopes * (X["x"].to_numpy() - 0.5) + rng.normal(0, 0.1, n)


def test_each_group_has_columns_of_its_own_and_others_have_none() -> None:
    schema = Schema(OPEN | {"day": {"cyclic": 7}, "z": {"text": 2}}, "y")
    own = [f"region={g}" for g in "nsw"]
    products = [f"region={g} x {of}" for of in ("x", "sin(day)", "cos(day)") for g in "nsw"]
    assert set(schema.feature_names) >= {*own, *products}
    row = schema.encode_one({"x": 0.75, "region": "n", "day": 0, "z": "ab"})[0]
    assert [row[name] for name in own] == [1, 0, 0]
    assert [row[f"region={g} x x"] for g in "nsw"] == [0.5, 0, 0]
    for other in ("q", None):
        row = schema.encode_one({"x": 0.75, "region": other, "day": 0, "z": "ab"})[0]
        assert not any(row[name] for name in own + products)


def test_a_row_of_a_group_is_at_most_sqrt2_longer() -> None:
    """For any number of groups; the constant 1 counts."""
    rng = np.random.default_rng(1)
    for count in (2, 50):
        numbers, names = {f"x{j}": (-1, 1) for j in range(6)}, [f"g{k}" for k in range(count)]
        frame = pl.DataFrame({n: rng.uniform(-1, 1, 200) for n in numbers} | {"g": rng.choice(names, 200)})
        rows = Schema(numbers | {"g": {"categories": names, "per": True}}, "y").encode_features(frame)
        plain = 1 + np.sum(frame.select(list(numbers)).to_numpy() ** 2, axis=1)
        np.testing.assert_allclose(1 + np.sum(rows**2, axis=1), 2 * plain)


@pytest.mark.parametrize("kind", [PanPrivateRegressor, ShuffleRegressor])
def test_what_groups_have_of_their_own_keeps_its_units_in_batches(kind: Any) -> None:
    """In units of the root of their shares, levels of many groups were long: models were worse than a constant."""
    rng, names = np.random.default_rng(1), [f"g{k:02}" for k in range(20)]
    X, slopes = pl.DataFrame({"x": rng.uniform(-1, 1, 20_000), "g": rng.choice(names, 20_000)}), rng.normal(1, 0.5, 20)
    y = slopes[X["g"].str.slice(1).cast(int).to_numpy()] * X["x"].to_numpy() + rng.normal(0, 0.3, 20_000)
    declared = {"x": (-1, 1), "g": {"categories": names, "per": True}}
    model = kind(features=declared, target=(-5, 5), budget="eps=1,delta=1e-6", seed=1)
    model.learn_many(X, y)
    model.close_batch()
    learner = model.learner
    assert np.array_equal(learner.batch_steps.state.units[1, list(learner.columns.own)], np.ones(40))
    assert np.abs(model.predict_many(X) - y).mean() < 0.6 * np.abs(y).mean()  # that of the constant


@pytest.mark.parametrize(
    ("declared", "message"),
    [
        ({"bounds": (0, 1), "per": True}, "needs categories"),
        ({"categories": ["a", "b"], "per": []}, "true, or to name"),
        ({"categories": ["a", "b"], "per": "x"}, "true, or to name"),
        ({"categories": ["a", "b"], "per": ["x", "x"]}, "true, or to name"),
        ({"categories": ["a", "b"], "per": ["z"]}, "other features"),
        ({"categories": ["a", "b"], "per": ["g"]}, "other features"),
    ],
    ids=str,
)
def test_a_declaration_that_contradicts_itself_is_refused(declared: Any, message: str) -> None:
    with pytest.raises(SchemaError, match=f"'g': .*{message}"):
        Schema({"g": declared, "x": (0, 1)}, "y")


def test_a_model_of_groups_is_saved_and_has_no_intervals(tmp_path: Path) -> None:
    X, y = frame(100)
    model = LDPASGDRegressor(features=OPEN, target=(0, 10), budget="eps=4")
    model.learn_many(X, y)
    model.save(tmp_path / "m")
    np.testing.assert_array_equal(streamdp.load(tmp_path / "m").theta, model.theta)
    with pytest.raises(NotAvailableError, match="per"):
        model.interval()


@pytest.mark.parametrize(
    ("kind", "more"),
    [
        (LDPASGDRegressor, {"budget": "eps=8"}),
        (PanPrivateRegressor, {"budget": "eps=8,delta=1e-6"}),
        (ShuffleRegressor, {"budget": "eps=8,delta=1e-6"}),
        (WindowedRegressor, {"budget": "eps=8,delta=1e-6", "window": 20_000}),
    ],
    ids=["local", "pan", "shuffle", "window"],
)
def test_groups_differ_and_an_unknown_group_has_the_shared_model(kind: Any, more: dict[str, Any]) -> None:
    X, y = frame(20_000, "nswq")
    model = kind(features=OPEN, target=(0, 10), seed=1, **more)
    model.learn_many(X, y)
    model.close_batch()
    for group, slope in {**SLOPES, "q": 1.0, None: 1.0}.items():
        at = [model.predict_one({"x": x, "region": group}) for x in (0.0, 1.0)]
        assert at[1] - at[0] == pytest.approx(slope, abs=1)
    assert model.weights["x"] == pytest.approx(1, abs=1)
    assert ("not shrunk" in model.statement()) is (kind is LDPASGDRegressor)


@pytest.mark.parametrize("kind", [UserLevelLDPRegressor, WindowedRegressor])
def test_groups_of_people_with_several_records_differ(kind: Any) -> None:
    X, y = frame(8_000)
    window = {"window": 8_000} if kind is WindowedRegressor else {}
    model = kind(features=PLAIN, target=(0, 10), seed=1, items_per_user=4, budget="eps=8,delta=1e-6", **window)
    rows = model.encoder.encode_features(X)
    model.learn_encoded(rows, y, subjects=[i // 4 for i in range(len(y))])
    model.close_batch()
    assert model.n_seen == 8_000
    for group, slope in SLOPES.items():
        at = [model.predict_one({"x": x, "region": group}) for x in (0.0, 1.0)]
        assert at[1] - at[0] == pytest.approx(slope, abs=1.5)


def test_the_groups_of_a_classifier_differ() -> None:
    X, y = frame(20_000)
    model = PanPrivateClassifier(features=PLAIN, seed=1, budget="eps=8,delta=1e-6")
    model.learn_many(X, y > 5)
    chances = {g: model.predict_proba_one({"x": 0.9, "region": g})[True] for g in "sw"}
    assert chances["s"] > 0.75 > 0.25 > chances["w"]


def test_few_records_of_groups_give_about_the_shared_estimate() -> None:
    """A shared slope of 1 with little noise; those of 20 groups are noise alone, or clear."""
    rng = np.random.default_rng(3)
    own, noise = range(1, 21), 0.5
    covariance = np.diag([1e-4, *[noise**2] * 20, 1e-4])
    alike = np.array([1.0, *rng.normal(0, noise, 20), 2.0])
    both, apart = shrunk(alike, covariance)[0], shrunk(alike, covariance, own)[0]
    assert np.abs(apart[1:-1]).mean() < np.abs(both[1:-1]).mean() / 2  # the shared slope says nothing about groups
    np.testing.assert_allclose(apart[[0, -1]], [1, 2], atol=0.01)
    clear = np.array([1.0, *rng.normal(0, 4 * noise, 20), 2.0])
    np.testing.assert_allclose(shrunk(clear, covariance, own)[0][1:-1], clear[1:-1], rtol=0.15)


def test_a_job_learns_predicts_and_exports_groups(tmp_path: Path) -> None:
    X, y = frame(3_000, "nswq")
    X.with_columns(pl.Series("y", y)).write_csv(tmp_path / "a.csv")
    job = {
        "job": "j",
        "source": {"type": "csv", "path": str(tmp_path / "a.csv")},
        "schema": {"features": json.loads(json.dumps(OPEN)), "target": {"column": "y", "bounds": [0, 10]}},
        "model": {"trust": "nobody", "budget": "eps=8", "seed": 1},
        "store": str(tmp_path / "a.db"),
    }
    (tmp_path / "job.yaml").write_text(json.dumps(job))

    def run(*words: str, rows: str | None = None) -> str:
        ran = CliRunner().invoke(app, list(words), input=rows)
        assert ran.exit_code == 0, ran.output
        return ran.stdout

    run("check", str(tmp_path / "job.yaml"))
    run("run", str(tmp_path / "job.yaml"))
    store = str(tmp_path / "a.db")
    weights = {row["name"]: row for row in json.loads(run("weights", store, "--json"))}
    assert weights["region=s x x"]["value"] > 0 > weights["region=w x x"]["value"]
    assert "beside" not in run("weights", store)
    south, west, other, missing = (
        float(line.split(",")[-1])
        for line in run("predict", store, rows="x,region\n1,s\n1,w\n1,zz\n1,\n").splitlines()[1:]
    )
    assert south > other > west
    assert missing == other
    for shown in ("statement", "status"):
        assert run(shown, store)
    document = json.loads(run("export", store, "--to", "json"))
    assert predict({"x": 1, "region": "s"}, document) == pytest.approx(south, rel=1e-6)
    assert predict({"x": 1, "region": "zz"}, document) == pytest.approx(other, rel=1e-6)
