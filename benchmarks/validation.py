"""How well private validation tells the error of a model. Run with `python -m benchmarks.validation [--write]`.

Each run learns a stream by LDP-ASGD and compares what the answers say with the truth: the errors, over the population,
of every model that was asked about, weighted by the answers about it. A population is a table of 10,000 records, from
which streams are drawn with replacement, so its errors are known exactly. No figure is a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.metrics import log_loss

from benchmarks.ordinary import TABLES, TRUSTS, Table
from benchmarks.shared.flights import Flights
from benchmarks.shared.pages import command, short, table
from streamdp import (
    LDPASGDClassifier,
    LDPASGDRegressor,
    PanPrivateClassifier,
    PanPrivateRegressor,
    ShuffleClassifier,
    ShuffleRegressor,
    WindowedClassifier,
    WindowedRegressor,
)
from streamdp.privacy.entropy import Entropy
from streamdp.privacy.guarantees import parse_budget
from streamdp.privacy.mechanisms.response import truth
from streamdp.validation.plan import NOTHING, plan_of
from streamdp.validation.quality import BETTER, NO_BETTER, UNKNOWN, Estimate
from streamdp.validation.sums import ERRORS, OTHERS
from streamdp.validation.tasks import Classes, Probabilities
from streamdp.validation.validator import Validator

RUNS = 200
FEWER = 8  # runs of the long streams: one for so many short ones
POPULATION = 10_000
SHARE, BUDGET = {"share": 0.1}, "budget"


@dataclass(frozen=True)
class Stream:
    """A population: its records, and the model that learns them."""

    X: np.ndarray
    y: np.ndarray
    model: Callable[..., Any]

    def draw(self, n: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Return n records of the population, drawn with replacement."""
        rows = rng.integers(len(self.y), size=n)
        return self.X[rows], self.y[rows]


def simulated(kind: str, signal: float = 1.0, flipped: bool = False) -> Stream:
    """A simulation: `classes` or `numbers`, with weights times the signal; `flipped`: the first has the other sign."""
    rng = np.random.default_rng(1)
    X = rng.normal(size=(POPULATION, 5))
    scores = X @ (signal * np.array([-1.0 if flipped else 1.0, -1.0, 1.0, 0.5, 0.0]))
    names = [f"x{j}" for j in range(5)]
    if kind == "classes":

        def model(budget: str, validation: Mapping[str, Any] | None) -> Any:
            return LDPASGDClassifier(features=names, budget=budget, validation=validation)

        return Stream(X, (scores + rng.logistic(size=POPULATION) > 0).astype(float), model)

    def regressor(budget: str, validation: Mapping[str, Any] | None) -> Any:
        bounded = None if validation is None else {**validation, "bound": 5.0}
        return LDPASGDRegressor(features=names, budget=budget, validation=bounded)

    return Stream(X, scores + rng.normal(size=POPULATION), regressor)


def flights() -> Stream:
    """The delays of some flights."""
    data = Flights("delay")
    some = np.random.default_rng(1).choice(len(data.y), POPULATION, replace=False)
    return Stream(data.X[some], data.y[some], lambda budget, given: data.model(budget).clone({"validation": given}))


class Truth:
    """The true errors of the models that the records of one run are asked about."""

    def __init__(self, model: Any, stream: Stream) -> None:
        self._model, self._X, self._y = model, stream.X, stream.y
        self._sums = np.zeros((2, 2))
        self._numbers = np.zeros(2)
        self._begin = model.held_out.validator.begin
        model.held_out.validator.begin = self._watched

    def _watched(self, *place: Any) -> None:
        self.close()
        self._begin(*place)

    def close(self) -> None:
        """Take in the block that ends."""
        validator = self._model.held_out.validator
        told = validator.open[[ERRORS, OTHERS]]
        if told.any():
            self._sums += told[:, None] * self.now()
            self._numbers += told

    def now(self) -> np.ndarray:
        """What the answers are about: errors of the model and the constant; log loss over it, and error rate."""
        validator = self._model.held_out.validator
        scores = self._model.prediction.by(validator.point).scores(self._X)
        means = validator.errors.vectors((1.0, 1.0), 0.0, scores, self._y)[:, [0, 2]].mean(axis=0)
        low, high = np.transpose([validator.errors.range(other) for other in (False, True)])
        return np.asarray((low + high + (high - low) * means) / 2)

    def averages(self) -> tuple[float, float]:
        """The average error behind the answers (of classes the rate), and the average difference."""
        self.close()
        errors, others = self._sums / np.maximum(self._numbers, 1)[:, None]
        if isinstance(self._model.held_out.validator.task, Probabilities):
            return float(others[1]), float(errors[0])
        return float(errors[0]), float(errors[0] - others[1])


def gain(model: Any, stream: Stream) -> float:
    """By which part the error of the model is below that of the best constant; of classes it is the log loss."""
    if hasattr(model, "classes"):
        p, q = np.clip(model.predict_proba_encoded(stream.X)[:, 1], 1e-12, 1 - 1e-12), stream.y.mean()
        loss, least = (-np.mean(stream.y * np.log(p) + (1 - stream.y) * np.log(1 - p)) for p in (p, q))
    else:
        loss, least = (np.mean(np.abs(stream.y - p)) for p in (model.predict_encoded(stream.X), np.median(stream.y)))
    return float(1 - loss / least)


@dataclass(frozen=True)
class Result:
    """What one run found."""

    error: bool | None
    difference: bool | None
    width: float
    verdict: str
    right: bool


def covers(estimate: Estimate, value: float) -> bool:
    return estimate.low is not None and estimate.high is not None and estimate.low <= value <= estimate.high


def run(stream: Stream, n: int, budget: str, validation: Mapping[str, Any], seed: int) -> Result:
    """One run: does the truth lie in the intervals, and is the verdict right?"""
    rng = np.random.default_rng(seed)
    X, y = stream.draw(n, rng)
    model = stream.model(budget, validation)
    model._need_features("the benchmark")
    true = Truth(model, stream)
    model.learn_encoded(X, y)
    error, difference = true.averages()
    found = model.quality
    total, gained = found.total, gain(model, stream)
    wrong = (found.verdict == BETTER and gained < 0) or (found.verdict == NO_BETTER and gained > 0.05)
    if total.difference.high is None:
        return Result(None, None, np.nan, found.verdict, not wrong)
    # The constant's error may be estimated as 0: the interval then has no width in its terms.
    width = (total.difference.value - total.difference.low) / (total.constant.value or np.nan)
    shown = total.error if total.rate is None else total.rate
    return Result(covers(shown, error), covers(total.difference, difference), width, found.verdict, not wrong)


def validations(budget: str) -> dict[str, Mapping[str, Any]]:
    return {"share": SHARE, "budget": {BUDGET: budget}}


def intervals(runs: int) -> str:
    streams = {
        "classes": simulated("classes"),
        "numbers": simulated("numbers"),
        "nothing to learn, classes": simulated("classes", 0.0),
        "nothing to learn, numbers": simulated("numbers", 0.0),
        "flights, delay": flights(),
    }
    rows = []
    for name, stream in streams.items():
        for budget in ("eps=1", "eps=4"):
            for how, validation in validations(budget).items():
                for n, draws in ((10_000, runs), (100_000, max(runs // FEWER, 2))):
                    found = [run(stream, n, budget, validation, 1000 + seed) for seed in range(draws)]
                    verdicts = [result.verdict for result in found]
                    told = [result for result in found if result.error is not None]
                    cells = [share([getattr(result, what) for result in told]) for what in COVERED]
                    width = f"± {100 * np.nanmean([r.width for r in told]):.0f} %" if told else "-"
                    said = [str(verdicts.count(verdict)) for verdict in (BETTER, NO_BETTER, UNKNOWN)]
                    wrong = str(sum(not r.right for r in found))
                    rows.append([name, budget, how, short(n), str(draws), *cells, width, *said, wrong])
    head = ["stream", "gradient", "paid by", "n", "runs", "error covered", "difference covered", "half width"]
    return table([*head, "better", "no better", "not known", "wrong"], rows)


COVERED = ("error", "difference")


def share(hits: list[bool]) -> str:
    """The share in percent, with its standard error, that of 95 % if all are hits."""
    if not hits:
        return "-"
    p = float(np.mean(hits))
    error = np.sqrt((p * (1 - p) if p < 1 else 0.95 * 0.05) / len(hits))
    return f"{100 * p:.1f} ± {100 * error:.1f} %"


def costs(runs: int) -> str:
    rows = []
    ways: dict[str, tuple[str, Mapping[str, Any] | None]] = {
        "none": ("eps=1", None),
        "share: 0.1": ("eps=1", {"share": 0.1}),
        "share: 0.2": ("eps=1", {"share": 0.2}),
        "budget: eps=0.25 of 1": ("eps=0.75", {"budget": "eps=0.25"}),
        "budget: eps=0.5 of 1": ("eps=0.5", {"budget": "eps=0.5"}),
    }
    for kind in ("classes", "numbers"):
        stream = simulated(kind)
        for way, (budget, validation) in ways.items():
            errors = []
            for seed in range(runs):
                rng = np.random.default_rng(seed)
                model = stream.model(budget, validation)
                model.learn_encoded(*stream.draw(100_000, rng))
                X, y = stream.draw(20_000, rng)
                off = model.predict_encoded(X) - y
                errors.append(np.mean(off != 0 if kind == "classes" else np.abs(off)))
            rows.append([kind, way, f"{np.mean(errors):.4f} ± {np.std(errors, ddof=1) / np.sqrt(runs):.4f}"])
    return table(["stream", "validation", "error"], rows)


def delay(kind: str, budget: str, validation: Mapping[str, Any], seed: int, before: int = 50_000) -> tuple[float, int]:
    """How many records after a flip an alarm comes (inf: not within 50,000), and the alarms before it.

    The model ignores changes: one that follows them mostly begins again by its own reports, before answers show it.
    """
    rng, stream, flipped = np.random.default_rng(seed), simulated(kind), simulated(kind, flipped=True)
    model = stream.model(budget, validation).clone({"change": "ignore"})
    model.learn_encoded(*stream.draw(before, rng))
    early = model.quality.drifts
    for step in range(1, 101):
        model.learn_encoded(*flipped.draw(500, rng))
        if model.quality.drifts > early:
            return 500.0 * step, early
    return np.inf, early


def drifts(runs: int) -> str:
    rows = []
    ways: dict[str, tuple[str, Mapping[str, Any]]] = {
        "budget: eps=1": ("eps=1", {"budget": "eps=1"}),
        "budget: eps=0.5 of 1": ("eps=0.5", {"budget": "eps=0.5"}),
        "share: 0.1": ("eps=1", SHARE),
        "share: 0.3": ("eps=1", {"share": 0.3}),
    }
    for kind in ("classes", "numbers"):
        for way, (budget, validation) in ways.items():
            found = [delay(kind, budget, validation, seed) for seed in range(runs)]
            delays = np.array([records for records, _ in found])
            row = [kind, way, f"{np.count_nonzero(delays <= 20_000)} of {runs}", f"{np.median(delays):,.0f}"]
            rows.append([*row, str(sum(early for _, early in found))])
    head = ["stream", "validation", "within 20,000", "median delay", "alarms before"]
    return table(head, rows)


def quiet(records: int, error: float = 0.3) -> str:
    """Alarms in a stream without drift: the model's error is constant."""
    budget = parse_budget("eps=1")
    validator = Validator(plan_of({"budget": "eps=1"}), Classes(2), 1, Entropy())
    rng, keep, done = np.random.default_rng(3), truth(budget, np.ones(512)), 0
    while done < records:
        if validator.due:
            validator.begin(np.zeros(1), 0.0, 1.0, np.inf)
        asked = validator.take(512)
        done += len(asked)
        if (asked != NOTHING).all():
            y = (rng.random(len(asked)) < error).astype(float)
            validator.answer(asked, np.zeros((len(asked), 1)), y, keep[: len(asked)])
    return f"Alarms in {records:,} records: {validator.quality().drifts}. The bound: {1e-7 * records:g}."


HELD_OUT = {
    "window": (WindowedClassifier, WindowedRegressor),
    "pan": (PanPrivateClassifier, PanPrivateRegressor),
    "shuffle": (ShuffleClassifier, ShuffleRegressor),
}


def held_out(runs: int, n: int = 10_000) -> str:
    """The verdicts of models whose people are held out, beside the truth on 20,000 other records."""
    rows = []
    for family, kinds in HELD_OUT.items():
        more = {"items_per_user": 1, "window": 2**20} if family == "window" else {}
        for name, signal, shift in (("classes", 1, 0), ("classes, 8 %", 1, -3), ("numbers", 1, None)):
            for strength in (signal, 0):
                verdicts, wrong = [], 0
                for seed in range(runs if family == "window" else runs // 2):
                    rng = np.random.default_rng(seed)
                    X = rng.normal(size=(n + 20_000, 5))
                    scores = strength * (X @ TRUE)
                    noise = rng.normal(size=len(X)) if shift is None else rng.logistic(size=len(X))
                    y = scores + noise if shift is None else (scores + noise + shift > 0).astype(float)
                    given = {"share": 0.1, "bound": 5.0} if shift is None else SHARE
                    model = kinds[shift is None](
                        features=[f"x{j}" for j in range(5)], budget="eps=1,delta=1e-6", validation=given, **more
                    )
                    model.learn_encoded(X[:n], y[:n])
                    model.close_batch()
                    gained = gain(model, Stream(X[n:], y[n:], type(model)))
                    verdict = model.quality.verdict
                    verdicts.append(verdict)
                    wrong += (verdict == BETTER and gained < 0) or (verdict == NO_BETTER and gained > 0.05)
                said = [str(verdicts.count(one)) for one in (BETTER, NO_BETTER, UNKNOWN)]
                rows.append(
                    [family, name if strength else f"nothing to learn, {name}", str(len(verdicts)), *said, str(wrong)]
                )
    return table(["learner", "stream", "runs", "better", "no better", "not known", "wrong"], rows)


def ordinary(draws: int, part: float = 1.0) -> str:
    """The verdicts on models of the tables of `benchmarks.ordinary`, beside the truth on other records."""
    trusts = ("window", "process", "shuffler")
    decided = dict.fromkeys(trusts, 0)

    def rows() -> Iterator[list[str]]:
        for name, case in TABLES.items():
            cells = []
            for trust in trusts:
                errors, verdicts = [], []
                for seed in range(draws):
                    verdict, error, constant, records = _ordinary(trust, case, seed, part)
                    decided[trust] += verdict != UNKNOWN
                    errors.append(error / constant)
                    verdicts.append(verdict)
                cells += [
                    f"{np.mean(errors):.3f}",
                    ", ".join(f"{verdicts.count(v)} {v}" for v in dict.fromkeys(verdicts)),
                ]
            yield [name.rsplit(", ", 1)[0], f"{records:,}", *cells]
        yield ["decided", "", *(cell for n in decided.values() for cell in ("", f"{n} of {draws * len(TABLES)}"))]

    return table(["table", "records", *(cell for trust in trusts for cell in (trust, "verdicts"))], rows())


def _ordinary(trust: str, case: Table, seed: int, part: float) -> tuple[str, float, float, int]:
    """A verdict on a model of a table, its error, that of the constant, and how many records learned."""
    rng = np.random.default_rng([seed, 5])
    data, other = case.drawn(rng, part)
    more: dict[str, Any] = {"window": 2**20, "items_per_user": 1} if trust == "window" else {}
    if case.classes:
        more |= {"classes": list(range(case.classes)), "loss": ("logistic", "softmax")[case.classes > 2]}
    else:
        more |= {"target": data.target, "loss": case.loss}
    model = TRUSTS[trust][bool(case.classes)](
        budget="eps=1,delta=1e-6", features=data.features, seed=seed, validation=SHARE, **more
    )
    model.learn_encoded(data.encoded, data.y)
    model.close_batch()
    if case.classes:
        shares, levels = np.bincount(data.y.astype(int), minlength=case.classes) / len(data.y), range(case.classes)
        error = log_loss(other.y, model.predict_proba_encoded(other.encoded), labels=levels)
        constant = log_loss(other.y, np.tile(shares, (len(other.y), 1)), labels=levels)
    else:
        power, centre = (2, np.mean) if case.loss == "squared" else (1, np.median)
        error = float(np.mean(np.abs(model.predict_encoded(other.encoded) - other.y) ** power))
        constant = float(np.mean(np.abs(centre(data.y) - other.y) ** power))
    return model.quality.verdict, error, constant, len(data.y)


BATCHES: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "pan": (PanPrivateClassifier, PanPrivateRegressor, {}),
    "shuffle": (ShuffleClassifier, ShuffleRegressor, {}),
    "one window": (WindowedClassifier, WindowedRegressor, {"items_per_user": 1, "window": 10_000}),
    "four windows": (WindowedClassifier, WindowedRegressor, {"items_per_user": 1, "window": 2_500}),
}
TRUE = np.array([1.0, -1.0, 0.5, 0.0, 0.3])
SHARES = {"50 %": 0.0, "10 %": -2.7}
"""Shares of positives, and about which intercept of a logistic model they need."""


def draw_batch_limits(family: str, share: str | None, n: int, budget: str, seed: int) -> np.ndarray:
    """Which parameters (d,) of one draw are covered; NaN without an interval. A share of None: numbers."""
    rng = np.random.default_rng(seed)
    X, shift = rng.normal(size=(n, len(TRUE))), 0.0 if share is None else SHARES[share]
    scores = X @ TRUE + shift
    y = scores + rng.normal(size=n) if share is None else (scores + rng.logistic(size=n) > 0).astype(float)
    names = [f"x{j}" for j in range(len(TRUE))]
    *kinds, more = BATCHES[family]
    model = kinds[share is None](features=names, budget=f"{budget},delta=1e-6", seed=seed, **more)
    model.learn_encoded(X, y)
    model.close_batch()
    limits, truth = model.interval()[: len(TRUE) + 1], np.append(TRUE, shift)
    return np.where(np.isnan(limits[:, 0]), np.nan, (limits[:, 0] <= truth) & (truth <= limits[:, 1]))


def batch_limits(runs: int) -> str:
    rows = []
    for family, (*_, more) in BATCHES.items():
        for share in (None, "50 %", "10 %"):
            for budget in ("eps=1", "eps=4"):
                n, draws = 10_000, runs * (5 if more else 1)
                found = np.array([draw_batch_limits(family, share, n, budget, seed) for seed in range(draws)])
                given = ~np.isnan(found[:, 0])
                held = "-" if not given.any() else f"{100 * np.nanmean(found):.1f} %"
                cells = [family, "numbers" if share is None else f"{share} positive", budget, short(n), str(draws)]
                rows.append([*cells, f"{100 * given.mean():.0f} %", held])
    return table(["learner", "target", "budget", "n", "draws", "with intervals", "covered"], rows)


PARTS: dict[str, Callable[[bool], str]] = {
    "ordinary": lambda quick: ordinary(1, 0.1 if quick else 1.0),
    "held": lambda quick: held_out(2 if quick else 40),
    "batches": lambda quick: batch_limits(2 if quick else 20),
    "drift": lambda quick: drifts(2 if quick else 20),
    "quiet": lambda quick: quiet(100_000 if quick else 10_000_000),
    "costs": lambda quick: costs(2 if quick else 20),
    "intervals": lambda quick: intervals(2 if quick else RUNS),
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print, and with --write save."""
    command(__file__, PARTS, arguments, quick=True)


if __name__ == "__main__":
    main()
