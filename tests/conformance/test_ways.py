"""Records one by one, in frames and as arrays, in pieces of any size, are learned the same, bit by bit."""

from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest

import streamdp
from tests.conformance.test_values import KINDS
from tests.support.states import kept
from tests.unit.estimators.test_transforms import FEATURES
from tests.unit.estimators.test_transforms import frame as transformed

PLAIN: Any = ["x", "z"]
FULL: dict[str, Any] = {
    "x": {"bounds": (0, 2), "typical": (0.5, 0.25)},
    **FEATURES,
    "region": {"categories": ["n", "s", "w"], "per": True, "other": True, "missing": "category"},
}
SIZES: dict[str, tuple[int | None, ...]] = {
    "PanPrivate": (None, 1, 90),
    "Shuffle": (None, 90),
    "UserLevelLDP": (None, 40),
}


def frame(n: int) -> pl.DataFrame:
    rng = np.random.default_rng(0)
    return transformed(n)[0].with_columns(
        x=rng.uniform(0, 1, n),
        z=rng.normal(0, 1, n),
        region=pl.Series(rng.choice(["n", "s", "w", "q", None], n).tolist()),
    )


@pytest.mark.slow
@pytest.mark.parametrize("features", [PLAIN, FULL], ids=["plain", "declared"])
@pytest.mark.parametrize(
    ("kind", "size"),
    [
        (kind, size)
        for kind in KINDS
        for size in SIZES.get(kind.removesuffix("Regressor").removesuffix("Classifier"), (None,))
    ],
)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_every_way_learns_the_same(kind: str, size: int | None, features: Any) -> None:
    n = 60 if size == 1 else 120
    X = frame(n).select(PLAIN) if features is PLAIN else frame(n).drop("z")
    y = 3 * X["x"].to_numpy() + np.random.default_rng(1).normal(0, 0.1, n)
    options: dict[str, Any] = {"features": features, "seed": 1} | ({} if size is None else {"batch_size": size})
    if kind.endswith("Regressor"):
        options["target"] = (0, 3)
    else:
        y = y > 1.5
    if kind.startswith("Windowed"):
        options |= {"window": 100, "items_per_user": 1, "budget": "eps=40,delta=1e-6", "method": "private-range"}
    one, frames, arrays = (getattr(streamdp, kind)(**options) for _ in range(3))
    for x, target in zip(X.iter_rows(named=True), y.tolist(), strict=True):
        one.learn_one(x, target)
    rows = X.to_numpy() if features is PLAIN else arrays.encoder.encode_features(X)
    for low, high in pairwise(range(0, n + 1, 15)):
        part = X[low:high]
        frames.learn_many(part if low % 2 else pd.DataFrame(part.to_dict(as_series=False)), y[low:high])
        arrays.learn_encoded(rows[low:high], y[low:high].astype(float))
    for _ in range(2):
        assert kept(one) == kept(frames) == kept(arrays)
        for model in (one, frames, arrays):
            model.close_batch()
    assert one.theta.tobytes() == frames.theta.tobytes() == arrays.theta.tobytes()
    single = [one.predict_one(x) for x in X.head(20).iter_rows(named=True)]
    assert np.asarray(frames.predict_many(X.head(20))).tolist() == pytest.approx(single, rel=1e-12)
