"""What a device accepts from a learner is bounded, and after that no record is an error or tells more than its budget.

`tests/campaigns/test_hostile_documents.py` has the random documents, in Python and in JavaScript.
"""

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from streamdp import (
    Hinge,
    Huber,
    L2Ball,
    LDPSGDRegressor,
    Logistic,
    PureDP,
    Quantile,
    ShuffleClassifier,
    ShuffleRegressor,
    Softmax,
    Squared,
)
from streamdp.aggregation.local_mean import UserMean
from streamdp.errors import ConfigError, SchemaError, StreamDPError
from streamdp.estimators import accepted
from streamdp.estimators.ldp.randomizer import Asked, Randomizer, Report
from streamdp.estimators.shuffle.randomizer import ShuffleRandomizer
from streamdp.estimators.user.randomizer import UserRandomizer
from streamdp.optim.losses import LOSSES, Loss
from streamdp.protocol.agreement import Agreement
from streamdp.protocol.cohort import CohortDevice
from streamdp.protocol.local_half import LocalHalf
from streamdp.protocol.shuffle_wire import write_announcement
from streamdp.scaling.search import Question
from streamdp.scaling.units import Units
from tests.support.hostile import NUMBERS, Hostile, digest
from tests.support.local_reports import JOBS, PERSON, desk_of, truth
from tests.support.shuffle_model import model as shuffle_model
from tests.support.sizes import some

each = pytest.mark.parametrize("job", JOBS)


def document_of(job: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(desk_of(job)[0].document().text)
    return found | {"ask": "gradient"}


def made(document: dict[str, Any]) -> LocalHalf:
    """A device that has agreed before."""
    return LocalHalf(json.dumps(document).encode(), document["agreement"])


@each
@pytest.mark.parametrize("units", [[0.0, 5e-324], [0.0, 1e-300], [1e300, 1.0], [-3.0, 1.0], [0.0, 1e300]])
def test_units_of_a_column_that_overflow_are_refused(job: str, units: list[float]) -> None:
    """With a scale of 5e-324 a report was NaN unless the column was 0, so it told a category exactly."""
    document = document_of(job)
    document["scales"][2] = units
    with pytest.raises(ConfigError, match="expected a centre within"):
        made(document)


@pytest.mark.parametrize("job", ["privunit", "laplace", "gaussian", "approx", "softmax"])
@pytest.mark.parametrize("units", [[0.0, 0.5], [-1.0, 1.0], [0.0, 2.0]])
def test_units_of_a_target_with_classes_are_refused(job: str, units: list[float]) -> None:
    """With a scale of 1/2, or a centre of -1, one class was an error: whether a report came told the class."""
    document = document_of(job)
    document["scales"][-1] = units
    with pytest.raises(ConfigError, match="centre 0 and scale 1"):
        made(document)


TEXTS = {"name": "t", "column": "t", **dict.fromkeys(["bounds", "transform", "knots", "bins", "cyclic", "product"])}
LEVELS = [f"{k}" for k in range(101)]


@pytest.mark.parametrize(
    "features",
    [
        [{"name": "g", "categories": LEVELS, "per": ["c"]}, {"name": "c", "categories": LEVELS}],
        [
            *({"name": name, "categories": LEVELS} for name in "ab"),
            *(TEXTS | {"name": f"p{k}", "column": None, "hash": None, "product": ["a", "b"]} for k in range(2)),
        ],
        [{"name": "a", "categories": LEVELS}, *(TEXTS | {"name": f"t{k}", "hash": 5000} for k in range(3))],
        [TEXTS | {"name": "t", "hash": 10**9}, TEXTS | {"name": "u", "column": "u", "hash": -(10**9)}],
    ],
)
def test_many_columns_in_few_words_are_refused_before_they_are_made(
    features: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A document of 50 KB could cost a device half a minute."""
    document = document_of("huber")
    document["schema"]["features"] = features
    document["agreement"] = digest(document)
    monkeypatch.setattr("streamdp.data.schema.Schema", None)
    with pytest.raises(StreamDPError, match=r"columns|10000|randomizer"):
        made(document)


@pytest.mark.parametrize("place", ["theta", "ask", "loss", "schema"])
def test_other_numbers_have_limits(place: str) -> None:
    document = document_of("huber")
    if place == "theta":
        document["theta"][0] = 1.1e100
    elif place == "ask":
        document["ask"] = {"column": "delay", "below": 9.0}
    elif place == "loss":
        document["loss"]["parameters"]["sigma_min"] = 5e-324
    else:
        document["schema"]["target"]["scale"] = 1e-200
    document["agreement"] = digest(document)
    with pytest.raises(StreamDPError):
        made(document)


def test_the_protocol_is_a_number() -> None:
    """`true` was taken for 1 in Python, and refused in JavaScript."""
    document = document_of("huber") | {"protocol": True}
    with pytest.raises(SchemaError, match="protocol"):
        made(document)


def test_a_document_whose_loss_does_not_fit_its_target_is_refused_before_a_record() -> None:
    """The record was refused in place of the document, and it depended on the target."""
    document = document_of("quantile")
    logistic = Logistic()
    document["loss"] = {"name": "logistic", "parameters": {"clip": None, "weighting": None}}
    document["loss"] |= {"bound": logistic.bound, "sensitivity": logistic.sensitivity}
    document["agreement"] = digest(document)
    with pytest.raises(ConfigError, match="loss that fits the target"):
        made(document)


@pytest.mark.parametrize("target", [-1.7e308, 5e-324, 1.7e308])
def test_a_target_without_bounds_may_be_any_number(target: float) -> None:
    document = document_of("squared")
    document["schema"]["target"] |= {"bounds": None, "scale": 1e-60}
    document["scales"][-1] = [0.0, 1.0]
    document["agreement"] = digest(document)
    with np.errstate(all="raise"):
        report = made(document).report(PERSON, target, "r")
    assert np.isfinite(report["gradient"]).all()


def test_which_records_fit_does_not_depend_on_the_question() -> None:
    """A bit about a column was sent for a class that is none, and a gradient was an error."""
    randomizer = replace(
        JOBS["privunit"].build_estimator().randomizer, features=("a",), theta=np.zeros(2), question=None
    )
    asked = replace(randomizer, question=replace(unscaled(1), bit=Question(-np.inf, 0.0, 0, 0)))
    for one in (randomizer, asked):
        with pytest.raises(SchemaError, match="class"):
            one({"a": 1.0}, 2.0)


def test_the_point_does_not_choose_the_classes() -> None:
    """The number of classes followed from the length of theta, so that the last class was an error at a shorter one."""
    agreed = Randomizer(np.zeros(3), Softmax(), ("a",), False, PureDP(1), "auto", classes=(0, 1, 2))
    assert isinstance(agreed({"a": 1.0}, 2.0), Report)
    with pytest.raises(ConfigError, match="shape"):
        replace(agreed, theta=np.zeros(2))


def unscaled(p: int) -> Asked:
    return Asked(None, np.tile([0.0, 1.0], (p + 1, 1)), (0.0, np.inf), 0)


def losses(rng: np.random.Generator) -> list[Loss]:
    """Each loss with a small, a usual and a large clip, or without one."""
    clip = rng.choice([1e-60, 1.0, 1e60])
    out: list[Loss] = [kind(clip=float(clip)) for kind in LOSSES.values()]
    out += [kind() for kind in LOSSES.values()]
    return [*out, Huber(c=1e-6, sigma_min=1e-60), Squared(c=1e-6, sigma_min=1e-60)]


def numbers(rng: np.random.Generator, *shape: int) -> np.ndarray:
    """Edges and extremes, or small numbers."""
    found = np.where(
        rng.random(shape) < rng.choice([0.0, 0.2, 1.0]), rng.choice(NUMBERS, shape), rng.normal(size=shape)
    )
    return np.clip(found, -1.7e308, 1.7e308)


def point(rng: np.random.Generator, loss: Loss, d: int) -> np.ndarray:
    theta = np.clip(numbers(rng, d), -accepted.FURTHEST, accepted.FURTHEST)
    if isinstance(loss, Huber):
        theta[-1] = max(abs(theta[-1]), loss.sigma_min)
    return theta


def units(rng: np.random.Generator, p: int) -> np.ndarray:
    """(2, p) centres and slopes, seldom outside of the limits."""
    found = np.array([rng.choice([-2.0, 0.0, 2.0], p), rng.choice([2.0**-40, 1.0, 2.0**40], p)])
    return numbers(rng, 2, p) if rng.random() < 0.1 else found


def target_of(rng: np.random.Generator, loss: Loss) -> float:
    return float(rng.integers(2)) if loss.of_classes else float(numbers(rng, 1)[0])


@pytest.mark.filterwarnings("error", "ignore::ResourceWarning")  # of a file of another test
@pytest.mark.parametrize("kind", ["record", "user", "shuffle"])
@pytest.mark.slow
def test_every_accepted_point_has_a_finite_answer_for_every_record(kind: str) -> None:
    """Columns and targets without bounds have any finite doubles. Any warning of the arithmetic is an error here."""
    rng, counts = np.random.default_rng(5), {"accepted": 0, "refused": 0}
    for _ in range(30):
        for loss in losses(rng):
            asked = randomizer_of(kind, rng, loss)
            counts["refused" if asked is None else "accepted"] += 1
            for _ in range(3 if asked is not None else 0):
                x = dict(zip("ab", numbers(rng, 2).tolist(), strict=True))
                found = answer_of(asked, x, target_of(rng, loss))
                assert np.isfinite(found).all(), (asked, x)
    assert counts["accepted"] > 150
    assert counts["refused"] > 5


def randomizer_of(kind: str, rng: np.random.Generator, loss: Loss) -> Any:
    """A randomizer with hostile numbers, or None if it is refused."""
    intercept = bool(rng.random() < 0.5)
    d, budget = loss.size(2 + intercept, 2), PureDP(float(rng.choice([2.0**-20, 1.0, 2.0**20])))
    theta, scales = point(rng, loss, d), units(rng, 2)
    classes = loss.of_classes
    try:
        if kind == "record":
            question = unscaled(2)
            question.scales[:2] = scales.T
            if rng.random() < 0.3:
                low, high = np.sort(numbers(rng, 2)).tolist()
                question = replace(question, bit=Question(low, high, 0, int(rng.integers(4))))
            if not classes and rng.random() < 0.5:
                question = replace(question, bounds=(1.0, 2.0))
                question.scales[2] = units(rng, 1)[:, 0]
            mechanism = str(rng.choice(["privunit", "laplace"]))
            return Randomizer(theta, loss, ("a", "b"), intercept, budget, mechanism, question)
        if kind == "user":
            mean = UserMean(budget, loss.bound, min(loss.sensitivity * 1.1, 2 * loss.bound), d, 1000, loss.bound)
            centre = numbers(rng, d) if rng.random() < 0.1 else point(rng, loss, d)
            plain = classes or rng.random() < 0.5
            given = Units(scales) if plain else Units(scales, *units(rng, 1)[:, 0].tolist(), (-1.0, 3.0))
            asked = Question(*np.sort(numbers(rng, 2)).tolist(), 5, int(rng.integers(-1, 4)))
            question = asked if rng.random() < 0.2 else None
            envelope = float(rng.choice([0.0, 1e-60, 1e60])) if isinstance(loss, Hinge | Quantile) else 0.0
            return UserRandomizer(
                theta, envelope, loss, ("a", "b"), intercept, mean, (0, 0, 0), None, centre, 4,
                units=given, question=question,
            )  # fmt: skip
        return shuffle_randomizer(theta, scales, loss, intercept)
    except StreamDPError:
        return None


def shuffle_randomizer(theta: np.ndarray, scales: np.ndarray, loss: Loss, intercept: bool) -> ShuffleRandomizer:
    from streamdp.aggregation.vector_sum import VectorSum
    from streamdp.optim.curvature import Curvature, has_curvature
    from streamdp.privacy.guarantees import ApproxDP

    plain = isinstance(loss, Logistic)
    curvature = Curvature(loss, 2 + intercept, plain=plain) if has_curvature(loss) else None
    size, bound = (len(theta), loss.bound) if curvature is None else (curvature.size, curvature.bound)
    params = VectorSum.calibrated(ApproxDP(4.0, 1e-4), bound, 50, size)
    place = theta if curvature is None else np.concatenate([theta, *scales])
    return ShuffleRandomizer(place, loss.spec(), loss, ("a", "b"), intercept, params, (0, 0, 0), curvature=curvature)


def answer_of(randomizer: Any, x: dict[str, float], y: float) -> Any:
    if isinstance(randomizer, UserRandomizer):
        return randomizer([(x, y)] * 3).answer
    if isinstance(randomizer, ShuffleRandomizer):
        return randomizer.messages(x, y)
    found = randomizer(x, y)
    return found.gradient if isinstance(found, Report) else float(found.yes)


def test_a_slope_that_overflows_for_one_value_is_refused() -> None:
    """A slope of 1.7e308 with a centre of -1 was an error exactly at x = 1."""
    loss = Logistic()
    mean = UserMean(PureDP(1), loss.bound, loss.sensitivity, 2, 1000, loss.bound)
    with pytest.raises(ConfigError, match="columns"):
        UserRandomizer(
            np.zeros(2), 0.0, loss, ("a",), True, mean, (0, 0, 0), None, np.zeros(2), 1,
            units=Units(np.array([[-1.0], [1.7e308]])),
        )  # fmt: skip


def test_an_announcement_to_a_shuffled_device_has_the_same_limits() -> None:
    learner = shuffle_model()
    agreement = Agreement(learner)
    for far, fits in ((accepted.FURTHEST, True), (1.1e100, False)):
        text = write_announcement(agreement.announcement(learner.batch, np.full(3, far)))
        if fits:
            assert agreement.accept(text).messages({"a": 1.7e308, "b": -1.7e308}, 1.0).size
        else:
            with pytest.raises(ConfigError, match="point"):
                agreement.accept(text)


COHORTS: list[tuple[Any, dict[str, Any]]] = [
    (ShuffleClassifier, {"loss": "logistic"}),
    (ShuffleClassifier, {"loss": "hinge", "smoothness": 1.0, "domain": L2Ball(1e3)}),
    (ShuffleClassifier, {"loss": "softmax"}),
    (ShuffleRegressor, {"loss": "huber"}),
    (ShuffleRegressor, {"loss": "squared"}),
    (ShuffleRegressor, {"loss": "quantile", "smoothness": 1.0}),
]


def answered(agreed: Agreement, text: bytes, x: dict[str, float], y: float) -> int | str:
    """The size of the message of a new device of a cohort, or which error it raised; only a message was noted."""
    noted: list[Any] = []
    try:
        key, value = CohortDevice(agreed, note=noted.append).answer(text, x, y)
    except StreamDPError as error:
        assert noted == []
        return type(error).__name__ + str(error)
    assert noted == [(key, value)]
    return len(value)


@pytest.mark.filterwarnings("error", "ignore::ResourceWarning")  # of a file of another test
@pytest.mark.parametrize(("kind", "options"), some(COHORTS, 0, 3))
@pytest.mark.slow
def test_what_a_device_of_a_cohort_says_does_not_depend_on_its_record(kind: Any, options: dict[str, Any]) -> None:
    """A learner chooses the round and the point, and changes any part of an announcement."""
    rng, hostile, counts = np.random.default_rng(7), Hostile(7), {"accepted": 0, "refused": 0}
    learner = kind(features=["a", "b"], budget="eps=4,delta=1e-4", cohort={"people": 20, "rounds": 3}, **options)
    agreed, honest = Agreement(learner), learner.randomizer
    d = len(honest.point)
    for i in range(200):
        place = honest.point + 0.3 * rng.normal(size=d) if i % 5 else numbers(rng, d)
        text = write_announcement(agreed.announcement((0, 0, int(rng.integers(3))), honest.point))
        said = json.loads(text) | {"point": place.tolist()}
        for _ in range(int(rng.integers(3))):
            hostile.change(said)
        text = hostile.text(said).encode("utf-8", "surrogatepass")
        records = [dict(zip("ab", numbers(rng, 2).tolist(), strict=True)) for _ in range(3)]
        found = {answered(agreed, text, x, target_of(rng, honest.loss)) for x in records}
        assert len(found) == 1
        counts["accepted" if isinstance(found.pop(), int) else "refused"] += 1
    assert min(counts.values()) > 30, counts


def test_honest_learners_stay_within_the_limits() -> None:
    """A narrow typical spread is answered, and one finer than the limit is an error at the learner."""
    for spread, fits in ((1e-11, True), (1e-14, False)):
        model = LDPSGDRegressor(features={"a": {"bounds": (-1, 1), "typical": (1, spread)}}, target=(0, 1))
        if fits:
            assert isinstance(model.randomizer({"a": 1.0}, 0.5), object)
        else:
            with pytest.raises(ConfigError, match="scale from"):
                _ = model.randomizer


@each
def test_the_answers_of_a_record_are_those_of_its_schema(job: str) -> None:
    """A document at the edges of the limits has finite reports."""
    document = document_of(job)
    p = len(document["scales"]) - 1
    document["scales"][:p] = [[(-1) ** j * 2.0, accepted.FINEST] for j in range(p)]
    document["theta"] = [(-1) ** j * accepted.FURTHEST for j in range(len(document["theta"]))]
    document["theta"][-1] = accepted.FURTHEST
    report = made(document).report(PERSON, truth(job), "r")
    assert np.isfinite(report["gradient"]).all()
