"""How well LDP-ASGD learns, over many draws. Run with `python -m benchmarks.learning [--only PART] [--write]`.

The page has the questions and how they are measured; most noise is from the operating system. The whole takes about
three quarters of an hour on two cores; `--quick` runs a tenth of the draws, and `--only intervals` one table.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import product
from multiprocessing import get_context
from typing import Any

import numpy as np
from scipy.optimize import root
from scipy.special import expit

from benchmarks.shared.flights import JOBS, Flights
from benchmarks.shared.pages import command, mean_and_error, pm, table
from benchmarks.shared.real_data import JOBS as REAL_JOBS
from benchmarks.shared.real_data import RealData
from benchmarks.shared.simulation import SIGMA, Simulation
from streamdp import LDPASGDClassifier, LDPASGDRegressor
from streamdp.optim import loops
from streamdp.optim.losses import Huber, Logistic
from streamdp.optim.planner import asymptotic_variance
from streamdp.optim.steps import Steps
from streamdp.scaling import unit_table as k

DRAWS, SIMULATED, RUNS = 12, 60, 100
WIDE = 30.0  # bounds of columns that are normal with a standard deviation of 1; those of the target are four times this
SCALED = {
    "private": "ten times too wide, private scaling",
    "known": "columns and target standardised before, no scaling",
}
# --- flights ------------------------------------------------------------------------------------------------


def flights(share: float) -> Iterator[list[str]]:
    """Rows of the table of flights."""
    cases = [("mixed", "eps=1", True, None), ("eps=1", "eps=1", False, None), ("eps=4", "eps=4", False, None)]
    few = [("eps=1, 3,000 records", "eps=1", False, 3000), ("eps=1, 10,000 records", "eps=1", False, 10_000)]
    for job in JOBS:
        data = Flights(job)
        plain, constant = data.without_privacy(), data.constant()
        for name, budget, mixed, records in cases + few:
            found = np.array([data.learned(budget, mixed, records) for _ in range(max(2, int(share * DRAWS)))])
            worst = found.min() if data.target is None else found.max()
            yield [job, name, f"{found.mean():.2f}", f"{worst:.2f}", f"{plain:.2f}", f"{constant:.2f}"]


def real(share: float) -> Iterator[list[str]]:
    """Rows of the table of other real data."""
    for job in REAL_JOBS:
        data = RealData(job)
        plain, constant = data.without_privacy(), data.constant()
        digits = 3 if constant < 3 else 2
        for budget in ("eps=1", "eps=4", "eps=8"):
            found = data.sign * np.array([data.learned(budget) for _ in range(max(2, int(share * DRAWS)))])
            better = f"{np.count_nonzero(found > data.sign * constant)} of {len(found)}"
            scores = (data.sign * found.mean(), data.sign * found.min(), plain, constant)
            size = [f"{len(data.y):,}", str(data.X.shape[1])]
            yield [job, *size, budget, *(f"{score:.{digits}f}" for score in scores), better]


def worse_than_constant(share: float) -> str:
    """How many of many runs of the demo's jobs end worse than the best constant."""
    runs, out = max(2, int(share * RUNS)), []
    for job in ("delay", "late"):
        data = Flights(job)
        sign = 1 if data.target is None else -1
        found = np.array([data.learned("eps=1", True) for _ in range(runs)])
        worse = int(np.count_nonzero(sign * found < sign * data.constant()))
        out.append(f"{job}: {worse} of {runs} (worst {(sign * (sign * found).min()):.2f})")
    return "; ".join(out)


# --- simulations --------------------------------------------------------------------------------------------


def learner(loss: str, d: int, budget: str, bounds: float | None, seed: int | None = None) -> Any:
    """An estimator of plain columns, or with private scaling of columns in [-bounds, bounds]."""
    names = [f"x{j}" for j in range(d)]
    features: Any = names if bounds is None else dict.fromkeys(names, (-bounds, bounds))
    if loss == "logistic":
        return LDPASGDClassifier(features=features, budget=budget, seed=seed)
    target = None if bounds is None else (-4 * bounds, 4 * bounds)
    return LDPASGDRegressor(features=features, target=target, budget=budget, seed=seed)


def information_bound(d: int, epsilon: float) -> float:
    """A lower bound of n E|b - b*|^2 for unbiased estimates of coefficients and intercept b from epsilon-LDP answers.

    It holds for all mechanisms and questions, with a known normal law of the noise. S = (x, 1) z / SIGMA is the score,
    z the normal noise of the target. An answer y that record X gives with probability q(y|X) in [l, l e^epsilon] has
    the mean score E[S q]/E[q]. Its length is at most R = max over unit u and t of a E[U 1{U > t}] / (1 + a P(U > t)),
    U = u'S, a = e^epsilon - 1, because E S = 0 and the best q is l e^epsilon on a half-space and l elsewhere. So the
    Fisher information of an answer has a trace of at most R^2, and the error is at least (d + 1)^2 / (n R^2).
    """
    rng, a, best = np.random.default_rng(0), np.expm1(epsilon), 0.0
    x, z = rng.standard_normal((2, 1_000_000))
    counts = np.arange(1, len(x) + 1)
    for angle in np.linspace(0, np.pi / 2, 7):  # u'(x, 1) has the law of cos x + sin
        U = -np.sort(-(np.cos(angle) * x + np.sin(angle)) * z / SIGMA)
        best = max(best, float((a * np.cumsum(U) / (len(U) + a * counts)).max()))
    return (d + 1) ** 2 / best**2


def estimate(loss: str, d: int, budget: str, how: str, X: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Theta in original units. `how` is a key of `SCALED`, or "plain": no bounds, columns and target as they are."""
    if how == "private":
        model = learner(loss, d, budget, WIDE)
        model.learn_encoded(X / WIDE, y)
        return model.theta
    centre, scale = (1.0, float(np.sqrt(d + SIGMA**2))) if how == "known" else (0.0, 1.0)
    model = learner(loss, d, budget, None)
    model.learn_encoded(X, (y - centre) / scale)
    theta = model.theta * scale
    theta[d] += centre
    return theta


def errors(share: float) -> Iterator[list[str]]:
    """Rows of n MSE / tr V."""
    cases = [("huber", 5, "eps=1"), ("huber", 5, "mu=1"), ("huber", 20, "eps=4"), ("logistic", 5, "eps=1")]
    wide = [("huber", 5, "eps=4"), ("huber", 5, "eps=1"), ("huber", 20, "eps=4")]
    n = 100_000
    for (loss, d, budget), how in [
        *((case, "plain") for case in [*cases, ("logistic", 20, "eps=4")]),
        *product(wide, SCALED),
    ]:
        kind = Huber if loss == "huber" else Logistic
        traces = [float(np.trace(asymptotic_variance(kind(weighting=w), d, budget))) for w in ("mallows", "norm")]
        simulation, found = Simulation(loss, d), []
        for draw in range(max(2, int(share * SIMULATED))):
            theta = estimate(loss, d, budget, how, *simulation.draw(n, 100 + draw))
            found.append(n * float(np.sum((theta - simulation.truth) ** 2)) / traces[0])
        mean, error = np.mean(found), np.std(found) / len(found) ** 0.5
        least = relative = ""
        if loss == "huber":
            relative = f"{mean / (d + SIGMA**2):.3f}"
            if budget.startswith("eps="):
                least = f"{information_bound(d, float(budget[4:])) / traces[0]:.3f}"
        said = SCALED.get(how, "as they are")
        measured = [f"{mean:.2f} ± {error:.2f}", relative, f"{traces[1] / traces[0]:.2f}", least]
        yield [loss, str(d), budget, said, *measured]


def priced(how: str, loss: str, d: int, budget: str, X: np.ndarray, y: np.ndarray, seed: int) -> Any:
    """A model of normal columns within three spreads of their centres, and of a target that is as well scaled.

    `how` is "private", "known": centres and spreads are the true ones, and no record is asked about them, or "told":
    they are the true ones at first, and records are asked about columns.
    """
    spread = float(np.sqrt(d + SIGMA**2))
    column: Any = {"bounds": (-3.0, 3.0), "typical": (0.0, 1.0)} if how == "known" else (-3.0, 3.0)
    options: dict[str, Any] = {"features": {f"x{j}": column for j in range(d)}, "budget": budget, "seed": seed}
    options["scaling"] = "declared" if how == "known" else "private"
    if loss == "logistic":
        model: Any = LDPASGDClassifier(**options)
    else:
        model = LDPASGDRegressor(**options, target=(1 - 3 * spread, 1 + 3 * spread))
        if how != "private":
            model.learner.arrays.units.table[-1, [k.CENTRE, k.SCALE]] = 1.0, spread
            model.learner.arrays.units.progress[k.TARGET] = k.DONE
    if how == "told":
        model.learner.arrays.units.table[:-1, [k.SCALE, k.RESTARTED]] = 1 / 3
    k.refresh(model.learner.arrays.units)
    model.learn_encoded(np.clip(X / 3, -1, 1), y)
    return model


def missed(simulation: Simulation, theta: np.ndarray) -> float:
    """The share of what the columns explain that a model misses: of the target's variance, or of the log loss."""
    if simulation.loss == "logistic":
        return simulation.excess(theta) / simulation.constant
    d = simulation.d
    return float(np.sum((theta - simulation.truth)[: d + 1] ** 2)) / d


def price(share: float) -> Iterator[list[str]]:
    """Rows of the price of private scaling."""
    for loss, d, epsilon, n in product(("huber", "logistic"), (5, 20), (1, 4), (1_000, 3_000, 10_000, 100_000)):
        simulation, budget, found, bits = Simulation(loss, d), f"eps={epsilon}", [], 0
        for draw in range(max(2, int(share * 80))):
            X, y = simulation.draw(n, 100 + draw)
            private, known, told = (priced(how, loss, d, budget, X, y, draw) for how in ("private", "known", "told"))
            asked, centre, spread = private.n_asked, 0.0, 1.0
            fewer = priced("known", loss, d, budget, X[asked:], y[asked:], draw)
            if loss == "huber":
                centre, spread = 1.0, float(np.sqrt(d + SIGMA**2))
            plain = learner(loss, d, budget, None, draw)
            plain.learn_encoded(X, (y - centre) / spread)
            theta = plain.theta * spread
            theta[d] += centre
            thetas = [known.theta, private.theta, fewer.theta, told.theta, theta]
            found.append([missed(simulation, one) for one in thetas])
            bits += asked
        errors = np.array(found)
        cells = [f"{errors[:, i].mean():.4f}" for i in (0, 1)]
        for i, base in ((1, 0), (2, 0), (3, 0), (1, 4)):
            more = (errors[:, i] - errors[:, base]) / errors[:, base].mean()
            cells.append(f"{100 * more.mean():+.0f} ± {100 * more.std() / len(more) ** 0.5:.0f} %")
        yield [loss, str(d), budget, f"{n:,}", f"{bits / len(found):,.0f}", *cells]


def optimum(model: Any, X: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Where the mean gradient of the records is zero, in original units."""
    arrays, p = model.learner.arrays, X.shape[1]
    columns, target, theta = arrays.units.table[:p], arrays.units.table[p], model.learner.average_in_units()
    scaled = (X - columns[:, k.CENTRE]) / columns[:, k.SCALE]
    bounded = np.clip(y, target[k.ORIGIN] - target[k.UNIT], target[k.ORIGIN] + target[k.UNIT])
    gradients = np.empty((len(X), len(theta)))

    def mean(at: np.ndarray) -> np.ndarray:
        loops.gradients(arrays.spec, at, scaled, (bounded - target[k.CENTRE]) / target[k.SCALE], gradients)
        return gradients.mean(axis=0)

    found = root(mean, theta, options={"xtol": 1e-6})
    assert found.success
    return np.asarray(model.learner.units.outward(found.x))


def correlated(columns: str, d: int) -> np.ndarray:
    """The correlations (d, d) of `columns`.

    "pair .9" is that of the first two, "equal .7" that of all, and "factor" has loads from .3 to .9; empty is none.
    With "pair -.9" theta*, which is all ones, has a part along the slow direction.
    """
    kind, _, rho = columns.partition(" ")
    if kind == "pair":
        found = np.eye(d)
        found[:2, :2] = float(rho)
    else:
        loads = np.linspace(0.3, 0.9, d) if kind == "factor" else np.full(d, float(rho or 0) ** 0.5)
        found = np.outer(loads, loads)
    np.fill_diagonal(found, 1.0)
    return found


def drawn(loss: str, d: int, columns: str, n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """n records of the simulations, with correlated columns."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, d)) @ np.linalg.cholesky(correlated(columns, d)).T
    u = 1 + X.sum(axis=1)
    return X, u + SIGMA * rng.standard_normal(n) if loss == "huber" else (rng.random(n) < expit(u)).astype(float)


def covered(
    loss: str,
    d: int,
    budget: str,
    bounds: float | None,
    n: int,
    columns: str,
    draws: int,
    seeded: bool = False,
) -> tuple[float, float, float, float]:
    """As `judged`, for intervals of draws of n records, of which only the first two parameters count for a pair.

    "mixed" budgets are eps = 1, 2 or 4; columns are scaled privately in [-bounds, bounds], or not at all; `columns` are
    those of `correlated`. If `seeded`, the noise is the same in every run.
    """
    truth = Simulation(loss, d).truth[: 2 if columns.startswith("pair") else None]
    limits = np.empty((draws, len(truth), 2))
    for draw in range(draws):
        X, y = drawn(loss, d, columns, n, 500 + draw)
        model = learner(loss, d, "eps=1" if budget == "mixed" else budget, bounds, draw if seeded else None)
        amounts = np.random.default_rng(draw).choice([1.0, 2.0, 4.0], n) if budget == "mixed" else None
        model.learn_encoded(X if bounds is None else np.clip(X / bounds, -1, 1), y, amounts)
        limits[draw] = model.interval()[: len(truth)]
    return judged(limits, np.broadcast_to(truth, limits.shape[:2]))


def judged(limits: np.ndarray, truths: np.ndarray) -> tuple[float, float, float, float]:
    """The share of the settled 95 % intervals that cover theta*, its standard error, their width, the share settled.

    `limits` are (draws, d, 2). The first three are NaN if none is settled. Intervals of one draw are not independent:
    the error is that of the mean over draws. The width is the standard error of the middle interval, which is its
    length over 2 times 1.96, over the root of the mean squared error of the intervals' middles: that of all parameters
    together.
    """
    low, high = limits[:, :, 0], limits[:, :, 1]
    hits = np.count_nonzero((low <= truths) & (truths <= high), axis=1)
    counts = np.count_nonzero(~np.isnan(low), axis=1)
    if not counts.any():
        return float("nan"), float("nan"), float("nan"), 0.0
    share = float(hits.sum() / counts.sum())
    error = float(np.sqrt(np.sum((hits - share * counts) ** 2)) / counts.sum())
    halves, offs = np.ma.masked_invalid((high - low) / 2), np.ma.masked_invalid((low + high) / 2 - truths)
    ratios = halves / np.ma.sqrt(np.ma.mean(offs**2, axis=0))
    return share, error, float(np.ma.median(ratios)) / 1.96, float(counts.mean()) / truths.shape[1]


def coverage(share: float) -> Iterator[list[str]]:
    """Rows of the share of intervals that cover theta*."""
    both, strong = ("huber", "logistic"), ("eps=1", "eps=4")
    many = product(both, (5, 10), ("eps=1", "eps=4", "mu=1", "mixed"), (None, 3.0), (100_000,), ("",))
    more = product(both, (5, 10), strong, (None,), (300_000, 1_000_000), ("",))
    slow = ("pair -.5", "pair -.7", "pair -.9", "pair -.95")
    pairs = product(both, (10,), strong, (None,), (100_000,), ("pair .5", "pair .7", "pair .9", "pair .95", *slow))
    early = product(both, (10,), ("eps=4",), (None,), (30_000,), ("", "pair .7", "pair .9", "pair -.7", "pair -.9"))
    later = product(("huber",), (10,), ("eps=4",), (None,), (1_000_000,), ("pair .7", "pair .9"))
    scaled = product(both, (10,), ("eps=4",), (3.0,), (100_000,), ("pair .7", "pair .9", "factor"))
    others = [
        (loss, d, e, None, 100_000, c) for loss, (d, c), e in product(both, ((5, "equal .7"), (10, "factor")), strong)
    ]
    draws = {(None, 30_000): 50, (None, 100_000): 50, (3.0, 100_000): 40, (None, 300_000): 16, (None, 1_000_000): 8}
    cases = [
        (*case, max(4, int(share * draws[case[3:5]])))
        for case in [*many, *more, *pairs, *early, *later, *scaled, *others]
    ]
    with ProcessPoolExecutor(2, get_context("spawn")) as pool:
        for case, found in zip(cases, pool.map(covered, *zip(*cases, strict=True)), strict=True):
            loss, d, budget, bounds, n, columns, count = case
            scaling = "none" if bounds is None else "private"
            yield [loss, str(d), budget, scaling, columns, f"{n:,}", str(count), *_held(*found)]
    for job, budget in product(("delay", "late"), strong):
        data, count = Flights(job), max(4, int(share * 60))
        loss = "logistic" if data.target is None else "huber"
        head = [loss, str(data.X.shape[1]), budget, "private", f"flights, {job}", f"{len(data.y):,}", str(count)]
        intervals = []
        for _ in range(count):
            model = data.model(budget)
            model.learn_encoded(data.X, data.y)
            intervals.append((model.interval(), optimum(model, data.X, data.y)))
        limits, truths = map(np.array, zip(*intervals, strict=True))
        yield [*head, *_held(*judged(limits, truths))]


def _held(inside: float, error: float, width: float, settled: float) -> list[str]:
    held = ["", ""] if np.isnan(inside) else [f"{100 * inside:.1f} ± {100 * error:.1f} %", f"{width:.2f}"]
    return [f"{100 * settled:.0f} %", *held]


def log_losses(model: Any, X: np.ndarray, y: np.ndarray) -> list[float]:
    """The log loss of the probabilities, and of the sigmoid of the linear predictor; no probability is below 1e-15."""
    both = model.predict_proba_encoded(X)[:, 1], expit(model.prediction.reader().scores(X)[:, 0])
    return [-float(np.mean(np.log(np.maximum(np.where(y == 1, p, 1 - p), 1e-15)))) for p in both]


def probabilities(share: float) -> Iterator[list[str]]:
    """Rows of log losses."""
    draws = range(max(2, int(share * DRAWS)))
    for d, n, budget in ((5, 10_000, "eps=1"), (20, 10_000, "eps=1"), (20, 10_000, "eps=4"), (50, 100_000, "eps=1")):
        simulation = Simulation("logistic", d)
        X, y = simulation.draw(20_000, 99)
        models = [learner("logistic", d, budget, None) for _ in draws]
        for draw, model in enumerate(models):
            model.learn_encoded(*simulation.draw(n, 100 + draw))
        yield [f"simulated, {n:,} records", str(d), budget, *_compared(models, X, y)]
    cases = product(("one in fifty", "heavy tails"), (1_000, 4_000, 20_000), (5, 20), ("eps=1", "eps=4"))
    for what, n, d, budget in cases:
        models = [LDPASGDClassifier(features={f"x{j}": (-1.0, 1.0) for j in range(d)}, budget=budget) for _ in draws]
        for draw, model in enumerate(models):
            model.learn_encoded(*uncommon(what, d, n, 100 + draw))
        yield [f"{what}, {n:,} records", str(d), budget, *_compared(models, *uncommon(what, d, 20_000, 99))]
    jobs: list[tuple[str, Any]] = [
        (job, RealData(job)) for job, of in REAL_JOBS.items() if of[2] in (["no", "yes"], ["0", "1"])
    ]
    for (job, data), budget in product(jobs, ("eps=1", "eps=4")):
        models = [LDPASGDClassifier(features=data.features, classes=data.classes, budget=budget) for _ in draws]
        for model in models:
            model.learn_encoded(data.X, data.y)
        yield [job, str(data.X.shape[1]), budget, *_compared(models, data.holdout, data.truth)]


def uncommon(what: str, d: int, n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Columns (n, d) in [-1, 1] and classes (n,).

    "one in fifty": so many are of the class 1; the columns are normal with bounds at three spreads. "heavy tails":
    columns of Student's t with two degrees of freedom.
    """
    rng = np.random.default_rng(seed)
    if what == "one in fifty":
        X, typical, base = np.clip(rng.standard_normal((n, d)) / 3, -1, 1), 1 / 3, -4.9
    else:
        X, typical, base = np.clip(rng.standard_t(2, (n, d)) / 20, -1, 1), 1 / 8, 0.0
    return X, (rng.random(n) < expit(1.5 / d**0.5 / typical * X.sum(axis=1) + base)).astype(float)


def _compared(models: list[Any], X: np.ndarray, y: np.ndarray) -> list[str]:
    found = np.array([log_losses(model, X, y) for model in models])
    gain = found[:, 1] - found[:, 0]
    constant = -float(np.log([1 - y.mean(), y.mean()]) @ [1 - y.mean(), y.mean()])
    means = [f"{value:.3f}" for value in (*found.mean(axis=0), constant)]
    return [*means, f"{gain.mean():.3f} ± {gain.std() / len(gain) ** 0.5:.3f}"]


# --- many columns --------------------------------------------------------------------------------------------


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


def many(n: int, share: float) -> Iterator[list[str]]:
    """Rows of excess losses for many columns."""
    for loss in ("huber", "logistic"):
        for d in (20, 50, 100):
            simulation = Simulation(loss, d)
            found: dict[tuple[str, str], list[float]] = {}
            for draw in range(max(2, int(share * DRAWS))):
                X, y = simulation.draw(n, 100 + draw)
                for budget in ("eps=1", "eps=4"):
                    old, new = earlier(simulated(loss, d, budget, draw)), simulated(loss, d, budget, draw)
                    for model in (old, new):
                        model.learn_encoded(X, y)
                    for name, model in (("old", old), ("new", new)):
                        found.setdefault((budget, name), []).append(simulation.excess(model.theta))
                if draw == 0:
                    public = simulation.excess(simulation.public(X, y))
            for budget in ("eps=1", "eps=4"):
                cells = [pm(mean_and_error(np.array(found[budget, name])), 3) for name in ("old", "new")]
                cells.append(f"{max(found[budget, 'new']):.3f}")
                yield [loss, str(d), budget, f"{n:,}", *cells, f"{simulation.constant:.3f}", f"{public:.4f}"]


# --- the page -----------------------------------------------------------------------------------------------


def worst_runs(share: float) -> str:
    """The runs of the demo's jobs that end worse than a constant."""
    said = worse_than_constant(share)
    return f"Runs of the demo's jobs, with mixed budgets, that end worse than the constant: {said}."


def both_sizes(share: float) -> Iterator[list[str]]:
    """The rows of many columns."""
    return (row for n in (10_000, 100_000) for row in many(n, share))


TABLES: dict[str, tuple[str, Callable[[float], Iterator[list[str]]]]] = {
    "flights": ("job, budget, mean, worst, without privacy, constant", flights),
    "real": ("target, records, columns, budget, mean, worst, without privacy, constant, better draws", real),
    "simulations": (
        "loss, features, budget, bounds, n MSE / tr V, target of spread 1, limit, any method's bound",
        errors,
    ),
    "price": (
        "loss, columns, budget, records, bits, known, private, price, of the records, from true scales, beside none",
        price,
    ),
    "intervals": (
        "loss, features, budget, scaling, correlated, records, draws, settled, covered, width",
        coverage,
    ),
    "probabilities": ("records, columns, budget, log loss, of the sigmoid, constant, gain", probabilities),
    "many": (
        "loss, columns, budget, records, steps before, default, its worst, constant, no privacy",
        both_sizes,
    ),
}


def part(head: str, rows: Callable[[float], Iterator[list[str]]]) -> Callable[[bool], str]:
    """A table; a quick one has a tenth of the draws."""
    return lambda quick: table(head.split(", "), rows(0.1 if quick else 1.0))


PARTS = {name: part(*given) for name, given in TABLES.items()} | {
    "worst": lambda quick: worst_runs(0.1 if quick else 1.0)
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print, and with --write save."""
    command(__file__, PARTS, arguments, quick=True)


if __name__ == "__main__":
    main()
