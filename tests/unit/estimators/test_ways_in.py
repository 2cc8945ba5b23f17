"""A record means the same in every way in: single, as a frame of pandas or polars, or as a table of Arrow."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
from river import stream

from streamdp import LDPASGDRegressor
from streamdp.errors import SchemaError
from streamdp.sklearn import PrivateRegressor
from streamdp.stats import Statistics

pa = pytest.importorskip("pyarrow", reason="tables of Arrow; `make test` installs it")
SCHEMA = {"a": (-1, 1), "c": ["1", "2", "true", "x"]}
Model = LDPASGDRegressor
WAYS: dict[str, Callable[[Model, Any, Any], Any]] = {
    "one": lambda model, a, c: model.learn_one({"a": a, "c": c}, 0.5),
    "pandas": lambda model, a, c: model.learn_many(
        pd.DataFrame({"a": pd.Series([a], dtype=object), "c": pd.Series([c], dtype=object)}), pd.Series([0.5])
    ),
    "polars": lambda model, a, c: model.learn_many(pl.DataFrame({"a": [a], "c": [c]}, strict=False), pl.Series([0.5])),
    "arrow": lambda model, a, c: model.learn_many(pl.DataFrame({"a": [a], "c": [c]}).to_arrow(), pa.array([0.5])),
    "predicted": lambda model, a, c: model.predict_one({"a": a, "c": c}),
    "predicted by pandas": lambda model, a, c: model.predict_many(
        pd.DataFrame({"a": pd.Series([a], dtype=object), "c": pd.Series([c], dtype=object)})
    ),
    "predicted by arrow": lambda model, a, c: model.predict_many(pl.DataFrame({"a": [a], "c": [c]}).to_arrow()),
}


def model() -> Model:
    made = LDPASGDRegressor(features=SCHEMA, target=(0, 1), mechanism="none")
    made.learn_one({"a": 0.5, "c": "x"}, 1.0)
    return made


def weights(way: str, a: Any, c: Any) -> tuple[float, ...]:
    made = model()
    found = WAYS[way](made, a, c)
    return tuple(made.theta) if found is None else tuple(np.ravel(found))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("value", "text"), [(1, "1"), (np.int64(2), "2"), (True, "true"), (np.bool_(True), "true"), (np.str_("x"), "x")]
)
@pytest.mark.slow
def test_a_category_is_the_text_that_a_file_would_have(way: str, value: Any, text: str) -> None:
    if isinstance(value, np.generic) and way in ("polars", "arrow", "predicted by arrow"):
        value = value.item()
    assert weights(way, 0.25, value) == weights(way, 0.25, text)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("a", "c"), [(0.5, 1.0), (0.5, None), (0.5, float("nan")), (0.5, "nope"), (None, "x"), (float("nan"), "x")]
)
@pytest.mark.slow
def test_what_is_no_value_is_refused(way: str, a: Any, c: Any) -> None:
    made = model()
    with pytest.raises(SchemaError) as caught:
        WAYS[way](made, a, c)
    assert "nope" not in str(caught.value)
    assert made.n_seen == 1


@pytest.mark.parametrize("way", ["one", "pandas", "polars", "predicted"])
@pytest.mark.parametrize("value", ["0.5", np.float32(0.5)])
def test_a_number_may_be_text_or_of_any_width(way: str, value: Any) -> None:
    if way == "polars" and isinstance(value, np.generic):
        value = value.item()
    assert weights(way, value, "x") == weights(way, 0.5, "x")


def test_features_may_be_named_by_numbers() -> None:
    X, y = np.array([[0.1, 0.4], [0.2, 0.3]]), np.array([0.1, 0.2])
    kinds = [LDPASGDRegressor(features={0: (-1, 1), 1: (0, 1)}, target=(0, 1), mechanism="none") for _ in range(3)]
    for x, target in stream.iter_array(X, y):
        kinds[0].learn_one(x, target)
    kinds[1].learn_many(pd.DataFrame(X), pd.Series(y))
    kinds[2].learn_many(X, y)
    assert kinds[0].n_seen == 2
    assert kinds[0].predict_one({0: 0.1, 1: 0.4}) == kinds[1].predict_many(pd.DataFrame(X))[0]
    for other in kinds[1:]:
        np.testing.assert_array_equal(other.theta, kinds[0].theta)


def test_lazy_frames_are_collected() -> None:
    """They were refused as neither frame nor array."""
    frame = pl.DataFrame({"a": [0.5, -0.25], "c": ["x", "1"], "y": [0.5, 0.25]})
    eager, lazy = model(), model()
    eager.learn_many(frame, frame["y"])
    lazy.learn_many(frame.lazy(), frame.lazy().select("y").collect()["y"])
    assert np.array_equal(eager.theta, lazy.theta)
    assert lazy.predict_many(frame.lazy()).to_list() == eager.predict_many(frame).to_list()
    learner = PrivateRegressor(features=SCHEMA, target=(0, 1), trust="nobody").fit(
        frame.lazy(), frame.lazy().select("y")
    )
    assert learner.predict(frame.lazy()).shape == (2,)
    means = Statistics({"m": {"mean": "a"}}, {"a": (-1, 1)})
    means.learn_many(frame.lazy().select("a"))
    assert means.n_seen == 2


@pytest.mark.parametrize("frame", [pd.DataFrame([]), pl.DataFrame([]), pl.DataFrame([]).to_arrow()], ids=type)
def test_a_frame_of_no_records_lacks_the_declared_columns(frame: Any) -> None:
    """A frame of an empty list has no columns: it once raised the library's own error."""
    for act in (lambda: model().learn_many(frame, []), lambda: model().predict_many(frame)):
        with pytest.raises(SchemaError, match="missing columns: 'a', 'c'"):
            act()
    names = LDPASGDRegressor(features=["a"])
    names.learn_many(frame, [])
    assert names.n_seen == len(names.predict_many(frame)) == 0
