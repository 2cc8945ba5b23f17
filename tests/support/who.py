"""Who is in which released sum: measured in the sums themselves, and compared with what the ledger has charged.

A job runs twice with the same records, calls and random words, but for one person, whose values are the opposite
extremes in the second run. The second run gets the released numbers of the first one, as an attacker would compare
them, and each release says how far its two exact sums are apart, in the unit of its noise. What these distances add up
to is what the person has spent. This knows nothing of the program's bookkeeping. Reports and answers that are
randomised each for itself are not measured here: each is a release of its own.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import numpy as np

from streamdp import Ledger
from streamdp.aggregation.shuffled_sum import Analyzer, LocalRandomizer
from streamdp.config.definition import Definition
from streamdp.config.trust import completed
from streamdp.data.subjects import Dated
from streamdp.errors import StreamDPError
from streamdp.learners.held import HeldPure
from streamdp.learners.pan import PanBatches
from streamdp.learners.ranks import Ranks
from streamdp.privacy.grid_sum import GridSum
from streamdp.privacy.guarantees import ApproxDP, GaussianDP, PureDP, parse_budget
from streamdp.privacy.mechanisms import Gaussian

DAY = 86_400
NOW = 1.7e9 // DAY * DAY + 3600
PEOPLE = 6
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


@dataclass
class Transcript:
    """The releases of a run: exact sums and outputs. `given` is that of the first run, None in the first run itself."""

    given: Transcript | None = None
    releases: list[tuple[Any, np.ndarray, Any]] = field(default_factory=list)
    interrupt: frozenset[int] = frozenset()
    begun: int = 0
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

    # -- the places where something is released ----------------------------------------------------------------------

    def grid(self, real: Any) -> Any:
        def close(mine: GridSum, rng: Any) -> np.ndarray:
            self.begin()
            exact, scale = mine.total.astype(float), mine.scale * mine.louder
            found: np.ndarray = self.release(("grid", exact.size), exact, real(mine, rng), self.normal(scale))
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
        def close(mine: HeldPure, rng: Any, rows: int) -> np.ndarray:
            self.begin()
            sums = [total for block, total in mine._totals.items()]
            exact = np.concatenate([*sums, *mine._places[:, : mine._rows].copy()], dtype=float)
            summed = sum(map(len, sums))
            ranks = [mine._epsilons[block] for block, _ in mine.parts if isinstance(block, Ranks)]

            def measure(difference: np.ndarray) -> None:
                self.spent.epsilon += float(np.abs(difference[:summed]).sum()) / mine._scale
                moved = difference[summed:].reshape(len(ranks), mine._rows) if ranks else np.zeros((0, 0))
                for epsilon, row in zip(ranks, moved, strict=True):
                    self.spent.epsilon += epsilon * int(np.count_nonzero(row))

            found: np.ndarray = self.release(("held", exact.size), exact, real(mine, rng, rows), measure)
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

    def counts(self, real: Any) -> Any:
        def counts(mine: LocalRandomizer, vectors: np.ndarray) -> np.ndarray:
            self.mixed.setdefault(id(mine.params), (mine.params, []))[1].append(np.atleast_2d(vectors).copy())
            found: np.ndarray = real(mine, vectors)
            return found

        return counts

    def mix(self, real: Any) -> Any:
        def sum_of_counts(mine: Analyzer, ones: Any, users: int) -> np.ndarray:
            self.begin()
            exact = np.concatenate([np.zeros((0, mine.params.d)), *self.mixed.pop(id(mine.params), (None, []))[1]])

            def measure(difference: np.ndarray) -> None:
                n = int(np.count_nonzero(difference.any(axis=1)))
                self.spent.rows += n
                self.spent.shared += max(0, n - 1)
                self.spent.epsilon += n * mine.params.budget.epsilon

            found: np.ndarray = self.release(("mixed", exact.shape), exact, real(mine, ones, users), measure)
            return found.copy()

        return sum_of_counts

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        """Let all releases within go through this object."""
        with contextlib.ExitStack() as stack:
            places: list[tuple[Any, str, Callable[[Any], Any]]] = [
                (GridSum, "close", self.grid),
                (PanBatches, "_next_probe", self.probe),
                (HeldPure, "close", self.held),
                (Gaussian, "randomize", self.gaussian),
                (LocalRandomizer, "counts", self.counts),
                (Analyzer, "sum_of_counts", self.mix),
            ]
            for owner, name, wrap in places:
                stack.enter_context(mock.patch.object(owner, name, wrap(getattr(owner, name))))
            yield


@dataclass(frozen=True)
class Case:
    """A combination of features, and how it is run."""

    settings: dict[str, Any]
    cap: str
    every: bool
    shards: int
    seed: int
    interrupted: bool

    def build(self, ledger: Ledger) -> Any:
        """An estimator that has learned nothing."""
        return Definition.model_validate(completed(self.settings)).build_estimator(ledger)


BUDGETS = {"process": "mu=0.5", "shuffler": "eps=1,delta=1e-6", "window": "eps=40,delta=1e-3"}


def case(seed: int) -> Case:
    """A random combination that the configuration allows."""
    rng = np.random.default_rng(seed)
    while True:
        trust = str(rng.choice(["process", "process", "shuffler", "window"]))
        what = str(rng.choice(["model", "statistics", "both"]))
        schema: dict[str, Any] = {"features": {"a": [-1, 1], "g": ["x", "y"]}}
        model: dict[str, Any] = {"trust": trust, "budget": BUDGETS[trust], "seed": int(rng.integers(100))}
        settings: dict[str, Any] = {"schema": schema, "model": model}
        if what != "model":
            kinds = [
                {"mean": "a"},
                {"count": "g"},
                {"quantile": "a", "q": 0.5},
                {"histogram": "a", "edges": [-1, 0, 1]},
            ]
            kinds = [kind for kind in kinds if trust == "window" or "quantile" not in kind]
            chosen = rng.permutation(len(kinds))[: int(rng.integers(1, 3))]
            settings["statistics"] = {f"s{i}": kinds[i] for i in chosen}
        every = what == "statistics" and rng.random() < 0.4
        if what == "statistics":
            if trust == "window":
                model["budget"] = str(rng.choice(["eps=0.5", "mu=0.5"]))
            model["batch_size"] = int(rng.integers(5, 25))
            if every:
                model["every"] = "1 day"
                schema["time"] = {"column": "at", "unit": "seconds"}
        else:
            schema["target"] = {"column": "t", "bounds": [-2, 2]}
            if trust == "window":
                model |= {"window": int(rng.integers(20, 40)), "items_per_user": int(rng.integers(1, 5))}
            else:
                model["batch_size"] = int(rng.integers(5, 25))
            if trust == "process" and rng.random() < 0.3:
                model |= {"change": "follow", "batch_size": int(rng.integers(40, 60))}
            if what == "both":
                model["share"] = 1
            elif rng.random() < 0.5:
                own = trust == "process" and rng.random() < 0.5
                settings["validation"] = {"budget": "mu=0.3"} if own else {"share": float(rng.choice([0.2, 0.4]))}
        spend = parse_budget(model["budget"])
        cap = limit(spend, float(rng.choice([1.0, 2.5, 6.0])))
        if rng.random() < 0.4:
            cap += " per 1 day, late 3 days"
            cap += f", total {limit(spend, 8.0)}" if rng.random() < 0.5 else ""
        found = Case(settings, cap, bool(every), int(rng.choice([1, 1, 2])), seed, rng.random() < 0.3)
        try:
            found.build(ledger_of(cap))
        except (StreamDPError, ValueError):
            continue
        return found


def limit(budget: Any, records: float) -> str:
    """A cap that so many records of a budget reach."""
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


def run(given: Case) -> Outcome:
    """Run a case twice, and compare."""
    rng = np.random.default_rng([given.seed, 1])
    n = int(rng.integers(60, 160))
    who = rng.choice(PEOPLE, n, p=np.array([6, 4, 3, 1, 1, 1]) / 16)
    who = np.where(rng.random(n) < rng.choice([0.0, 0.5]), np.arange(n) + PEOPLE, who)
    days = np.sort(rng.integers(0, 3, n)) if rng.random() < 0.5 else rng.integers(0, 3, n)
    if given.every:
        days = np.sort(days)
    renews = " per " in given.cap
    person, day = int(rng.choice(3)), int(rng.integers(0, 3))
    mine = who == person
    if renews:
        mine &= days == day
    X = np.column_stack([rng.uniform(-1, 1, n), rng.integers(0, 2, n)])
    y = rng.uniform(-2, 2, n)
    times = NOW - (2 - days) * DAY
    transcripts: list[Transcript] = []
    interrupt = frozenset(rng.integers(1, 12, 2).tolist()) if given.interrupted else frozenset[int]()
    calls = plan(rng, n, given.shards)
    ledger: Any = None
    learned = 0
    for side in (1.0, -1.0):
        values, targets = X.copy(), y.copy()
        values[mine, 0], values[mine, 1], targets[mine] = side, (1 - side) / 2, 2 * side
        transcript = Transcript(transcripts[0] if transcripts else None, interrupt=interrupt)
        transcripts.append(transcript)
        ledger = ledger_of(given.cap)
        labels = times.astype(float) if given.every else targets
        with transcript.installed(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            models = [given.build(ledger) for _ in range(given.shards)]
            for kind, shard, begin, end in calls:
                with contextlib.suppress(Interrupted):
                    apply(
                        models,
                        shard,
                        kind,
                        given,
                        ledger,
                        values[begin:end],
                        labels[begin:end],
                        [
                            Dated(f"p{k}", float(at)) if renews else f"p{k}"
                            for k, at in zip(who[begin:end].tolist(), times[begin:end].tolist(), strict=True)
                        ],
                    )
            learned = sum(model.n_seen for model in models)
    found = ledger.spent(f"p{person}", float(NOW - (2 - day) * DAY)) if renews else ledger.spent(f"p{person}")
    return Outcome(transcripts[1].spent, found, len(transcripts[1].releases), learned)


def plan(rng: np.random.Generator, n: int, shards: int) -> list[tuple[str, int, int, int]]:
    """Random calls: rows, single records, ends of batches, and states that are saved and loaded."""
    calls: list[tuple[str, int, int, int]] = []
    done = 0
    while done < n:
        size = int(rng.choice([1, 3, 10, 40]))
        end, shard = min(n, done + size), int(rng.integers(shards))
        calls.append(("one" if size == 1 and rng.random() < 0.5 else "rows", shard, done, end))
        done = end
        if rng.random() < 0.15:
            calls.append((str(rng.choice(["close", "reload"])), int(rng.integers(shards)), 0, 0))
    calls += [("close", shard, 0, 0) for shard in range(shards)]
    return calls


def apply(
    models: list[Any], shard: int, kind: str, given: Case, ledger: Ledger, X: np.ndarray, y: np.ndarray, people: Any
) -> None:
    """Make one call."""
    model = models[shard]
    if kind == "rows":
        model.learn_encoded(X, y, None, people)
    elif kind == "one":
        x = {"a": float(X[0, 0]), "g": "y" if X[0, 1] else "x"}
        model.learn_one(x, float(y[0]), subject=people[0])
    elif kind == "close":
        model.close_batch()
    elif model.at_boundary and model.n_seen:
        models[shard] = new = given.build(ledger)
        new.load_state_dict(model.state_dict())


def excess(given: Case, outcome: Outcome) -> float:
    """By which factor a person has spent more than the ledger has charged: at most 1 if all is well."""
    seen, charged = outcome.seen, outcome.charged
    budget = parse_budget(given.settings["model"]["budget"])
    if isinstance(budget, PureDP):
        return ratio(seen.epsilon, charged.epsilon or (charged.pure_mu_squared and np.inf))
    if given.settings["model"]["trust"] == "shuffler":
        return np.inf if seen.shared else ratio(seen.epsilon, charged.epsilon)
    if isinstance(budget, ApproxDP):
        return ratio(seen.mu_squared, charged.records * GaussianDP.from_approx(budget).mu ** 2)
    return ratio(seen.mu_squared, charged.mu_squared)


def ratio(seen: float, charged: float) -> float:
    """Their quotient; 0 of nothing."""
    return seen / charged if charged else (np.inf if seen else 0.0)
