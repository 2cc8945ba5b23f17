"""Reasons to doubt a model at the end of a run."""

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import polars as pl
import pytest
from scipy.special import expit

from streamdp import (
    L2Ball,
    LDPASGDClassifier,
    LDPASGDRegressor,
    PanPrivateClassifier,
    PanPrivateRegressor,
    ShuffleClassifier,
    ShuffleRegressor,
    UserLevelLDPClassifier,
    UserLevelLDPRegressor,
    WindowedClassifier,
    WindowedRegressor,
)
from streamdp.config.prospect import planned
from streamdp.errors import DoubtWarning
from streamdp.estimators.html import page
from streamdp.reading.doubts import of_model, too_few
from streamdp.serving.doubts import doubts
from streamdp.serving.publish import Weight, unsettled, weights
from streamdp.sklearn import PrivateRegressor
from streamdp.store.snapshot import Counts


def test_a_share_of_dropped_rows_above_a_twentieth_is_told() -> None:
    model = LDPASGDClassifier(features=["a"])
    assert doubts(model, Counts(0, 0, 0)) == []
    assert doubts(model, Counts(0, 500, 0))[0].startswith(
        "nothing was learned: all 500 records that fit the schema were refused"
    )
    assert len(doubts(model, Counts(0, 500, 0))) == 1  # more records do not help
    few = LDPASGDRegressor(features={"a": (0, 1)}, target=(0, 1), seed=1)
    few.learn_one({"a": 0.5}, 0.5)
    assert any("too few" in doubt for doubt in doubts(few, Counts(1, 0, 0)))
    assert not any("refused" in doubt for doubt in doubts(model, Counts(1, 500, 0)))
    assert "6 of 100 rows (6 %) were dropped" in doubts(LDPASGDClassifier(features=["a"]), Counts(85, 9, 6))[0]
    assert not any("dropped" in doubt for doubt in doubts(model, Counts(85, 100, 6)))  # refused rows fit the schema
    assert "nothing was learned" in doubts(model, Counts(0, 0, 6))[0]
    assert not any("dropped" in doubt for doubt in doubts(model, Counts(95, 0, 5)))


def test_theta_on_its_border_and_weights_without_an_interval_are_told() -> None:
    X = np.full((4000, 1), 2.0)
    pan = PanPrivateClassifier(features=["a"], mechanism="none", method="ac-sa", domain=L2Ball(0.01))
    pan.learn_encoded(X, np.ones(4000))
    pan.close_batch()
    assert pan.on_border
    assert doubts(pan, Counts(4000, 0, 0)) == [
        "the coefficients lie on the border of their domain: a larger domain may hold better ones"
    ]
    model = LDPASGDClassifier(features=["a"])
    model.learn_encoded(X[:3], np.ones(3))
    assert "2 of 2 weights have no interval yet" in doubts(model, Counts(3, 0, 0))[-1]


def test_bounds_far_wider_than_the_values_are_told() -> None:
    rng = np.random.default_rng(1)
    X, y = rng.normal(size=(800, 1)), rng.normal(size=800)
    for bounds, told in (((-500.0, 500.0), True), ((-4.0, 4.0), False)):
        model = UserLevelLDPRegressor(features=["a"], target=bounds, items_per_user=1, budget="eps=4", seed=1)
        assert model.looseness is None
        assert model.near_bound is None
        model.learn_encoded(X, y)
        assert (model.looseness > 50) == told
        assert any("bounds of the target" in doubt for doubt in doubts(model, Counts(800, 0, 0))) == told


@pytest.mark.parametrize(("people", "told"), [(2000, True), (30_000, False)])
@pytest.mark.filterwarnings("ignore::streamdp.learners.user_windows.WindowWarning")
def test_windows_that_learn_no_unit_of_the_target_say_which_bounds_they_stand(people: int, told: bool) -> None:
    """With bounds 100 times as wide, a quantile of 2,000 people was 5 to 18 times worse than a constant, untold."""
    rng = np.random.default_rng(1)
    X = rng.normal(size=(people, 1))
    model = WindowedRegressor(
        "quantile", "eps=1,delta=1e-6", features={"a": (-4, 4)}, target=(-200, 200), window=people, seed=1
    )
    model.learn_arrays(X, X[:, 0] + rng.normal(size=people))
    said = [doubt for doubt in doubts(model, Counts(people)) if "nothing that was released shows how wide" in doubt]
    assert len(said) == told
    assert not told or "more than about 15 times as wide" in said[0]
    newton = WindowedRegressor("huber", features={"a": (-4, 4)}, target=(-200, 200), window=people, seed=1)
    newton.learn_arrays(X, X[:, 0])
    assert newton.learner.tolerated is None  # its looseness is learned


@pytest.mark.slow
def test_targets_beyond_a_bound_are_not_said_to_need_narrower_bounds() -> None:
    """They are all clipped to the same value, so their spread says nothing about the width of the bounds."""
    rng = np.random.default_rng(2)
    X, y = rng.uniform(0, 1, (4000, 1)), rng.normal(5000, 900, 4000)
    wide = (-1e6, 1e6), "50 times as wide as the spread"
    for bounds, said in (((0.0, 40.0), "near its bound 40, as far as"), wide):
        given: Any = {"features": {"a": (0, 1)}, "target": bounds, "budget": "eps=4", "seed": 1}
        for model in (LDPASGDRegressor(**given), UserLevelLDPRegressor(items_per_user=1, **given)):
            model.learn_encoded(X, y)
            assert any(said in doubt for doubt in doubts(model, Counts(4000, 0, 0)))


@pytest.mark.parametrize("estimator", [PanPrivateRegressor, ShuffleRegressor])
@pytest.mark.slow
def test_a_bound_is_near_only_if_the_learned_centre_is(estimator: type[PanPrivateRegressor]) -> None:
    """Also a bound of 0, of which Newton's steps said so for every target."""
    rng = np.random.default_rng(3)
    X, noise = rng.uniform(-1, 1, (20_000, 1)), rng.normal(0, 4, 20_000)
    for centre, near in ((500, None), (999.5, 1000.0)):
        model = estimator(features={"a": (-1, 1)}, target=(0.0, 1000.0), budget="eps=4,delta=1e-6", seed=1)
        model.learn_encoded(X, centre + noise)
        model.close_batch()
        assert model.near_bound == near
        said = any("near its bound 1000, as far as" in doubt for doubt in doubts(model, Counts(20_000, 0, 0)))
        assert said is (near is not None)


def test_columns_with_bounds_far_too_wide_have_no_interval_and_are_told() -> None:
    """They had narrow intervals around 0, because a scale that is too large made gradients seem to tell much."""
    rng = np.random.default_rng(6)
    near, amount = rng.uniform(-1, 1, (2, 20_000))
    y = near + amount + rng.normal(0, 0.3, 20_000)
    for width, told in ((3.0, False), (10_000.0, True)):
        model = LDPASGDRegressor(
            features={"near": (-1, 1), "amount": (-width, width)}, target=(-4, 4), budget="eps=8", seed=1
        )
        assert model.unresolved == []
        model.learn_many(pl.DataFrame({"near": near, "amount": amount}), pl.Series(y))
        assert model.unresolved == ["amount"] * told
        shown = {w.name: w for w in weights(model)}
        assert (shown["amount"].settled, shown["near"].settled) == (not told, True)
        said = doubts(model, Counts(20_000, 0, 0))
        assert [doubt.startswith("the declared bounds of 'amount' may be") for doubt in said] == [True] * told


def test_a_rare_event_that_bits_find_has_an_interval_and_a_constant_column_has_none() -> None:
    rng = np.random.default_rng(7)
    X = (rng.uniform(size=(30_000, 2)) < [0.1, 0.0]).astype(float)
    y = rng.integers(0, 3, 30_000).astype(float)
    model = LDPASGDClassifier(
        "softmax", features={"rare": (0, 1), "never": (0, 1)}, classes=[0, 1, 2], budget="eps=8", seed=1
    )
    model.learn_many(pl.DataFrame(X, schema=["rare", "never"]), pl.Series(y.astype(int)))
    assert model.unresolved == ["never"]
    assert np.isnan(model.interval()[:, 0]).reshape(3, 3)[:, 1].all()
    assert {w.name for w in weights(model) if w.settled is False} == {"never"}


def test_a_target_without_bounds_is_told_if_it_may_be_far_from_a_scale_of_one() -> None:
    rng = np.random.default_rng(4)
    X, near = rng.uniform(0, 1, (5000, 1)), rng.normal(0, 1, 5000)
    given: Any = {"features": {"a": (0, 1)}, "budget": "eps=4", "seed": 1}
    for model, y, told in (
        (LDPASGDRegressor(**given), near + 500, True),
        (LDPASGDRegressor(**given), near, False),
        (LDPASGDRegressor(target=(0, 1000), **given), near + 500, False),
        (UserLevelLDPRegressor(items_per_user=1, **given), near + 500, True),
        (PanPrivateRegressor(**given), near + 500, True),
        (PanPrivateRegressor(**given), near, False),
        (ShuffleRegressor(**given), 500 * near, True),
        (WindowedRegressor(items_per_user=1, **given), near + 500, False),
        (WindowedRegressor(items_per_user=1, window=200, **given), near[:200] + 20_000, True),
        (LDPASGDClassifier(**given), near > 0, False),
    ):
        model.learn_encoded(X[: len(y)], y)
        assert any("no declared bounds" in doubt for doubt in doubts(model, Counts(5000, 0, 0))) == told


def test_a_target_that_is_mostly_one_value_is_told_to_suit_a_constant() -> None:
    rng = np.random.default_rng(3)
    X = rng.uniform(0, 1, (4000, 1))
    y = np.where(rng.uniform(size=4000) < 0.08, rng.lognormal(7, 1, 4000), 0)
    model = LDPASGDRegressor(features={"a": (0, 1)}, target=(0, 100_000), budget="eps=4", seed=1)
    model.learn_encoded(X, y)
    assert np.abs(y - model.predict_many(X)).mean() > np.abs(y - np.median(y)).mean()
    assert any("a constant may be better" in doubt for doubt in doubts(model, Counts(4000, 0, 0)))


def test_noise_that_hides_many_columns_is_told() -> None:
    rng, names = np.random.default_rng(1), [f"x{j}" for j in range(60)]
    X, y = rng.normal(size=(30_000, 60)), rng.integers(0, 2, 30_000).astype(float)
    model = LDPASGDClassifier(features=names, budget="eps=1", seed=1)
    assert model.least_records is None
    model.learn_encoded(X, y)
    assert model.least_records == pytest.approx(93_570, rel=0.01)
    assert any("takes at least about 94,000 records" in doubt for doubt in doubts(model, Counts(30_000, 0, 0)))
    user = UserLevelLDPClassifier(features=names, budget="eps=1", items_per_user=2, seed=1)
    user.learn_encoded(X[:3000], y[:3000], subjects=[i // 2 for i in range(3000)])
    assert user.least_records == pytest.approx(93_570 / 2, rel=0.01)  # averages are cut to half the bound
    assert any("1,500 reports are too few" in doubt for doubt in doubts(user, Counts(3000, 0, 0)))
    few = LDPASGDClassifier(features=names[:5], budget="eps=1", seed=1)
    few.learn_encoded(X[:3000, :5], y[:3000])
    assert few.least_records == pytest.approx(852, rel=0.01)
    assert not any("constant" in doubt for doubt in doubts(few, Counts(3000, 0, 0)))
    assert "constant" not in few.statement()
    few = few.clone()
    few.learn_encoded(X[:1500, :5], y[:1500])
    assert any("from about 2,600 records on that is likely" in doubt for doubt in doubts(few, Counts(1500, 0, 0)))
    assert "About the use of the model, not about privacy:\n  - 1,500 records are few" in few.statement()


@pytest.mark.parametrize(("rare", "told"), [(1 / 3, False), (0.015, True)])
def test_classes_of_which_one_has_nearly_all_records_need_more_records(rare: float, told: bool) -> None:
    """With 97 % of one class, 9 of 12 models of 30,000 records were worse than its share, and nothing said so."""
    rng = np.random.default_rng(1)
    model = LDPASGDClassifier(features={"a": (-1, 1), "b": (-1, 1)}, classes=["a", "b", "c"], budget="eps=4", seed=1)
    y = rng.choice(3, 20_000, p=[1 - 2 * rare, rare, rare])
    model.learn_encoded(rng.uniform(-1, 1, (20_000, 2)), y.astype(float))
    assert (too_few(model) is not None) == told


def test_records_that_answered_about_scale_count_once() -> None:
    """Three times I_0 are three times as many gradients; the bits are not needed three times."""
    rng = np.random.default_rng(1)
    model = LDPASGDRegressor(features={"a": (-1, 1)}, target=(-1, 1), budget="eps=1", seed=1)
    model.learn_encoded(rng.uniform(-1, 1, (900, 1)), rng.uniform(-1, 1, 900))
    assert 0 < model.n_asked < 900
    enough = model.n_asked + 3 * (model.least_records - model.n_asked)
    assert f"from about {float(f'{enough:.1e}'):,.0f} records on" in str(too_few(model))


def test_records_that_all_answered_about_scale_are_too_few() -> None:
    model = LDPASGDRegressor(features={"a": (0, 1)}, target=(0, 9), budget="eps=1", seed=1)
    model.learn_encoded(np.zeros((100, 1)), np.ones(100))
    assert model.n_asked == 100
    assert "100 records are too few" in doubts(model, Counts(100, 0, 0))[0]


def test_batches_whose_noise_hides_the_columns_are_told() -> None:
    rng = np.random.default_rng(2)
    X, y = rng.normal(size=(60_000, 20)), rng.integers(0, 2, 60_000).astype(float)
    model = PanPrivateClassifier(features=[f"x{j}" for j in range(20)], budget="eps=1,delta=1e-6", seed=1)
    assert model.least_records is None
    for begin, end, told in ((0, 2000, "are too few"), (2000, 60_000, "noise hides")):
        model.learn_encoded(X[begin:end], y[begin:end])
        (found,) = (doubt for doubt in doubts(model, Counts(end, 0, 0)) if "constant" in doubt)
        assert told in found


def test_the_squared_loss_of_reports_takes_more_of_them() -> None:
    """Before, such a model of noise had no doubt, and a third more of squared errors than the mean."""
    rng = np.random.default_rng(1)
    X, y = rng.uniform(-1.0, 1.0, (8000, 4)), rng.normal(0.0, 5.0, 8000)
    for loss, told in (("huber", False), ("squared", True)):
        model = LDPASGDRegressor(loss, "eps=1", features=list("abcd"), target=(-60, 60), seed=1)
        model.learn_encoded(X, y)
        assert any("may or may not predict better" in doubt for doubt in model.doubts) == told
    assert planned("squared", 4, "eps=1", 8000).beats_constant == "possible"


@pytest.mark.parametrize("loss", ["squared", "poisson"])
def test_a_scale_that_is_no_spread_of_errors_is_no_weight_that_waits_for_an_interval(loss: str) -> None:
    """Before, it had no interval with any number of records, and each such model was doubted because of it."""
    rng = np.random.default_rng(1)
    X = rng.uniform(-1.0, 1.0, (40_000, 1))
    model = PanPrivateRegressor(loss, "eps=8,delta=1e-6", features={"a": (-1, 1)}, target=(0, 10), seed=1)
    model.learn_arrays(X, rng.poisson(np.exp(0.5 * X[:, 0])).astype(float))
    assert [(one.name, one.settled) for one in weights(model)] == [("a", True), ("(intercept)", True)]
    assert doubts(model, Counts(40_000, 0, 0)) == []


@pytest.mark.parametrize(
    ("kind", "budget", "n"), [(LDPASGDRegressor, "eps=4", 3000), (LDPASGDClassifier, "eps=1", 4200)]
)
def test_no_weight_waits_for_records_that_were_learned(kind: Any, budget: str, n: int) -> None:
    """Before, the number left out that the first segments are not used, or that all limits were withheld."""
    rng = np.random.default_rng(0)
    X = rng.uniform(size=(n, 2))
    model = kind(features={"a": (0, 1), "b": (0, 1)}, budget=budget, seed=0)
    model.learn_arrays(X, (X @ [1.0, -1.0] + rng.normal(0, 0.3, n) > 0).astype(float))
    waiting = [row for row in weights(model) if row.settled is False]
    assert waiting
    assert all(row.settles_at is None or row.settles_at > n for row in waiting)


def test_weights_without_an_interval_say_how_many_records_settle_them() -> None:
    X = np.random.default_rng(0).normal(size=(3000, 2))
    model = LDPASGDRegressor(features=["a", "b"], budget="eps=1", seed=1)
    model.learn_encoded(X, X @ [1.0, 1.0])
    rows = weights(model)
    waiting = [row.settles_at for row in rows if row.settled is False]
    assert waiting
    assert min(waiting) > 3000  # not fewer than it has
    needed = unsettled(rows)
    assert needed is not None
    assert f"{len(waiting)} of 4 weights have no interval yet: about {min(waiting):,}" in needed
    assert [row.settles_at for row in rows if row.settled] == [None] * (4 - len(waiting))
    few = unsettled([Weight("a", 1.0, settled=False), Weight("b", 1.0, 0.5, 1.5, settled=True)])
    assert few == "1 of 2 weights have no interval yet: more records settle them"
    assert unsettled([Weight("a", 1.0)]) is unsettled([Weight("b", 1.0, 0.5, 1.5, settled=True)]) is None


@pytest.mark.parametrize("kind", [PanPrivateClassifier, ShuffleClassifier])
def test_planned_steps_say_that_their_noise_hides_the_columns(kind: Any) -> None:
    """Three classes by planned steps had no doubt after any number of records."""
    X, y = np.random.default_rng(2).normal(size=(900, 3)), np.arange(900) % 3.0
    model = kind(features=["a", "b", "c"], classes=[0, 1, 2], loss="softmax", method="ac-sa", budget="eps=1,delta=1e-6")
    model.learn_encoded(X, y)
    model.close_batch()
    assert 900 < model.least_records < 20_000
    assert "close to a constant or worse" in model.doubts[0]
    assert model.doubts[0] in model.statement()
    assert model.doubts[0] in page(model)


def test_a_fit_of_scikit_learn_warns_of_a_model_that_may_be_worse_than_a_constant() -> None:
    X = np.random.default_rng(1).uniform(-1, 1, (700, 3))
    with pytest.warns(DoubtWarning, match="noise hides"):
        model = PrivateRegressor(bounds=(-1, 1), target=(-2, 2)).fit(X, np.sin(1000 * X[:, 0]))
    assert model.model_.doubts


KINDS = [PanPrivateClassifier, ShuffleClassifier, WindowedClassifier]


def normal_model(kind: Any, records: int, share: float, slopes: list[float], seed: int = 1) -> Any:
    """A model of three normal columns and two classes, of which one has about this share at the origin."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(records, len(slopes)))
    y = (rng.random(records) < expit(X @ slopes + math.log(share / (1 - share)))).astype(float)
    more = {"window": records, "items_per_user": 1} if kind is WindowedClassifier else {}
    names = {f"x{j}": (-4, 4) for j in range(len(slopes))}
    model = kind(features=names, budget="eps=1,delta=1e-6", seed=seed, **more)
    model.learn_encoded(X / 4, y)
    model.close_batch()
    return model


@pytest.mark.parametrize("kind", KINDS)
def test_a_rare_class_needs_more_records(kind: Any) -> None:
    """At 1.7 % positive and eps 1, batches of 30,000 records had up to 1.8 times the loss of a constant, undoubted."""
    usual, rare = (normal_model(kind, 8000, share, [0.7, -0.7, 0.5]) for share in (0.5, 0.02))
    assert rare.least_records > 2 * usual.least_records
    assert rare.learner.determined < usual.learner.determined - 0.05


def test_a_rare_class_needs_the_square_of_that_from_single_reports() -> None:
    """At .8 % positive and eps 4, 100,000 reports had up to 1.17 times the loss of a constant, undoubted."""
    found = []
    for share in (0.5, 0.02):
        rng = np.random.default_rng(0)
        model = LDPASGDClassifier(features={"a": (-1, 1)}, budget="eps=4", seed=0)
        model.learn_arrays(rng.uniform(-1, 1, (20_000, 1)), (rng.random(20_000) < share).astype(float))
        found.append(model.least_records - model.n_asked)
    assert found[1] / found[0] > 50  # the share is known to a half from bits


@pytest.mark.parametrize("kind", KINDS)
def test_a_model_is_doubted_if_noise_hides_what_columns_say_and_not_if_records_are_few(kind: Any) -> None:
    """Of 232 models of ordinary tables 140 were doubted that had most of what there is to gain."""
    known, little, hidden = (
        normal_model(kind, records, 0.5, slopes)
        for records, slopes in ((6000, [0.7, -0.7, 0.5]), (6000, [0.0] * 12), (8000, [0.03] * 20))
    )
    assert known.doubts == []
    assert known.learner.determined > 0.9
    for model in (little, hidden):
        (said,) = model.doubts
        assert "constant" in said


@pytest.mark.parametrize("kind", KINDS)
def test_columns_that_are_the_same_are_no_reason_to_doubt_a_model(kind: Any) -> None:
    """What noise hides of their differences changes no prediction; it was 3/4 of the slopes, with any budget."""
    rng = np.random.default_rng(2)
    X = np.repeat(rng.normal(size=(8000, 3)), 3, axis=1)
    y = (rng.random(8000) < expit(X[:, ::3] @ [1.0, -0.8, 0.5])).astype(float)
    more = {"window": 8000, "items_per_user": 1} if kind is WindowedClassifier else {}
    model = kind(features={f"x{j}": (-4, 4) for j in range(9)}, budget="eps=4,delta=1e-6", seed=2, **more)
    model.learn_encoded(X / 4, y)
    model.close_batch()
    assert model.doubts == []


def test_the_end_of_a_run_has_no_doubts_that_its_verdict_settles_and_says_the_verdict_once() -> None:
    """`run` and `status` doubted the bounds of models that `weights` and `predict` of the same store did not."""
    rng = np.random.default_rng(3)
    X = rng.uniform(-1, 1, (8000, 2))
    model = WindowedRegressor(
        features={"a": (-1, 1), "b": (-1, 1)},
        target=(-100, 100),
        budget="eps=4,delta=1e-6",
        window=8000,
        items_per_user=1,
        validation={"share": 0.1},
        seed=3,
    )
    model.learn_encoded(X, 2 * X[:, 0] + rng.normal(size=8000))
    model.close_batch()
    assert model.looseness > 16
    assert model.quality.verdict == "better"
    assert not any("bounds" in doubt for doubt in doubts(model, Counts(8000)))
    few = PanPrivateClassifier(features=["a"], budget="eps=1,delta=1e-6", validation={"share": 0.1}, seed=1)
    few.learn_encoded(X[:, :1], np.zeros(8000))
    assert few.quality.sentence() not in doubts(few, Counts(8000))
    assert few.quality.sentence() in doubts(few, Counts(8000), few.quality)


def test_a_verdict_of_validation_says_more_than_the_number_of_records() -> None:
    model = normal_model(PanPrivateClassifier, 2500, 0.5, [0.05] * 60)
    for verdict, doubted in (("better", 0), ("worse", 2)):
        quality = SimpleNamespace(verdict=verdict, sentence=lambda: "the model is worse")
        assert len(of_model(model, quality)) == doubted
