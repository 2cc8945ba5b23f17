"""Nothing learned is nothing predicted: an open batch or window counts as taken, and not as learned."""

import warnings
from typing import Any

import numpy as np
import pandas as pd
import pytest

import streamdp
from streamdp.errors import DoubtWarning, NotAvailableError, TooFewUsersError
from streamdp.serving.export import exported_model
from streamdp.sklearn import PrivateClassifier, PrivateRegressor

FEATURES = {"a": (0, 1), "b": (0, 1)}
X = np.random.default_rng(1).uniform(0, 1, (200, 2))
FRAME = pd.DataFrame(X, columns=["a", "b"])
OPEN: dict[str, dict[str, Any]] = {
    "PanPrivate": {"batch_size": 300}, "Shuffle": {"batch_size": 300}, "Windowed": {"window": 300},
    "UserLevelLDP": {"window": 300, "items_per_user": 300},
}  # fmt: skip
LOCAL: dict[str, dict[str, Any]] = {"LDPSGD": {}, "LDPASGD": {}}


def made(name: str, what: str) -> Any:
    own = {"target": (0, 10)} if what == "Regressor" else {"classes": ["no", "yes"]}
    return getattr(streamdp, name + what)(features=FEATURES, seed=1, **own, **(OPEN | LOCAL)[name])


def ways_out(model: Any) -> list[Any]:
    found = [
        lambda: model.predict_arrays(X), model.linear, lambda: exported_model(model),
    ]  # fmt: skip
    if model.predicts_classes:
        found.append(lambda: model.predict_proba_arrays(X))
    return found


@pytest.mark.parametrize("what", ["Regressor", "Classifier"])
@pytest.mark.parametrize("name", [*OPEN, *LOCAL])
def test_nothing_learned_is_nothing_predicted(name: str, what: str) -> None:
    """All handed out the middle of the bounds, and the statement spoke of records that were learned."""
    model = made(name, what)
    for act in ways_out(model):
        with pytest.raises(NotAvailableError, match="nothing is learned yet: learn records first"):
            act()
    start = model.predict_one({"a": 0.5, "b": 0.5})  # River's checks want one of a new model
    assert model.weights == {}
    assert set(model.predict_many(FRAME)) == {start}
    y = 10 * X[:, 0] if what == "Regressor" else np.where(X[:, 0] > 0.5, "yes", "no")
    model.learn_arrays(X, y, subjects=["ann"] * 200 if name == "UserLevelLDP" else None)
    if name in OPEN:
        assert model.n_seen == 200
        for act in ways_out(model):
            with pytest.raises(NotAvailableError, match="200 records wait in an open batch or window"):
                act()
        said = " ".join(model.statement().split())
        assert "after 0 records learned" in said
        assert "200 further records are in an open batch or window" in said
        assert "0 records learned, " in model._repr_html_()
        assert "weight of" not in model._repr_html_()
        assert model.weights == {}
        assert set(model.predict_many(FRAME)) == {start}
        model.close_batch()
    assert "after 200 records learned" in model.statement()
    assert "further records are in an open" not in model.statement()
    for act in ways_out(model):
        act()
    assert "a" in model.weights


@pytest.mark.parametrize("kind", [PrivateRegressor, PrivateClassifier])
def test_a_fit_of_too_few_rows_for_a_window_learns_as_process_and_says_so(kind: Any) -> None:
    """It failed, so that the estimators with their defaults failed 25 of scikit-learn's 50 checks."""
    y, own = np.arange(200) % 2, {} if kind is PrivateRegressor else {"classes": [0, 1]}
    with pytest.warns(DoubtWarning, match=r"40 rows are too few .* needs 1\d\d: they are learned as by") as told:
        model = kind(bounds=(0, 1), **own).fit(X[:40], y[:40])
    assert type(model.model_).__name__.startswith("PanPrivate")
    assert str(model.model_.guarantee) == "eps=1,delta=1e-06"
    assert model.predict(X).shape == (200,)
    needed = int(str(told[0].message).partition(" needs ")[2].partition(":")[0])
    for rows, name in ((needed - 1, "PanPrivate"), (needed, "Windowed")):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DoubtWarning)
            assert type(kind(bounds=(0, 1), **own).fit(X[:rows], y[:rows]).model_).__name__.startswith(name)
    open_bounds = kind(features={"a": {"bounds": "private"}}, **own)
    with pytest.raises(TooFewUsersError, match=r"40 rows are too few .* needs a window"):
        open_bounds.fit(FRAME[["a"]][:40], y[:40])
