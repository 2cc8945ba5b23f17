"""What else could learn better from local reports, and what does not. Run with `python -m benchmarks.beyond [--write]`.

Each section is one idea, beside the default, the best constant and no privacy; 12 draws, the same seeds for each idea:

* many, more: d = 20, 50 and 100, 10,000 and 100,000 records, beside the steps before (T_0 = 10, D = sqrt(d)), and
  with shrinkage of the answer;
* tables, flights: the steps before and now on real tables;
* huber: the c of Huber's loss;
* rotations: columns that are not correlated, by correlations that are known for nothing;
* reports: a block of coordinates a report, one-hot blocks, and direction and magnitude apart, on columns that are
  standardised beforehand. Noise is normal with the second moment of PrivUnit; all draws learn side by side.

Noise comes from seeded generators, which are for measuring only. A quarter of an hour of one core.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import expit

from benchmarks.learning import Flights
from benchmarks.pages import mean_and_error, pm, table, write
from benchmarks.real_data import JOBS, RealData
from benchmarks.simulation import SIGMA, Simulation
from streamdp import LDPASGDClassifier, LDPASGDRegressor
from streamdp.optim import frame, loops
from streamdp.optim.losses import Huber, Logistic
from streamdp.optim.moderation import noise_at
from streamdp.optim.steps import Steps
from streamdp.privacy.guarantees import PureDP
from streamdp.privacy.mechanisms import PrivUnit

DRAWS = 12
SHAPES = (0.3, 0.5, 0.8, 1.345, 2.0)
"""Of Huber's loss: c."""
PAGE = Path(__file__).with_suffix(".md")
HEAD = "# Beyond: what was tried for local reports\n\n`python -m benchmarks.beyond --write` writes this page."


# --- estimators ---------------------------------------------------------------------------------------------


def simulated(loss: str, d: int, budget: str, seed: int) -> Any:
    """The default estimator; a regressor knows that targets lie within four spreads of their mean."""
    names = [f"x{j}" for j in range(d)]
    if loss == "logistic":
        return LDPASGDClassifier(features=names, budget=budget, seed=seed)
    half = 4 * math.hypot(math.sqrt(d), SIGMA)
    return LDPASGDRegressor(features=names, budget=budget, seed=seed, target=(1 - half, 1 + half))


def earlier(model: Any) -> Any:
    """The model with the steps before: T_0 = 10, and D = sqrt(d) for classes."""
    spec, d = model.learner.arrays.spec, model.learner.arrays.state.shape[1]
    distance = math.sqrt(2 if model._index is None else d)
    spec[[loops.FACTOR, loops.DECAY, loops.OFFSET]] = Steps().numbers(distance, model.learner.problem.loss.bound, 2.5)
    return model


def shrunk(model: Any) -> np.ndarray:
    """Theta with coefficients b times max(0, 1 - (p - 2) v/|b|^2), in learned units; v is the public noise variance.

    The curvature is that of `moderation`, for Huber's loss that of normal columns and its own scale.
    """
    arrays, p = model.learner.arrays, len(model._names)
    theta, d, bound = np.empty(arrays.state.shape[1]), arrays.state.shape[1], model.learner.problem.loss.bound
    frame.inward(arrays, arrays.state[1], theta)
    factor, alpha, offset = arrays.spec[[loops.FACTOR, loops.DECAY, loops.OFFSET]].tolist()
    relative = 0.15
    if isinstance(model.learner.problem.loss, Huber):
        relative = math.sqrt(2) * math.erf(model.learner.problem.loss.c / math.sqrt(2)) / (theta[-1] * bound)
    # `noise_at` has the curvature 0.15. Another one is another unit of the steps.
    steps = (factor * bound / math.sqrt(d) * relative / 0.15, alpha, offset)
    variance = noise_at(steps, float(arrays.clock[frame.TOTAL]), True).variance * (0.15 / relative) ** 2
    theta[:p] *= max(0.0, 1 - (p - 2) * variance / float(theta[:p] @ theta[:p]))
    return model.learner.original(theta)


def many(n: int) -> Iterator[list[str]]:
    """Rows of excess losses for many columns."""
    for loss in ("huber", "logistic"):
        for d in (20, 50, 100):
            simulation = Simulation(loss, d)
            found: dict[tuple[str, str], list[float]] = {}
            for draw in range(DRAWS):
                X, y = simulation.draw(n, 100 + draw)
                for budget in ("eps=1", "eps=4"):
                    old, new = earlier(simulated(loss, d, budget, draw)), simulated(loss, d, budget, draw)
                    for model in (old, new):
                        model.learn_arrays(X, y)
                    for name, theta in (("old", old.theta), ("new", new.theta), ("shrunk", shrunk(new))):
                        found.setdefault((budget, name), []).append(simulation.excess(theta))
                if draw == 0:
                    public = simulation.excess(simulation.public(X, y))
            for budget in ("eps=1", "eps=4"):
                cells = [pm(mean_and_error(np.array(found[budget, name])), 3) for name in ("old", "new", "shrunk")]
                cells.insert(2, f"{max(found[budget, 'new']):.3f}")
                row = [loss, str(d), budget, f"{n:,}", *cells, f"{simulation.constant:.3f}", f"{public:.4f}"]
                print(" | ".join(row), flush=True)
                yield row


def many_section(n: int) -> str:
    """The table of many columns, with its heading."""
    head = ["loss", "columns", "budget", "records", "steps before", "default", "its worst", "shrunk", "constant"]
    return (
        f"## Many columns, {n:,} records\n\nExcess loss of the simulations of Shi et al. 2025, 12 draws. The default "
        "has T_0 = 4 d, and for classes T_0 = 8 d and D of at most 4 (`streamdp.optim.steps`); before, T_0 was 10 and "
        'D was sqrt(d). "Shrunk" is the default with its coefficients times 1 - (p - 2) v/|b|², v being the public '
        "variance of the noise. Huber's targets are declared to lie within four spreads of their mean.\n\n"
        f"{table([*head, 'no privacy'], many(n))}"
    )


def scores(
    data: Any, budget: str, make: Callable[[Any], Any], records: int | None = None, **options: Any
) -> np.ndarray:
    """The score of each draw."""
    found = []
    for seed in range(DRAWS):
        if isinstance(data, Flights):
            model = data.model(budget).clone({"seed": seed, **options})
        elif data.classes:
            model = LDPASGDClassifier(features=data.features, classes=data.classes, budget=budget, seed=seed, **options)
        else:
            model = LDPASGDRegressor(features=data.features, target=data.bounds, budget=budget, seed=seed, **options)
        make(model).learn_arrays(data.X[:records], data.y[:records])
        found.append(data.score(model.predict_arrays(data.holdout)))
    return np.array(found)


def tables(cases: list[tuple[Any, str, int | None]]) -> Iterator[list[str]]:
    """Rows of the steps before and now on real tables."""
    for data, job, records in cases:
        for budget in ("eps=1", "eps=4"):
            old, new = scores(data, budget, earlier, records), scores(data, budget, lambda model: model, records)
            worst = new.min() if _classes(data) else new.max()
            gain, error = mean_and_error(new - old)
            cells = [f"{old.mean():.4g}", f"{new.mean():.4g}", f"{gain:+.3g} ± {error:.1g}", f"{worst:.4g}"]
            kept = [f"{data.constant():.4g}", f"{data.without_privacy():.4g}"]
            row = [job, f"{records or len(data.y):,}", str(data.X.shape[1]), budget, *cells, *kept]
            print(" | ".join(row), flush=True)
            yield row


def _classes(data: Any) -> bool:
    return data.target is None if isinstance(data, Flights) else bool(data.classes)


def tables_section(title: str, cases: list[tuple[Any, str, int | None]]) -> str:
    """The table of real tables, with its heading."""
    head = ["target", "records", "columns", "budget", "steps before", "default", "difference", "worst", "constant"]
    return (
        f"## {title}\n\nMean absolute error, or accuracy in percent for classes: the data of "
        "[learning.md](learning.md), "
        "nothing declared but schema and budget. The difference is paired by seed.\n\n"
        f"{table([*head, 'no privacy'], tables(cases))}"
    )


def real_section() -> str:
    """The steps before and now on the tables of `real_data`."""
    return tables_section("Real tables", [(RealData(job), job, None) for job in JOBS])


def flights_section() -> str:
    """The steps before and now on flights."""
    jobs = [(Flights(job), f"flights: {job}") for job in ("delay", "late")]
    return tables_section("Flights", [(*job, records) for job in jobs for records in (10_000, None)])


def huber() -> Iterator[list[str]]:
    """Rows of mean absolute errors by c."""
    for job in ("hours a week that a wife works", "visits to a doctor in a year"):
        data = RealData(job)
        for budget in ("eps=1", "eps=4"):
            found = [scores(data, budget, lambda model: model, loss=Huber(c=c)) for c in SHAPES]
            row = [job, f"{len(data.y):,}", budget, *(f"{f.mean():.4g} ({f.max():.4g})" for f in found)]
            yield [*row, f"{data.constant():.4g}", f"{data.without_privacy():.4g}"]
    for d, n in ((5, 10_000), (20, 10_000)):
        simulation = Simulation("huber", d)
        for budget in ("eps=1", "eps=4"):
            cells = []
            for c in SHAPES:
                errors, wrong = [], []
                for draw in range(DRAWS):
                    model = simulated("huber", d, budget, draw).clone({"loss": Huber(c=c)})
                    model.learn_arrays(*simulation.draw(n, 100 + draw))
                    errors.append(math.hypot(*(model.theta - simulation.truth)[:-1]))
                    wrong.append(abs(model.theta[-1] / SIGMA - 1))
                cells.append(f"{np.mean(errors):.2f}, scale off by {100 * np.mean(wrong):.0f} %")
            row = [f"simulated, {d} columns: distance to theta*", f"{n:,}", budget, *cells, f"{math.sqrt(d):.2f}", ""]
            print(" | ".join(row), flush=True)
            yield row


def huber_section() -> str:
    """The table of c, with its heading."""
    head = ["target", "records", "budget", *(f"c = {c}" for c in SHAPES), "constant", "no privacy"]
    return (
        "## Huber's c\n\nMean absolute error, and in parentheses the worst of 12 draws. The default is 1.345. Small c "
        "makes reports of nearly equal length, as if only the direction were reported.\n\n" + table(head, huber())
    )


def rotated(data: RealData, budget: str, ridge: float | None) -> np.ndarray:
    """The score of each draw, learned from columns (and target) that are standardised by all of the records.

    With a ridge they are multiplied by (C + ridge)^(-1/2) (1 + ridge)^(1/2) too, C being their correlations.
    """
    centre, spread = data.X.mean(axis=0), np.maximum(data.X.std(axis=0), 1e-9)
    X, holdout = (data.X - centre) / spread, (data.holdout - centre) / spread
    if ridge is not None:
        values, basis = np.linalg.eigh(np.cov(X.T))
        turn = basis * np.sqrt((1 + ridge) / (values + ridge)) @ basis.T
        X, holdout = X @ turn, holdout @ turn
    names, given = [f"x{j}" for j in range(X.shape[1])], {"budget": budget, "scaling": "none"}
    middle, size = (0.0, 1.0) if data.bounds is None else (float(np.median(data.y)), float(data.y.std()))
    found = []
    for seed in range(DRAWS):
        model: Any
        if data.bounds is None:
            assert data.classes is not None
            model = LDPASGDClassifier(features=names, classes=data.classes, seed=seed, **given)
        else:
            low, high = data.bounds
            target = (low - middle) / size, (high - middle) / size
            model = LDPASGDRegressor(features=names, target=target, seed=seed, **given)
        model.learn_arrays(X, (data.y - middle) / size)
        found.append(data.score(model.predict_arrays(holdout) * size + middle))
    return np.array(found)


def rotations() -> Iterator[list[str]]:
    """Rows of scores by what is known of the columns."""
    for job in JOBS:
        data = RealData(job)
        for budget in ("eps=1", "eps=4"):
            ways = [np.array([data.learned(budget, seed) for seed in range(DRAWS)])]
            ways += [rotated(data, budget, ridge) for ridge in (None, 0.1, 0.3)]
            cells = [f"{found.mean():.4g} ({(found.min() if data.classes else found.max()):.4g})" for found in ways]
            row = [job, budget, *cells, f"{data.constant():.4g}", f"{data.without_privacy():.4g}"]
            print(" | ".join(row), flush=True)
            yield row


def rotations_section() -> str:
    """The table of rotations, with its heading."""
    head = ["target", "budget", "default", "centres and spreads", "and correlations", "with ridge .3"]
    return (
        "## Rotations\n\nMean absolute error, or accuracy in percent for classes, and the worst of 12 draws in "
        "parentheses. The default finds centres and scales privately. The other learners know those of all records for "
        "nothing. The last two know the correlations C as well: their columns are multiplied by (C + ridge)^(-1/2), "
        "with a ridge of .1 and .3. A private estimate of C would take records and be less exact, so this is more than "
        "it could gain.\n\n" + table([*head, "constant", "no privacy"], rotations())
    )


# --- other reports ------------------------------------------------------------------------------------------


def factor_of(epsilon: float, d: int) -> float:
    """1/m: the length of PrivUnit's answer about a vector of length 1."""
    return math.sqrt(PrivUnit(PureDP(epsilon), 1.0, 2.0).variance(d) + 1)


def answers(X: np.ndarray, y: np.ndarray, epsilon: float, blocks: list[np.ndarray], apart: bool = False) -> np.ndarray:
    """The averages (draws, d) of logistic LDP-ASGD from X (n, draws, d) with the intercept's 1, and y (n, draws).

    A record reports the gradient in one of the blocks of coordinates, drawn evenly, with the weight min(1, sqrt(2)/|x|)
    of its part x, times the number of blocks. One block is the default's report. With `apart`, half of epsilon pays for
    the direction, and half for a bit that is 1 with the probability |gradient|/C0.
    """
    n, draws, d = X.shape
    rng, bound, many = np.random.default_rng(0), Logistic().bound, len(blocks)
    lengths = np.array([factor_of(epsilon / (1 + apart), max(2, len(block))) for block in blocks])
    square, keep = float(np.mean(lengths**2)), float(expit(epsilon / 2))
    bits = np.array([keep - 1, keep]) / (2 * keep - 1)
    if apart:
        square *= float(np.mean(bits**2))
    tau = 1 / (many * square * many)
    numbers = Steps().numbers(min(math.sqrt(d), 4.0), bound, d / many)
    theta, mean, weights = np.zeros((draws, d)), np.zeros((draws, d)), 0.0
    for i in range(n):
        which = int(rng.integers(many))
        block = blocks[which]
        part = X[i][:, block]
        size = np.linalg.norm(part, axis=1)
        derivative = expit(np.einsum("rj,rj->r", X[i], theta)) - y[i]
        long = derivative * np.minimum(size, math.sqrt(2))
        unit = part / np.maximum(size, 1e-12)[:, None]
        length, noise = lengths[which], rng.standard_normal((draws, len(block))) / math.sqrt(len(block))
        if apart:
            told = (rng.random(draws) < np.abs(long) / bound) == (rng.random(draws) < keep)
            toward = unit * np.sign(long)[:, None] + noise * math.sqrt(length**2 - 1)
            report = bound * toward * bits[told.astype(int)][:, None]
        else:
            report = long[:, None] * unit + bound * noise * np.sqrt(length**2 - (long / bound) ** 2)[:, None]
        total = tau * (i + 1)
        theta[:, block] -= numbers[0] * tau * (total + numbers[2]) ** -numbers[1] * many * report
        weight = tau * math.sqrt(total)
        weights += weight
        mean += weight / weights * (theta - mean)
    return mean


def split(d: int, size: int) -> list[np.ndarray]:
    """Blocks of about equal size, of coordinates in a fixed random order."""
    return list(np.array_split(np.random.default_rng(1).permutation(d), -(-d // size)))


def wives() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, list[np.ndarray]]:
    """Records, classes, holdout and its classes of a table, numbers standardised; and its one-hot blocks."""
    data = RealData("is a wife insured by her job?")
    ends = np.cumsum([len(v) - 1 if isinstance(v, list) else 1 for v in data.features.values()])
    groups = np.split(np.arange(ends[-1]), ends[:-1])
    numbers = np.concatenate([group for group in groups if len(group) == 1])
    centre, scale = data.X[:, numbers].mean(axis=0), data.X[:, numbers].std(axis=0)
    X, holdout = data.X.copy(), data.holdout.copy()
    for rows in (X, holdout):
        rows[:, numbers] = (rows[:, numbers] - centre) / scale
    hot = [np.append(numbers, ends[-1]), *(group for group in groups if len(group) > 1)]
    return X, data.y, holdout, data.truth, hot


def reports() -> Iterator[list[str]]:
    """Rows of other reports."""
    n, d = 10_000, 20
    simulation = Simulation("logistic", d)
    drawn = [simulation.draw(n, 100 + draw) for draw in range(DRAWS)]
    X = np.stack([np.column_stack([X, np.ones(n)]) for X, _ in drawn], axis=1)
    y = np.stack([y for _, y in drawn], axis=1)
    for epsilon in (1.0, 4.0):
        ways = _ways(X, y, epsilon, None)
        cells = [pm(mean_and_error(np.array([simulation.excess(theta) for theta in found])), 3) for found in ways]
        name = f"simulated, excess loss, {d} columns"
        yield [name, f"{n:,}", f"eps={epsilon:g}", *cells, "", f"{simulation.constant:.3f}"]
    records, classes, holdout, truth, hot = wives()
    orders = np.stack([np.random.default_rng(draw).permutation(len(records))[:n] for draw in range(DRAWS)], axis=1)
    X = np.concatenate([records[orders], np.ones((n, DRAWS, 1))], axis=2)
    share = 100 * float(np.mean((truth == 1) == (classes.mean() > 0.5)))
    for epsilon in (1.0, 4.0):
        cells = []
        for found in _ways(X, classes[orders], epsilon, hot):
            predicted = holdout @ found[:, :-1].T + found[:, -1] > 0
            cells.append(pm(mean_and_error(100 * np.mean(predicted == (truth == 1)[:, None], axis=0)), 1))
        name = f"is a wife insured by her job? Accuracy, {holdout.shape[1]} columns"
        yield [name, f"{n:,}", f"eps={epsilon:g}", *cells, f"{share:.1f}"]


def _ways(X: np.ndarray, y: np.ndarray, epsilon: float, hot: list[np.ndarray] | None) -> Iterator[np.ndarray]:
    d = X.shape[2]
    yield answers(X, y, epsilon, [np.arange(d)])
    yield answers(X, y, epsilon, [np.arange(d)], apart=True)
    for parts in (2, 5):
        yield answers(X, y, epsilon, split(d, -(-d // parts)))
    if hot is not None:
        yield answers(X, y, epsilon, hot)


def reports_section() -> str:
    """The table of other reports, with its heading."""
    ways = ["whole gradient", "direction and magnitude apart", "one of 2 blocks", "one of 5 blocks", "one-hot blocks"]
    return (
        '## Other reports\n\nLogistic LDP-ASGD with columns standardised beforehand, 12 draws. "One of k blocks": a '
        "record reports the gradient in one random block of coordinates with all of its budget, times k, with the "
        'weight of its part of x. "One-hot blocks": each category is a block, and numbers and intercept are one.\n\n'
        f"{table(['data', 'records', 'budget', *ways, 'constant'], reports())}"
    )


SECTIONS: dict[str, Callable[[], str]] = {
    "many": partial(many_section, 10_000),
    "more": partial(many_section, 100_000),
    "tables": real_section,
    "flights": flights_section,
    "huber": huber_section,
    "rotations": rotations_section,
    "reports": reports_section,
}


def main() -> None:
    """Measure, print, and with --write save each section when it is measured."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.beyond", description="Measure further ideas.")
    parser.add_argument("--write", action="store_true", help="replace the sections in beyond.md")
    parser.add_argument("--only", choices=SECTIONS, help="run one section")
    given = parser.parse_args()
    for name, make in SECTIONS.items():
        if given.only in (None, name):
            section = make()
            if given.write:
                write(section, HEAD, PAGE)


if __name__ == "__main__":
    main()
