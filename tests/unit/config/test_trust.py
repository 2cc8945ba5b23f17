"""Who may see raw records chooses the estimator, its delta and its window."""

from inspect import signature
from typing import Any

import numpy as np
import pytest

from streamdp import PanPrivateRegressor, estimators
from streamdp.config.definition import read_definition
from streamdp.config.job import JobConfig, make_config
from streamdp.config.model import ModelConfig
from streamdp.config.prospect import cheaper
from streamdp.config.trust import ESTIMATORS, loss_of_mean
from streamdp.errors import ConfigError
from streamdp.learners.alike import alike
from streamdp.sklearn import PrivateRegressor

FILE: dict[str, Any] = {"type": "csv", "path": "data.csv"}
KAFKA: dict[str, Any] = {"type": "kafka", "topic": "t", "brokers": "b:1"}
SHUFFLE: dict[str, Any] = {"type": "shuffle", "brokers": "b:1", "points": "p", "messages": "m", "shuffled": "s"}


def job(source: dict[str, Any] = FILE, classes: bool = False, subject: str | None = None, **more: Any) -> JobConfig:
    target = {"column": "y"} | ({"classes": ["no", "yes"]} if classes else {"bounds": [0, 1]})
    schema = {"features": {"x": [0, 1]}, "target": target, "subject": subject}
    return make_config({"job": "j", "source": source, "schema": schema, **more})


@pytest.mark.parametrize("classes", [False, True])
@pytest.mark.parametrize(
    ("trust", "family", "budget"),
    [
        ("nobody", "LDPASGD", "eps=1"),
        ("process", "PanPrivate", "eps=1,delta=1e-08"),
        ("window", "Windowed", "eps=1,delta=1e-08"),
        ("shuffler", "Shuffle", "eps=1,delta=1e-08"),
    ],
)
def test_trust_chooses_the_estimator_and_the_definition_is_that_of_its_name(
    trust: str, family: str, budget: str, classes: bool
) -> None:
    name = family + ("Classifier" if classes else "Regressor")
    found = job(classes=classes, model={"trust": trust, "budget": "eps=1"})
    named = job(classes=classes, model={"estimator": name})
    assert (type(found.build_estimator()).__name__, found.model.budget) == (name, budget)
    assert found.fingerprint() == named.fingerprint() == job(classes=classes, model={"trust": trust}).fingerprint()
    assert read_definition(found.text()).fingerprint() == named.fingerprint()
    assert "Who must be trusted" in found.build_estimator().statement()


@pytest.mark.parametrize(
    ("source", "more", "family"),
    [
        (FILE, {}, "Windowed"),
        (FILE | {"type": "jsonl"}, {}, "Windowed"),
        (FILE | {"type": "parquet"}, {}, "Windowed"),
        ({"type": "spark", "format": "parquet", "path": "x"}, {}, "Windowed"),
        ({"type": "spark", "format": "kafka"}, {}, "PanPrivate"),
        (FILE, {"validation": {"share": 0.1}}, "Windowed"),
        (FILE, {"validation": {"budget": "eps=1"}}, "PanPrivate"),
        (KAFKA, {}, "PanPrivate"),
        (KAFKA | {"content": "reports"}, {}, "LDPASGD"),
        ({"type": "http"}, {}, "LDPASGD"),
        (SHUFFLE, {}, "Shuffle"),
        pytest.param(FILE, {"model": {"loss": "quantile"}}, "Windowed", marks=pytest.mark.slow),
        ({"type": "spark", "format": "csv", "path": "x"}, {"model": {"loss": "quantile"}}, "LDPASGD"),
        (KAFKA, {"model": {"loss": "quantile"}}, "LDPASGD"),
        (KAFKA, {"model": {"loss": {"name": "huber", "clip": 2}}}, "LDPASGD"),
    ],
)
def test_without_trust_the_source_says_who_sees_the_records(
    source: dict[str, Any], more: dict[str, Any], family: str
) -> None:
    assert job(source, **more).model.estimator == f"{family}Regressor"


def test_budgets_of_records_are_learned_by_ldp() -> None:
    schema = {"features": {"x": [0, 1]}, "target": {"column": "y"}, "budget": "spend"}
    assert make_config({"job": "j", "source": FILE, "schema": schema}).model.estimator == "LDPASGDRegressor"


@pytest.mark.parametrize(("source", "family"), [(FILE, "Windowed"), (KAFKA, "PanPrivate")])
def test_three_classes_have_the_trust_of_two(source: dict[str, Any], family: str) -> None:
    """Before Newton's steps for them, LDP was better; now it makes about twice the errors (`benchmarks.ordinary`)."""
    schema = {"features": {"x": [0, 1]}, "target": {"column": "y", "classes": ["a", "b", "c"]}}
    assert make_config({"job": "j", "source": source, "schema": schema}).model.estimator == f"{family}Classifier"


def test_both_may_be_given_if_they_agree() -> None:
    assert job(model={"trust": "nobody", "estimator": "LDPSGDRegressor"}).model.estimator == "LDPSGDRegressor"
    with pytest.raises(ConfigError, match=r"estimator: WindowedRegressor disagree.*means trust: window; leave one"):
        job(model={"trust": "nobody", "estimator": "WindowedRegressor"})
    for wrong in ("me", ["process"]):
        with pytest.raises(ConfigError, match="expected one of nobody, process, window, shuffler"):
            job(model={"trust": wrong})


@pytest.mark.parametrize(("records", "delta"), [(500, 1e-6), (100_000, 1e-6), (1_200_000, 1e-8), (None, 1e-8)])
def test_delta_is_below_a_tenth_of_the_inverse_of_the_expected_records(records: int | None, delta: float) -> None:
    budget = job(model={"trust": "process", "budget": "eps=2"}, expected_records=records).model.budget
    assert budget == f"eps=2,delta={delta:g}"
    assert records is None or delta <= 0.1 / records
    mine = job(model={"trust": "process", "budget": "eps=2,delta=1e-5"}, expected_records=records)
    assert mine.model.budget == "eps=2,delta=1e-05"


@pytest.mark.parametrize("trust", ["nobody", "process", "window"])
def test_a_cap_without_a_delta_has_those_of_the_budgets_that_it_admits(trust: str) -> None:
    """Before, a cap of `nobody` was refused beside a budget whose delta was given."""
    model = {"trust": trust, "budget": "eps=1,delta=1e-5"}
    assert job(subject="who", model=model, cap="eps=3").cap == "eps=3,delta=3e-05"
    schema = {"features": {"x": [0, 1]}, "subject": "who"}
    statistics = {"job": "j", "source": FILE, "schema": schema, "statistics": {"m": {"mean": "x"}}}
    assert make_config(statistics | {"model": model, "cap": "eps=3"}).cap == "eps=3,delta=3e-05"


def test_a_delta_of_0_is_no_text_without_a_delta() -> None:
    text = "eps=1,delta=0"
    asked = PrivateRegressor(bounds=(-1, 1), target=(0, 1), trust="process", budget=text)
    made = [
        lambda: job(model={"trust": "process", "budget": text}),
        lambda: PanPrivateRegressor(features=["a"], budget=text),
        lambda: asked.fit([[0.0]], [0.0]),
    ]
    for one in made:
        with pytest.raises(ValueError, match="expected a delta above 0"):
            one()
    assert job(model={"trust": "nobody", "budget": text}).model.budget == "eps=1"


@pytest.mark.parametrize("given", [{}, {"budget": "eps=1"}], ids=str)
def test_gaussian_noise_of_single_records_gets_a_delta(given: dict[str, Any]) -> None:
    """Before, `mechanism: gaussian` asked for a delta that the default budget does not have."""
    found = job(model={"trust": "nobody", "mechanism": "gaussian", **given}, expected_records=500)
    assert found.model.budget == "eps=1,delta=1e-06"
    assert job(model={"trust": "nobody", "mechanism": "gaussian", "budget": "mu=1"}).model.budget == "mu=1"


@pytest.mark.parametrize(
    ("trust", "declared", "needs"),
    [
        ("process", {"quantile": 0.5, "of": "x"}, True),
        ("process", {"mean": "x"}, False),
        ("window", {"quantile": 0.5, "of": "x"}, False),
        ("window", {"pairs": ["u", "v", "w"]}, True),
        ("window", {"heavy_hitters": "t"}, True),
        ("nobody", {"heavy_hitters": "t"}, False),
        ("shuffler", {"mean": "x"}, True),
    ],
    ids=str,
)
def test_statistics_have_the_delta_of_a_job_where_they_need_one(
    trust: str, declared: dict[str, Any], needs: bool
) -> None:
    """Before, pairs and texts of a window took 1e-6, whatever was expected, and refused a cap without a delta."""
    features = {"x": [0, 1], "t": {"text": 8}, **{name: ["no", "yes"] for name in "uvw"}}
    schema = {"features": features, "subject": "who"}
    given = {"source": FILE, "schema": schema, "statistics": {"s": declared}, "model": {"trust": trust}}
    found = make_config({"job": "j", **given, "cap": "eps=2", "expected_records": 1_200_000})
    delta = ",delta=1e-08" if needs else ""
    assert (str(found.build_estimator().record_budget), found.cap) == (
        f"eps=1{delta}",
        f"eps=2{delta.replace('1', '2')}",
    )


def test_a_cap_without_delta_counts_as_many_budgets_as_its_epsilon_holds() -> None:
    capped = job(subject="who", cap="eps=3 per 30 days, total eps=9", model={"trust": "process"})
    assert capped.cap.startswith("eps=3,delta=3e-08 per 30 days")
    assert capped.cap.endswith("total eps=9,delta=9e-08")
    with pytest.raises(ConfigError, match=r"is below model\.budget"):
        job(subject="who", cap="eps=0.5", model={"trust": "process"})


def test_a_window_is_the_file_and_without_subjects_each_record_is_a_person() -> None:
    assert (job().model.window, job().model.items_per_user) == (2**20, 1)
    assert job(subject="who").model.items_per_user is None
    assert job(FILE | {"follow": True}).model.window is None
    mine = job(model={"trust": "window", "window": 500, "items_per_user": 3}).model
    assert (mine.window, mine.items_per_user) == (500, 3)


@pytest.mark.parametrize("source", [FILE, KAFKA])
def test_ldp_on_raw_records_says_what_it_costs_in_numbers(source: dict[str, Any]) -> None:
    said = cheaper(job(source, model={"trust": "nobody"}, expected_records=40_000))
    numbers = [int(word.replace(",", "")) for word in said.split() if word.replace(",", "").isdigit()]
    assert numbers[0] == 40_000
    assert numbers[1] < 10_000
    assert "trust: process" in said
    for quiet in ({"trust": "process"}, {"trust": "window"}, {"trust": "nobody", "budget": "eps=64"}):
        assert cheaper(job(source, model=quiet)) is None


def test_what_teaches_as_much_falls_with_trust_and_rises_with_records() -> None:
    for loss, columns in (("huber", 4), ("huber", 24), ("logistic", 8), ("softmax", 4)):
        found = [alike(loss, columns, "eps=1", n) for n in (10_000, 100_000, 1_000_000)]
        assert all(one is not None and one.window < one.process for one in found)
        assert [one.process for one in found if one] == sorted(one.process for one in found if one)
    assert alike("hinge", 4, "eps=1", 10_000) is None


@pytest.mark.parametrize("kind", [getattr(estimators, name) for name in ESTIMATORS], ids=lambda kind: kind.__name__)
def test_a_parameter_has_the_type_of_the_constructor_in_a_job(kind: type) -> None:
    """A job can set each parameter. Texts which a learner takes are written once, the others in a job's own way."""
    own = {"loss", "budget", "domain", "cohort", "trust"}
    given = signature(kind).parameters
    elsewhere = {"features", "target", "classes", "ledger", "validation", "statistics"}  # in other parts of a job
    assert given.keys() <= ModelConfig.model_fields.keys() | elsewhere
    for name in (ModelConfig.model_fields.keys() & given.keys()) - own:
        taken = given[name].annotation
        assert (taken | None) == ModelConfig.__annotations__[name] or "Literal[" in str(taken), name  # or fewer of them


def test_huge_values_do_not_hide_that_mean_and_median_are_far_apart() -> None:
    normal = np.random.default_rng(1).normal(size=10_000)
    for spread in (1.0, 2.0, 4.0):
        assert loss_of_mean(np.exp(spread * normal), "window") is not None
    assert loss_of_mean(normal, "window") is None
