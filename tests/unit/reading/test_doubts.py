"""Doubts about statistics that are at a declared bound."""

from typing import Any

import numpy as np
import polars as pl
import pytest

from streamdp.reading.doubts import of_statistics
from streamdp.serving.doubts import doubts
from streamdp.stats import Statistics
from streamdp.store.snapshot import Counts

N = 4000
BOUNDS = (0, 40)
TRUSTS = {"process": "eps=1,delta=1e-6", "shuffler": "eps=1,delta=1e-6", "window": "eps=1", "nobody": "eps=8"}


def estimated(values: Any, wanted: dict[str, Any], trust: Any = "process", **declared: Any) -> Statistics:
    """The statistics `wanted` of a column of values (n,) with bounds, in groups x and y by turns."""
    features: dict[str, Any] = {"a": {"bounds": BOUNDS} | declared, "g": ["x", "y"]}
    found = Statistics(wanted, features, TRUSTS[trust], trust, seed=1)
    found.learn_many(pl.DataFrame({"a": values, "g": ["x", "y"] * (len(values) // 2)}))
    found.close_batch()
    return found


def outside(share: float) -> np.ndarray:
    """Values, of which a share lies at 100 and the others anywhere between the bounds."""
    rng = np.random.default_rng(1)
    return np.where(rng.random(N) < share, 100.0, rng.uniform(*BOUNDS, N))


@pytest.mark.parametrize("trust", TRUSTS)
def test_a_mean_at_a_bound_is_doubted_and_one_inside_is_not(trust: str) -> None:
    for values, bound in ((outside(1.0), "40"), (outside(0.95), "40"), (np.full(N, -9.0), "0")):
        found = estimated(values, {"m": {"mean": "a"}}, trust)
        (said,) = doubts(found, Counts(N, 0, 0))
        assert said.startswith(f"'m' is at the bound {bound} of 'a'")
        assert "most values may lie" in said
        assert "declare wider bounds of 'a'" in said
        assert found.rows()[0]["doubt"] == said
        assert "is at the bound" in found._repr_html_()
    for values in (outside(0.5), outside(0.0)):
        found = estimated(values, {"m": {"mean": "a"}}, trust)
        assert found.rows()[0]["value"] is not None
        assert doubts(found, Counts(N, 0, 0)) == []
        assert "at the bound" not in found._repr_html_()


def test_sums_quantiles_and_groups_are_doubted_alike() -> None:
    values = np.where(np.arange(N) % 2, 20.0, 100.0)  # all of x, and none of y
    wanted = {"s": {"sum": "a", "by": "g"}, "q": {"quantile": [0.25, 0.9], "of": "a", "by": "g"}, "m": {"mean": "a"}}
    found = estimated(values, wanted)
    doubted = [(row["statistic"], row["group"], row["item"]) for row in found.rows() if "doubt" in row]
    assert doubted == [("s", "x", None), ("q", "x", 0.25), ("q", "x", 0.9)]
    said = of_statistics(found.rows())
    assert ["75 %" in said[1], "10 %" in said[2]] == [True, True]


@pytest.mark.parametrize("trust", TRUSTS)
@pytest.mark.parametrize(
    ("edges", "bin_in_doubt"),
    [([0, 10, 20, 30, 40], [30, 40]), ([0, 10, 20, 24], [20, 24]), ([-40, 0, 35, 80], [35, 80])],
)
def test_a_bin_that_holds_what_is_clipped_is_doubted(trust: str, edges: list[float], bin_in_doubt: Any) -> None:
    """A third of the values was counted between 30 and 40, where few are, without a word."""
    wanted = {"h": {"histogram": "a", "edges": edges}}
    found = estimated(np.where(np.arange(N) % 3, np.arange(N) % 35 / 2.0, 100.0), wanted, trust)
    assert [row["item"] for row in found.rows() if "doubt" in row] == [bin_in_doubt]
    (said,) = doubts(found, Counts(N, 0, 0))
    assert said.startswith("the last bin of 'h' within the bounds is more than twice as dense as the one beside it")
    assert "values above the bounds of 'a', which `streamdp check` counts, or above the edges are counted in it" in said


def test_bins_that_are_like_the_ones_beside_them_are_not_doubted() -> None:
    wanted = {
        "few": {"histogram": "a", "edges": [0, 10, 40]},
        "many": {"histogram": "a", "edges": list(range(41)), "by": "g"},
        "of groups": {"histogram": "g"},
    }
    assert doubts(estimated(outside(0.0), wanted), Counts(N, 0, 0)) == []
    below = estimated(outside(0.0) - 20, {"h": {"histogram": "a", "edges": [0, 10, 40]}})
    assert "values below the bounds" in below.rows()[0]["doubt"]


@pytest.mark.parametrize(("value", "end"), [(0.1, "bound 1 of 'a'"), (99.0, "bound 40 of 'a'")])
@pytest.mark.parametrize("transform", ["log", {"power": -1}])
def test_the_bound_is_that_of_the_column_before_its_transform(transform: Any, value: float, end: str) -> None:
    found = estimated(np.full(N, value), {"m": {"mean": "a"}}, transform=transform, bounds=(1, 40))
    assert end in found.rows()[0]["doubt"]


def test_a_mean_whose_limits_hide_where_it_is_has_no_doubt() -> None:
    """Noise alone is no reason to say that values are clipped."""
    found = estimated(outside(1.0)[:40], {"m": {"mean": "a"}}, "process")
    (row,) = found.rows()
    assert row["value"] is not None
    assert row["high"] - row["low"] > 10
    assert "doubt" not in row
