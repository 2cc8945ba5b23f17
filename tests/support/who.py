"""Who is in which released sum: measured in the sums themselves, and compared with what the ledger has charged.

A job runs twice with the same records, calls and random words, but for one person, whose values are the opposite
extremes in the second run. The second run gets the released numbers of the first one, as an attacker would compare
them, and each release says how far its two exact sums are apart, in the unit of its noise. What these distances add up
to is what the person has spent. This knows nothing of the program's bookkeeping. A report or an answer that is
randomised for itself is a release of its own: it is counted if what it is made from differs, with the budget that it
was made for, whose noise other tests measure.

Runs are interrupted where a release begins, or at any line of the library. Records are learned by an estimator, by
several that share a ledger and may be merged, or as Spark learns them: by lanes that borrow rows of the ledger.
"""

from __future__ import annotations

import contextlib
import copy
import itertools
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from unittest import mock

import numpy as np
from scipy.special import logit, ndtri

from streamdp import Ledger
from streamdp.config.definition import Definition
from streamdp.config.trust import completed
from streamdp.data.subjects import Dated, subject_bytes
from streamdp.errors import StreamDPError
from streamdp.estimators.held_out_statistics import HeldOutStatistics
from streamdp.learners.drawn import Drawn
from streamdp.learners.local_counts import CellReports
from streamdp.learners.local_reports import LocalReports
from streamdp.learners.local_roots import Roots
from streamdp.learners.pan import PanBatches
from streamdp.learners.shuffle import ShuffleBatches
from streamdp.learners.sums import HeldPure, LaplaceSum, Mixed
from streamdp.ledger.loans import CarriedRows
from streamdp.ledger.periods import parse_cap
from streamdp.optim.newton import Newton
from streamdp.privacy.grid_sum import GridSum
from streamdp.privacy.guarantees import ApproxDP, GaussianDP, PureDP, amount, parse_budget, with_amount
from streamdp.privacy.mechanisms import Gaussian
from streamdp.validation.validator import Validator
from tests.support.interruptions import interrupted

DAY = 86_400
NOW = 1.7e9 // DAY * DAY + 3600
PEOPLE = 6
PROBE = 8
SLACK = 1 + 1e-9


class Interrupted(Exception):
    """What a release raises where a run says so."""


@dataclass
class Spent:
    """What one person's values can be seen by."""

    mu_squared: float = 0.0
    epsilon: float = 0.0
    rows: int = 0  # in sums that a shuffler mixes
    shared: int = 0  # further rows of the person in a sum that a shuffler mixes


MIXED: dict[Any, tuple[str, str, str]] = {Mixed: ("add", "wipe", "close"), ShuffleBatches: ("_add", "_wipe", "_close")}
"""The sums that a shuffler mixes: how they add, wipe and close."""


@dataclass
class Transcript:
    """The releases of a run: exact sums and outputs. `given` is that of the first run, None in the first run itself."""

    given: Transcript | None = None
    releases: list[tuple[Any, np.ndarray, Any]] = field(default_factory=list)
    interrupt: frozenset[int] = frozenset()
    begun: int = 0
    within: bool = False  # whether a sum is part of a release that is noted as a whole
    told: float = 0.0  # the amount that the report which is made now is made for, a mu if it is `gdp`
    gdp: bool = False
    asked: bool = False  # whether the answers that are given now are for a mu
    spent: Spent = field(default_factory=Spent)
    mixed: dict[int, tuple[Any, list[np.ndarray]]] = field(default_factory=dict)

    def release(self, kind: Any, exact: np.ndarray, output: Any, measure: Callable[[np.ndarray], None]) -> Any:
        """Note a release, and return what the run gets for it; `measure` is called with the difference of the sums."""
        number = len(self.releases)
        if self.given is not None:
            before, other, output = self.given.releases[number]
            assert before == kind, f"release {number} is {kind}, and was {before}"
            measure(exact - other)
        self.releases.append((kind, exact, output.copy() if isinstance(output, np.ndarray) else output))
        return output

    def begin(self) -> None:
        """Note that a release begins; raise `Interrupted` where the run says so: nothing was released then."""
        self.begun += 1
        if self.begun in self.interrupt:
            raise Interrupted

    def normal(self, scale: float) -> Callable[[np.ndarray], None]:
        """Measure a sum with normal noise of this deviation."""

        def measure(difference: np.ndarray) -> None:
            self.spent.mu_squared += float(np.sum((difference / scale) ** 2))

        return measure

    def laplace(self, scale: float) -> Callable[[np.ndarray], None]:
        """Measure a sum with Laplace noise of this scale."""

        def measure(difference: np.ndarray) -> None:
            self.spent.epsilon += float(np.abs(difference).sum()) / scale

        return measure

    # -- the places where something is released ----------------------------------------------------------------------

    def grid(self, real: Any) -> Any:
        def close(mine: GridSum, rng: Any) -> np.ndarray:
            if self.within:
                inner: np.ndarray = real(mine, rng)
                return inner
            self.begin()
            pure, exact = isinstance(mine, LaplaceSum), mine.total.astype(float)
            measure = self.laplace(mine.scale) if pure else self.normal(mine.scale * mine.louder)
            found: np.ndarray = self.release(("grid", exact.size), exact, real(mine, rng), measure)
            return found.copy()

        return close

    def probe(self, real: Any) -> Any:
        def next_probe(mine: PanBatches, probes: Any) -> np.ndarray:
            self.begin()
            first = probes.end == 0 and not probes.open.any()
            exact = (probes.open + mine.total[: len(probes.open)]).astype(float)
            total = real(mine, probes)
            if first:  # it begins the first probe, and releases nothing
                return total
            found: np.ndarray = self.release("probe", exact, total, self.normal(probes.scale))
            return found.copy()

        return next_probe

    def held(self, real: Any) -> Any:
        def close(mine: HeldPure, rng: Any) -> np.ndarray:
            self.begin()
            kept = list(mine.kept.values())
            exact = np.concatenate([mine.total, *(one.rows for one in kept)], dtype=float)

            def measure(difference: np.ndarray) -> None:
                of_sums, of_rows = np.split(difference, [len(mine.total)])
                self.laplace(mine.sum.scale)(of_sums)
                for one, row in zip(kept, of_rows.reshape(len(kept), -1) if kept else (), strict=True):
                    self.spent.epsilon += one.epsilon * int(np.count_nonzero(row))

            self.within = True
            try:
                found: np.ndarray = self.release(("held", exact.size), exact, real(mine, rng), measure)
            finally:
                self.within = False
            return found.copy()

        return close

    def gaussian(self, real: Any) -> Any:
        def randomize(mine: Gaussian, g: np.ndarray, rng: Any = None) -> np.ndarray:
            self.begin()
            exact = np.array(g, dtype=float)
            scale = float(mine.rows(exact.shape[-1])[0, 0])
            found: np.ndarray = self.release(("normal", exact.shape), exact, real(mine, g, rng), self.normal(scale))
            return found.copy()

        return randomize

    def adds(self, real: Any) -> Any:
        """Note rows of a sum that a shuffler mixes."""

        def add(mine: Any, X: np.ndarray, *more: Any) -> Any:
            targets = [more[0][:, None]] if isinstance(more[0], np.ndarray) else []
            self.mixed.setdefault(id(mine), (mine, []))[1].extend(np.hstack([X, *targets]).copy())
            return real(mine, X, *more)

        return add

    def wipes(self, real: Any) -> Any:
        def wipe(mine: Any) -> None:
            real(mine)
            if not mine.total.any():
                self.mixed.pop(id(mine), None)

        return wipe

    def mix(self, real: Any) -> Any:
        def close(mine: Any, *given: Any) -> np.ndarray:
            self.begin()
            exact = np.array(self.mixed.get(id(mine), (None, []))[1])
            budget = mine._budget if isinstance(mine, Mixed) else mine.budget

            def measure(difference: np.ndarray) -> None:
                n = int(np.count_nonzero(difference.any(axis=1))) if len(difference) else 0
                self.spent.rows += n
                self.spent.shared += max(0, n - 1)
                self.spent.epsilon += n * budget.epsilon

            found: np.ndarray = self.release(("mixed", exact.shape), exact, real(mine, *given), measure)
            return found.copy()

        return close

    # -- reports and answers, each randomised for itself -------------------------------------------------------------

    def reports(self, real: Any) -> Any:
        """Rows come one by one, because how many words of randomness a report takes may depend on it."""

        def learn(mine: Any, X: np.ndarray, y: np.ndarray, budget: Any, amounts: Any) -> None:
            for i in range(len(X)):
                rows, each = slice(i, i + 1), None if amounts is None else amounts[i : i + 1]
                self.told = amount(budget or mine.budget) if each is None else float(each[0])
                self.gdp = isinstance(mine.budget, GaussianDP)
                real(mine, X[rows], y[rows], budget, each)

        return learn

    def report(self, real: Any) -> Any:
        def learn_by(mine: LocalReports, mechanism: Any, rows: np.ndarray, X: np.ndarray, y: np.ndarray) -> None:
            if not len(X):
                return
            exact = np.append(X, y)
            arrays = [array for array in (*mine.arrays, *mine.arrays.units) if isinstance(array, np.ndarray)]

            def measure(difference: np.ndarray) -> None:
                self.one(self.gdp, difference, self.told)

            try:
                real(mine, mechanism, rows, X, y)
            finally:  # an exception may come when the report is made
                for array, output in zip(
                    arrays, self.release("report", exact, [a.copy() for a in arrays], measure), strict=True
                ):
                    array[:] = output

        return learn_by

    def counted(self, real: Any) -> Any:
        def learn(mine: Any, X: np.ndarray, words: np.ndarray) -> None:
            exact = X.copy()

            def measure(difference: np.ndarray) -> None:
                self.one(self.gdp, difference, self.told)

            try:
                real(mine, X, words)
            finally:
                state = {k: copy.copy(v) for k, v in vars(mine).items() if isinstance(v, np.ndarray | float | int)}
                output = self.release(("counted", X.shape), exact, state, measure)
                vars(mine).update({k: copy.copy(v) for k, v in output.items()})

        return learn

    def answered(self, real: Any) -> Any:
        def answer(mine: Validator, asked: np.ndarray, scores: np.ndarray, y: np.ndarray, keep: np.ndarray) -> None:
            exact, normal = np.column_stack([scores, y]), self.asked

            def measure(difference: np.ndarray) -> None:
                for row, p in zip(difference, np.broadcast_to(keep, len(difference)).tolist(), strict=True):
                    self.one(normal, row, 2 * float(ndtri(p)) if normal else float(logit(p)))

            try:
                real(mine, asked, scores, y, keep)
            finally:
                found = (mine.open, mine.progress, mine.known)
                output = self.release(("answers", exact.shape), exact, copy.deepcopy(found), measure)
                mine.open, mine.progress, mine.known = copy.deepcopy(output)

        return answer

    def asks(self, real: Any) -> Any:
        def learn(mine: HeldOutStatistics, *given: Any) -> None:
            self.asked = isinstance(mine._plan.budget or mine._budget, GaussianDP)
            real(mine, *given)

        return learn

    def one(self, normal: bool, difference: np.ndarray, spent: float) -> None:
        """Count a report, if it differs."""
        if difference.any():
            self.spent.mu_squared += normal * spent**2
            self.spent.epsilon += (not normal) * spent

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        """Let all releases within go through this object."""
        with contextlib.ExitStack() as stack:
            mixing = self.adds, self.wipes, self.mix
            places: list[tuple[Any, str, Callable[[Any], Any]]] = [
                (GridSum, "close", self.grid),
                (PanBatches, "_next_probe", self.probe),
                (HeldPure, "close", self.held),
                (Gaussian, "randomize", self.gaussian),
                *((kind, *each) for kind, names in MIXED.items() for each in zip(names, mixing, strict=True)),
                (LocalReports, "learn", self.reports),
                (LocalReports, "_learn_by", self.report),
                (Drawn, "learn", self.reports),
                (CellReports, "learn", self.counted),
                (Roots, "learn", self.counted),
                (HeldOutStatistics, "learn", self.asks),
                (Validator, "answer", self.answered),
            ]
            stack.enter_context(mock.patch.object(Newton, "probing", property(probing)))
            for owner, name, wrap in places:
                stack.enter_context(mock.patch.object(owner, name, wrap(getattr(owner, name))))
            yield


def probing(learner: Newton) -> tuple[int, float]:
    """Probes of few records, so that the batches here have some."""
    able = learner._follow and learner._replans and not learner.searching and learner.batch >= 2 * PROBE
    return (PROBE, 0.5) if able else (0, 0.0)


@dataclass(frozen=True)
class Case:
    """A combination of features, and how it is run."""

    settings: dict[str, Any]
    cap: str
    every: bool
    shards: int
    seed: int
    interrupted: str  # "no", where a "release" begins, or at any "line"
    own: bool  # whether some records bring budgets of their own
    spark: bool

    def build(self, ledger: Ledger | None) -> Any:
        """An estimator that has learned nothing."""
        return Definition.model_validate(completed(self.settings)).build_estimator(ledger)

    @property
    def holds_out(self) -> bool:
        """Whether people answer in sums, some of them held out of windows."""
        return "share" in self.settings.get("validation", {}) and self.settings["model"]["trust"] != "nobody"

    @property
    def renews(self) -> bool:
        return " per " in self.cap

    @property
    def classes(self) -> list[str]:
        """What the target is one of; empty for a number."""
        found: list[str] = self.settings["schema"].get("target", {}).get("classes", [])
        return found

    def features(self) -> dict[str, str]:
        """The features of the combination, by name."""
        model, validation = self.settings["model"], self.settings.get("validation", {})
        learns = ("target" in self.settings["schema"]), ("statistics" in self.settings)
        return {
            "trust": model["trust"],
            "what": {(True, False): "model", (False, True): "statistics", (True, True): "both"}[learns],
            "validation": next(iter(validation), "no"),
            "budget": type(parse_budget(model["budget"])).__name__,
            "cap": type(parse_cap(self.cap.split(" per ")[0])).__name__,
            "period": "total" if "total" in self.cap else "renews" if self.renews else "no",
            "classes": str(bool(self.classes)),
            "every": str(self.every),
            "change": model.get("change", "usual"),
            "shards": str(self.shards),
            "own": str(self.own),
            "interrupted": self.interrupted,
            "spark": str(self.spark),
        }

    def pairs(self) -> set[tuple[tuple[str, str], ...]]:
        """All pairs of its features."""
        return set(itertools.combinations(sorted(self.features().items()), 2))


BUDGETS = {
    "nobody": ["eps=1", "mu=0.5"],
    "process": ["mu=0.5", "mu=8", "eps=1,delta=1e-6"],  # with little noise, small batches hold people out
    "shuffler": ["eps=1,delta=1e-6"],
    "window": ["eps=40,delta=1e-3"],
}
ANSWERS = {"GaussianDP": "mu=0.3", "PureDP": "eps=0.5", "ApproxDP": "eps=0.5"}


def case(seed: int) -> Case:
    """A random combination that the configuration allows."""
    rng = np.random.default_rng(seed)
    while True:
        trust = str(rng.choice(["nobody", "process", "process", "shuffler", "window"]))
        what = str(rng.choice(["model", "statistics", "both"]))
        schema: dict[str, Any] = {"features": {"a": [-1, 1], "g": ["x", "y"]}}
        budget = str(rng.choice(BUDGETS[trust]))
        model: dict[str, Any] = {"trust": trust, "budget": budget, "seed": int(rng.integers(100))}
        settings: dict[str, Any] = {"schema": schema, "model": model}
        if what != "model":
            kinds = [
                {"mean": "a"},
                {"count": "g"},
                {"quantile": "a", "q": 0.5},
                {"histogram": "a", "edges": [-1, 0, 1]},
            ]
            kinds = [kind for kind in kinds if trust in ("window", "nobody") or "quantile" not in kind]
            chosen = rng.permutation(len(kinds))[: int(rng.integers(1, 3))]
            settings["statistics"] = {f"s{i}": kinds[i] for i in chosen}
        every = what == "statistics" and rng.random() < 0.4
        if what == "statistics":
            if trust in ("window", "process"):
                model["budget"] = str(rng.choice(["eps=0.5", "mu=0.5"]))
            if trust != "nobody":
                model["batch_size"] = int(rng.integers(5, 25))
            if every:
                model["every"] = "1 day"
                schema["time"] = {"column": "at", "unit": "seconds"}
        else:
            numbers = rng.random() < 0.6
            schema["target"] = {"column": "t"} | ({"bounds": [-2, 2]} if numbers else {"classes": ["no", "yes"]})
            if trust == "window":
                model |= {"window": int(rng.integers(20, 40)), "items_per_user": int(rng.integers(1, 5))}
            elif trust != "nobody":
                model["batch_size"] = int(rng.integers(5, 25))
            if trust == "nobody":
                model["scaling"] = str(rng.choice(["private", "declared"]))
            if rng.random() < 0.5:
                model["change"] = str(rng.choice(["follow", "ignore"]))
                if model["change"] == "follow" and trust == "process":
                    model["batch_size"] = int(rng.integers(40, 60))
            if what == "both":
                model["share"] = 1
            elif rng.random() < 0.6:
                own = ANSWERS[type(parse_budget(model["budget"])).__name__]
                share = float(rng.choice([0.3, 0.5]))
                settings["validation"] = {"budget": own} if rng.random() < 0.5 else {"share": share}
                if trust == "process" and "share" in settings["validation"]:
                    model.pop("change", None)  # AC-SA knows the place of the target from the first record on
                    model |= {"method": "ac-sa", "budget": "mu=8", "batch_size": 30}
                if trust == "window":
                    model["window"] = 100
        spend = parse_budget(model["budget"])
        cap = limit(spend, float(rng.choice([1.0, 2.5, 6.0, 12.0])), str(rng.choice(["own", "own", "mu", "approx"])))
        if rng.random() < 0.4:
            total = limit(spend, 8.0, type(parse_cap(cap)).__name__)
            cap += " per 1 day, late 3 days" + (f", total {total}" if rng.random() < 0.5 else "")
        found = Case(
            settings,
            cap,
            bool(every),
            int(rng.choice([1, 1, 2])),
            seed,
            str(rng.choice(["no", "no", "release", "line"])),
            bool(rng.random() < 0.3),
            bool(rng.random() < 0.2),
        )
        try:
            estimator = found.build(ledger_of(cap))
            estimator.ledger.admit("nobody", estimator.record_budget)  # whether the cap counts this kind
        except (StreamDPError, ValueError):
            continue
        alone = not (found.renews or found.every or "validation" in settings or what == "both")
        if found.spark and not (trust == "process" and alone):
            continue  # see `Lanes`
        return found


def limit(budget: Any, records: float, kind: str = "own") -> str:
    """A cap that about so many records of a budget reach: of its `own` kind, or of another one."""
    if kind in ("mu", "GaussianDP") and isinstance(budget, PureDP):
        return f"mu={GaussianDP.from_pure(budget).mu * records**0.5:g}"
    if kind in ("approx", "ApproxDP") and isinstance(budget, PureDP):
        return f"eps={budget.epsilon * records:g},delta=1e-6"
    if kind in ("approx", "ApproxDP") and isinstance(budget, GaussianDP):
        mu = budget.mu * records**0.5
        return f"eps={GaussianDP(mu).epsilon(1e-6):.9g},delta=1.01e-6"
    if isinstance(budget, GaussianDP):
        return f"mu={budget.mu * records**0.5:g}"
    if isinstance(budget, PureDP):
        return f"eps={budget.epsilon * records:g}"
    assert isinstance(budget, ApproxDP)
    return f"eps={budget.epsilon * records:g},delta={budget.delta * records:g}"


def ledger_of(cap: str) -> Ledger:
    """A ledger whose clock stands still."""
    ledger = Ledger(cap)
    ledger.moments.clock = lambda: NOW
    return ledger


@dataclass
class Outcome:
    """What two runs have shown of one person, and what the ledger has of it."""

    seen: Spent
    charged: Any  # a `Spend`
    releases: int
    learned: int


@dataclass(frozen=True)
class Records:
    """Records of `run`, for calls."""

    X: np.ndarray
    y: np.ndarray
    budgets: np.ndarray | None
    people: list[Any]

    def __getitem__(self, part: slice) -> Records:
        budgets = None if self.budgets is None else self.budgets[part]
        return Records(self.X[part], self.y[part], budgets, self.people[part])


def run(given: Case) -> Outcome:
    """Run a case twice, and compare."""
    rng = np.random.default_rng([given.seed, 1])
    n = int(rng.integers(60, 160)) * (4 if given.holds_out else 1)  # nobody is held out of few records
    who = rng.choice(PEOPLE, n, p=np.array([6, 4, 3, 1, 1, 1]) / 16)
    who = np.where(rng.random(n) < (0.8 if given.holds_out else rng.choice([0.0, 0.5])), np.arange(n) + PEOPLE, who)
    days = np.sort(rng.integers(0, 3, n)) if rng.random() < 0.5 else rng.integers(0, 3, n)
    if given.every:
        days = np.sort(days)
    person, day = int(rng.choice(3)), int(rng.integers(0, 3))
    mine = who == person
    if given.renews:
        mine &= days == day
    X = np.column_stack([rng.uniform(-1, 1, n), rng.integers(0, 2, n)])
    y = rng.uniform(-2, 2, n)
    moves = not given.classes or rng.random() < 0.5  # gradients are furthest apart if only the class differs
    if given.classes:
        y = (y > 0).astype(float)
    times = NOW - (2 - days) * DAY
    people = [Dated(f"p{k}", float(at)) if given.renews else f"p{k}" for k, at in zip(who, times, strict=True)]
    usual = amount(given.build(None).record_budget)
    budgets = np.where(rng.random(n) < 0.6, np.nan, usual * rng.choice([0.6, 1.0, 1.7], n)) if given.own else None
    at_release = frozenset(rng.integers(1, 12, 2).tolist()) if given.interrupted == "release" else frozenset[int]()
    calls = plan(rng, n, given)
    transcript: Any = None
    ledger: Any = None
    learned = 0
    # What is computed once and kept must be there: else the same line is another one in the second run.
    for side in (1.0, 1.0, -1.0) if given.interrupted == "line" else (1.0, -1.0):
        values, targets = X.copy(), y.copy()
        place = side if moves else 1.0
        values[mine, 0], values[mine, 1] = place, (1 - place) / 2
        targets[mine] = (1 + side) / 2 if given.classes else 2 * side
        transcript = Transcript(None if side > 0 else transcript, interrupt=at_release)
        ledger = ledger_of(given.cap)
        records = Records(values, times.astype(float) if given.every else targets, budgets, people)
        with transcript.installed(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            models = [given.build(ledger) for _ in range(given.shards)]
            for call in calls:
                with contextlib.suppress(Interrupted):
                    if call.line is None:
                        apply(models, call, given, ledger, records)
                    else:
                        interrupted(partial(apply, models, call, given, ledger, records), call.line)
            learned = sum(model.n_seen for model in models)
    found = ledger.spent(f"p{person}", float(NOW - (2 - day) * DAY)) if given.renews else ledger.spent(f"p{person}")
    return Outcome(transcript.spent, found, len(transcript.releases), learned)


@dataclass(frozen=True)
class Call:
    """One call: what it does to which shard, with which records; and after how many lines it is interrupted."""

    kind: str
    shard: int
    part: slice = field(default_factory=lambda: slice(0))
    line: int | None = None


def plan(rng: np.random.Generator, n: int, given: Case) -> list[Call]:
    """Random calls: rows, single records, ends of batches, merges, and states that are saved and loaded."""
    calls: list[Call] = []
    done, shards = 0, given.shards
    lines = 0.15 if given.interrupted == "line" else 0.0
    while done < n:
        size = int(rng.choice([1, 3, 10, 40]))
        end, shard = min(n, done + size), int(rng.integers(shards))
        line = int(10 ** rng.uniform(1, 3.7)) if rng.random() < lines else None
        kind = "one" if size == 1 and rng.random() < 0.5 else "rows"
        calls.append(Call("spark" if given.spark else kind, shard, slice(done, end), line))
        done = end
        if rng.random() < 0.15:
            line = int(10 ** rng.uniform(0, 3)) if rng.random() < 2 * lines else None
            kinds = ["close", "reload", *(["merge"] if shards > 1 else [])]
            calls.append(Call(str(rng.choice(kinds)), int(rng.integers(shards)), line=line))
    calls += [Call("close", shard) for shard in range(shards)]
    return calls


def apply(models: list[Any], call: Call, given: Case, ledger: Ledger, records: Records) -> None:
    """Make one call."""
    model, mine = models[call.shard], records[call.part]
    if call.kind == "rows":
        model.learn_encoded(mine.X, mine.y, mine.budgets, mine.people)
    elif call.kind == "one":
        x, own = {"a": float(mine.X[0, 0]), "g": "y" if mine.X[0, 1] else "x"}, None
        if mine.budgets is not None and not np.isnan(mine.budgets[0]):
            own = with_amount(model.record_budget, float(mine.budgets[0]))
        y = given.classes[int(mine.y[0])] if given.classes else float(mine.y[0])
        model.learn_one(x, y, subject=mine.people[0], budget=own)
    elif call.kind == "spark":
        models[call.shard] = learn_on_spark(given, model, ledger, mine)
    elif call.kind == "close":
        model.close_batch()
    elif call.kind == "merge":
        models[:] = [model.merged(*(other for other in models if other is not model)), given.build(ledger)]
    elif model.at_boundary and model.n_seen:
        models[call.shard] = new = given.build(ledger)
        new.load_state_dict(model.state_dict())


def learn_on_spark(given: Case, model: Any, ledger: Ledger, records: Records, lanes: int = 2) -> Any:
    """Learn one batch of Spark with a model at a boundary: lanes that borrow rows of the ledger, and one sum."""
    model.close_batch()
    state, key = (model.state_dict() if model.n_seen else None), bytes(32)
    lane_of = np.array([sum(subject_bytes(person) or b"") % lanes for person in records.people])
    loan = ledger.export_rows(records.people, key)
    cap: Any = ledger.cap
    gathered, counts, returned = [], np.zeros(2, dtype=int), []
    for lane in range(lanes):
        mine = lane_of == lane
        rows = CarriedRows(cap, *loan.rows(mine), loan.mark, loan.charged)
        part = given.build(Ledger.over(rows, cap, key))
        if state is not None:
            part.load_state_dict(state)
        before = part.n_seen
        if given.features()["what"] == "statistics":
            part.part_of(lanes)
        else:
            part.gather_part(lane, lanes)
        budgets = None if records.budgets is None else records.budgets[mine]
        part.learn_encoded(records.X[mine], records.y[mine], budgets, [records.people[i] for i in np.flatnonzero(mine)])
        part.close_batch()
        counts += part.n_seen - before, 0
        gathered.append(part.take_sums() if given.features()["what"] == "statistics" else part.take_records())
        returned.append(rows.changed())
    driver = given.build(ledger)
    if state is not None:
        driver.load_state_dict(state)
    loan.settle(*(np.concatenate(each) for each in zip(*returned, strict=True)))
    if given.features()["what"] == "statistics":
        driver.add_sums(gathered, int(counts[0]))
        return driver
    batches = [
        (np.concatenate(X), np.concatenate(y))
        for X, y in (zip(*batch, strict=True) for batch in itertools.zip_longest(*gathered, fillvalue=NO_RECORDS))
    ]

    def ask(batch: int, state: dict[str, Any]) -> list[np.ndarray]:
        part = given.build(None)
        part.load_state_dict(state)
        return [part.part(*(array.copy() for array in batches[batch]))]

    driver.learn_parts([len(y) for _, y in batches], ask)
    return driver


NO_RECORDS = np.zeros((0, 2)), np.zeros(0)


def excess(given: Case, outcome: Outcome) -> float:
    """By which factor a person has spent more than the ledger has charged: at most 1 if all is well."""
    seen, charged = outcome.seen, outcome.charged
    budget = parse_budget(given.settings["model"]["budget"])
    answers = given.settings.get("validation", {}).get("budget")
    if isinstance(budget, PureDP):
        return ratio(seen.epsilon, charged.epsilon or (charged.pure_mu_squared and np.inf))
    if given.settings["model"]["trust"] == "shuffler":
        return np.inf if seen.shared else ratio(seen.epsilon, charged.epsilon)
    if isinstance(budget, ApproxDP):
        own = 0.0 if answers is None else charged.records * amount(parse_budget(answers))
        normal = ratio(seen.mu_squared, charged.records * GaussianDP.from_approx(budget).mu ** 2)
        both = ratio(charged.records * budget.epsilon + seen.epsilon, charged.epsilon)
        return max(normal, ratio(seen.epsilon, own), both)
    return max(ratio(seen.mu_squared, charged.mu_squared), ratio(seen.epsilon, 0.0))


def ratio(seen: float, charged: float) -> float:
    """Their quotient; 0 of nothing."""
    return seen / charged if charged else (np.inf if seen else 0.0)
