"""The simulations of Shi et al. 2025, figure by figure. Run with `python -m studies.figures_ldp [--write]`.

The paper's walk has the steps 0.2 i^-alpha and Mallows' weight; beside it are this library's defaults with the same
budget. There are 40 replications but where a part says so, so errors are 2.2 times those of the paper's 200;
`--quick` has 4 of a third of the records. Noise comes from seeded generators, which are for measuring only.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache
from typing import Any

import numpy as np
from scipy.special import expit

from benchmarks.shared.pages import command, rough, table
from benchmarks.shared.pictures import COLOURS, MARKERS, Shown, sheet
from benchmarks.shared.simulation import SIGMA, expected_huber
from streamdp.estimators.ldp.estimators import LDPASGDClassifier, LDPASGDRegressor
from streamdp.optim.losses import Logistic
from studies.theory import PAPER, Case, PaperLaplace, Runs, rates, simulate, slope

MU = (0.5, 1.0, 2.0, 3.0, None)
ALPHAS = (1 / 3, 1 / 2, 2 / 3, 1.0)
FEATURES = (5, 10, 20)


@dataclass(frozen=True)
class Size:
    """How many records a replication has, and how many replications there are."""

    records: int
    runs: int

    @property
    def marks(self) -> np.ndarray:
        """The numbers of records at which errors are taken."""
        return np.unique(np.geomspace(self.records / 300, self.records, 13).astype(int))


SIZES = {"small": Size(100_000, 4), "full": Size(300_000, 200)}  # the paper's
APPENDIX_RUNS = 40


@dataclass(frozen=True)
class Study(Case):
    """A line of a figure: the paper's walk, or with `ours` the library's defaults.

    clip: gradients are clipped to this norm, in place of Mallows' weight.
    drawn: each record draws its mu uniformly from this interval.
    """

    ours: bool = False
    clip: float | None = None
    drawn: tuple[int, int] | None = None

    @property
    def spent(self) -> str:
        """The budget in words."""
        return (f"mu ~ Unif{self.drawn}" if self.drawn else self.budget or "no noise").replace("=", " = ")

    @property
    def label(self) -> str:
        """Mechanism, budget and steps in words."""
        kind = "Laplace " if self.mechanism is PaperLaplace else ""
        return kind + self.spent + (", our defaults" if self.ours else "")

    def estimator(self, seed: int) -> Any:
        """See `Case.estimator`."""
        kind: Any = LDPASGDRegressor if self.loss == "huber" else LDPASGDClassifier
        noise: dict[str, Any] = (
            {"budget": self.budget, "mechanism": self.mechanism} if self.budget else {"mechanism": "none"}
        )
        loss = Logistic(clip=self.clip) if self.clip else PAPER[self.loss]
        walk: dict[str, Any] = (
            {} if self.ours else {"loss": loss, "clock": "records", "eta": self.eta, "alpha": self.alpha}
        )
        model = kind(features=[f"x{j}" for j in range(self.d)], seed=seed, **noise, **walk)
        return Drawn(model, self.drawn, seed) if self.drawn else model


class Drawn:
    """An estimator whose records bring budgets that are drawn uniformly from an interval."""

    def __init__(self, model: Any, interval: tuple[int, int], seed: int) -> None:
        self._model, self._interval, self._rng = model, interval, np.random.default_rng(seed)
        self.state_dict = model.state_dict

    def learn_arrays(self, X: np.ndarray, y: np.ndarray) -> None:
        """See `Estimator.learn_arrays`."""
        self._model.learn_arrays(X, y, self._rng.uniform(*self._interval, len(y)))


# --- what is measured


Measure = Callable[[Any, np.ndarray], np.ndarray]


def distance(study: Study, errors: np.ndarray) -> np.ndarray:
    """||theta - theta*||^2 of errors (..., d), the paper's parameter distance before its mean is taken."""
    return np.asarray(np.sum(errors**2, axis=-1))


@cache
def _points(d: int) -> tuple[np.ndarray, np.ndarray]:
    X = np.random.default_rng(99).standard_normal((10_000, d))
    X = np.hstack([X, np.ones((len(X), 1))])
    return X, np.minimum(1, 2 / np.sum(X**2, axis=1))


def excess(study: Case, errors: np.ndarray) -> np.ndarray:
    """F(theta) - F(theta*) of errors (..., d) for the weighted loss: the mean over 10,000 x of exact means over y."""
    X, weight = _points(study.d)
    found = []
    for error in errors.reshape(-1, errors.shape[-1]):
        theta = study.theta + error
        if study.loss == "huber":
            here = expected_huber(X @ error[:-1], float(theta[-1])) - expected_huber(np.zeros(1), SIGMA)
        else:
            u, v = X @ theta, X @ study.theta
            here = np.logaddexp(0, u) - np.logaddexp(0, v) - expit(v) * (u - v)
        found.append(float(np.mean(weight * here)))
    return np.array(found).reshape(errors.shape[:-1])


def exponents(alpha: float, measure: Measure) -> tuple[float, float] | None:
    """Table 1: how fast the last and the averaged iterate fall with n; None where it says nothing."""
    if alpha >= 1 or (measure is excess and alpha < 0.33):
        return None
    if measure is distance:
        return rates(alpha)
    last = (3 * alpha - 1) / 2 if alpha <= 1 / 2 else alpha / 2 if alpha <= 2 / 3 else 1 - alpha
    return -last, -min(alpha, 1 - alpha)


# --- the grids behind Figures 3, 5, 6 and the appendix


def walks(loss: str, d: int, alphas: Sequence[float], mus: Sequence[float | None]) -> list[Study]:
    """The paper's walk for each alpha and each mu."""
    budgets = [None if mu is None else f"mu={mu:g}" for mu in mus]
    return [Study(loss=loss, d=d, alpha=alpha, budget=budget) for alpha in alphas for budget in budgets]


@cache
def grid(loss: str, d: int, size: Size) -> Mapping[Study, Runs]:
    """All alphas with all budgets, and our defaults with each budget, on the same records."""
    paper = walks(loss, d, ALPHAS, MU)
    cases = [*paper, *(replace(study, alpha=0.5, ours=True) for study in paper[: len(MU)])]
    return dict(zip(cases, simulate(cases, size.marks, size.runs, seed=d), strict=True))


# --- pictures


def walk_name(alpha: float | None) -> str:
    """What a panel shows: the paper's walk with this alpha, or our defaults."""
    return "our defaults" if alpha is None else f"alpha = {Fraction(alpha).limit_denominator(9)}"


def lines(axis: Any, runs: Mapping[Any, Runs], measure: Measure) -> None:
    """Draw means over replications: the last iterate dashed, the averaged one solid, with a band of two s.e."""
    for k, (study, run) in enumerate(runs.items()):
        colour = COLOURS[k]
        for errors, style in ((run.average, MARKERS[k] + "-"), (run.last, "--")):
            found = measure(study, errors)
            mean, error = found.mean(axis=0), found.std(axis=0, ddof=1) / math.sqrt(len(found))
            name = None if style == "--" else study.label
            axis.plot(run.marks, mean, style, color=colour, label=name, lw=1.4, ms=4, markevery=2)
            if name:
                axis.fill_between(
                    run.marks, np.maximum(mean - 2 * error, mean / 10), mean + 2 * error, color=colour, alpha=0.15, lw=0
                )
    axis.set(xscale="log", yscale="log", xlabel="records learned")
    axis.grid(alpha=0.3)


MEASURES: dict[str, tuple[Measure, str]] = {
    "distance": (distance, "mean squared distance"),
    "excess": (excess, "mean excess loss"),
}
STYLES = "Solid: averaged iterate (LDP-ASGD), with two standard errors. Dashed: last iterate (LDP-SGD)."


def draw_grid(loss: str, features: Sequence[int], size: Size, name: str) -> Any:
    """One row for each d, one panel for each alpha and one for our defaults."""
    measure, label = MEASURES[name]
    figure, axes = sheet(len(features), len(ALPHAS) + 1)
    for row, d in zip(axes, features, strict=True):
        runs = grid(loss, d, size)
        for axis, alpha in zip(row, (*ALPHAS, None), strict=True):
            chosen = {s: r for s, r in runs.items() if s.ours == (alpha is None) and (s.ours or s.alpha == alpha)}
            lines(axis, chosen, measure)
            axis.set_title(f"d = {d}, {walk_name(alpha)}", fontsize=10)
        row[0].set_ylabel(label)
    handles, labels = axes[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(MU), fontsize=9)
    figure.suptitle(f"{'Linear' if loss == 'huber' else 'Logistic'} regression. {STYLES}", fontsize=10)
    return figure


# --- the figures: each returns its table and its picture


@dataclass(frozen=True)
class Found:
    """A figure of the paper, made again."""

    table: str
    picture: Any

    def _repr_png_(self) -> bytes:
        """The picture, for notebooks."""
        return Shown(self.picture)._repr_png_()


def figure_1(size: Size) -> Found:
    """Mallows' weight against clipping."""
    both = [Study(loss="logistic", d=3, budget=b, clip=c) for b in (None, "mu=1") for c in (None, math.sqrt(2))]
    both += [Study(loss="logistic", d=3, budget="mu=1", ours=True)]
    names = ["Mallows", "clipping", "Mallows", "clipping", "our defaults"]
    runs = dict(zip(both, simulate(both, [size.records], size.runs, seed=11), strict=True))
    head = [
        "bound by",
        "budget",
        *(f"{n}, {k}" for n in ("last", "average") for k in ("bias of a slope", "of the intercept")),
    ]
    rows = []
    for name, (study, run) in zip(names, runs.items(), strict=True):
        cells = []
        for errors in (run.last[:, 0], run.average[:, 0]):
            cells += [rough(errors[:, :3].mean(axis=1)), rough(errors[:, 3])]
        rows.append([name, study.spent, *cells])
    figure, axes = sheet(1, 4)
    panels = [(k, which) for which in ("last", "average") for k in (2, 3)]
    for axis, (k, which) in zip(axes[0], panels, strict=True):
        study = both[k]
        values = getattr(runs[study], which)[:, 0] + study.theta
        boxes = axis.boxplot(
            values, patch_artist=True, tick_labels=["x1", "x2", "x3", "1"], medianprops={"color": "black"}
        )
        for box, colour in zip(boxes["boxes"], COLOURS, strict=False):
            box.set_facecolor(colour)
        axis.axhline(1, color=COLOURS[6], lw=1.2)
        axis.set_title(f"{names[k]}, {'LDP-SGD' if which == 'last' else 'LDP-ASGD'}", fontsize=10)
        axis.set_xlabel("column (1: the intercept)")
    axes[0][0].set_ylabel("estimate (the line is the truth)")
    return Found(table(head, rows), figure)


def figure_2(size: Size) -> Found:
    """A budget for every record."""
    cases = [Study(budget="mu=1"), Study(budget="mu=1", drawn=(1, 2)), Study(budget="mu=2")]
    ours = [
        Study(budget="mu=1", ours=True),
        Study(budget="mu=1", drawn=(1, 2), ours=True),
        Study(budget="mu=2", ours=True),
    ]
    runs = dict(zip([*cases, *ours], simulate([*cases, *ours], size.marks, size.runs, seed=12), strict=True))
    figure, (axes,) = sheet(1, 3, share=False)
    lines(axes[0], {study: runs[study] for study in cases}, distance)
    lines(axes[1], {study: runs[study] for study in ours}, distance)
    for axis, title in zip(axes, ("the paper's walk", "our defaults"), strict=False):
        axis.set(title=title, ylabel=MEASURES["distance"][1])
        axis.legend(fontsize=8)
    run = runs[cases[2]]
    at = [len(run.marks) - 9, len(run.marks) - 5, len(run.marks) - 1]
    for offset, errors, colour, name in (
        (-0.2, run.last, COLOURS[1], "LDP-SGD"),
        (0.2, run.average, COLOURS[0], "LDP-ASGD"),
    ):
        values = distance(cases[2], errors[:, at])
        boxes = axes[2].boxplot(
            values,
            positions=np.arange(3) + offset,
            widths=0.3,
            patch_artist=True,
            label=name,
            medianprops={"color": "black"},
        )
        for box in boxes["boxes"]:
            box.set_facecolor(colour)
    axes[2].set_xticks(range(3), [f"{run.marks[k]:,}" for k in at])
    axes[2].set(title="mu = 2", xlabel="records", ylabel="squared distance", yscale="log")
    axes[2].legend(fontsize=8)
    figure.suptitle(f"Linear regression, d = 5, alpha = 1/2. {STYLES}", fontsize=10)
    head = ["budget", "last", "average", "s.d. over replications, last", "average"]
    rows = []
    for study, run in runs.items():
        last, average = distance(study, run.last[:, -1]), distance(study, run.average[:, -1])
        rows.append([study.label, rough(last), rough(average), f"{last.std(ddof=1):.2g}", f"{average.std(ddof=1):.2g}"])
    return Found(table(head, rows), figure)


def figure_3(size: Size) -> Found:
    """What averaging gains in the exponent of n, from Table 1 and measured."""
    half = len(size.marks) // 2
    head = ["measure", "alpha", "budget", "slope of last", "theory", "slope of average", "theory", "gain", "theory"]
    rows = []
    figure, axes = sheet(1, 2)
    alphas = np.linspace(1 / 3, 0.999, 200)
    for axis, (loss, name) in zip(axes[0], (("huber", "distance"), ("logistic", "excess")), strict=True):
        measure, label = MEASURES[name]
        theory = np.array([exponents(float(a), measure) for a in alphas])
        axis.plot(alphas, theory[:, 0] - theory[:, 1], color="black", label="Table 1")
        studies = walks(loss, 5, ALPHAS[:3], (None, 3, 1))
        runs = dict(zip(studies, simulate(studies, size.marks, size.runs, seed=5), strict=True))
        for k, budget in enumerate((None, "mu=3", "mu=1")):
            points = []
            for alpha in ALPHAS[:3]:
                study = Study(loss=loss, alpha=alpha, budget=budget)
                run = runs[study]
                # `slope` squares and adds over the last axis
                pairs = [
                    slope(run.marks[half:], np.sqrt(measure(study, e[:, half:]))[..., None])
                    for e in (run.last, run.average)
                ]
                expected = exponents(alpha, measure)
                assert expected is not None
                gain = (pairs[0][0] - pairs[1][0], math.hypot(pairs[0][1], pairs[1][1]))
                points.append((alpha, *gain))
                numbers = [f"{pairs[0][0]:.2f} ± {pairs[0][1]:.2f}", f"{expected[0]:.2f}"]
                numbers += [f"{pairs[1][0]:.2f} ± {pairs[1][1]:.2f}", f"{expected[1]:.2f}"]
                numbers += [f"{gain[0]:.2f} ± {gain[1]:.2f}", f"{expected[0] - expected[1]:.2f}"]
                rows.append([f"{label}, {loss}", f"{alpha:.2g}", study.label, *numbers])
            x, gains, errors = zip(*points, strict=True)
            where = np.array(x) + 0.012 * (k - 1)  # side by side
            bars = {"yerr": 2 * np.array(errors), "capsize": 3, "fmt": MARKERS[k], "color": COLOURS[k]}
            axis.errorbar(where, gains, **bars, label=study.label)
        axis.set(title=f"{label}, {loss}, d = 5", xlabel="alpha")
        axis.grid(alpha=0.3)
        axis.legend(fontsize=8)
    axes[0][0].set_ylabel("exponent of last minus exponent of average")
    return Found(table(head, rows), figure)


def figure_4(size: Size) -> Found:
    """Laplace against Gaussian noise."""
    cases = [Study(budget=f"eps={e}", mechanism=PaperLaplace) for e in (1, 2, 3)] + [Study(budget="mu=1")]
    cases += [replace(study, ours=True, mechanism="auto") for study in cases]
    head = ["d", "budget", "last", "average"]
    rows = []
    figure, axes = sheet(1, 4)
    for pair, d in zip((axes[0][:2], axes[0][2:]), (5, 10), strict=True):
        there = [replace(study, d=d) for study in cases]
        runs = dict(zip(there, simulate(there, size.marks, size.runs, seed=13 + d), strict=True))
        for axis, ours in zip(pair, (False, True), strict=True):
            lines(axis, {s: r for s, r in runs.items() if s.ours == ours}, distance)
            axis.set_title(
                f"d = {d}, " + ("our defaults (PrivUnit for eps)" if ours else "the paper's walk"), fontsize=10
            )
            axis.legend(fontsize=7)
        rows += [
            [str(d), s.label, rough(distance(s, r.last[:, -1])), rough(distance(s, r.average[:, -1]))]
            for s, r in runs.items()
        ]
    axes[0][0].set_ylabel(MEASURES["distance"][1])
    figure.suptitle(f"Linear regression, alpha = 1/2. {STYLES}", fontsize=10)
    return Found(table(head, rows), figure)


def figure_4_printed(size: Size) -> str:
    """Laplace noise at eps = 3 whose scale has sqrt(d), d being the features, for sqrt(d + 2): that of a larger eps."""
    rows = []
    for d in (5, 10):
        budgets = ("eps=3", f"eps={3 * math.sqrt((d + 2) / d)}")
        cases = [Study(budget=budget, mechanism=PaperLaplace, d=d) for budget in budgets]
        names = ("sqrt(d + 2), which privacy needs", "sqrt(d)", "1-GDP")
        runs = simulate([*cases, Study(budget="mu=1", d=d)], [size.records], size.runs, seed=13 + d)
        for name, run in zip(names, runs, strict=True):
            rows.append([str(d), name, *(rough(np.sum(e[:, -1] ** 2, axis=1)) for e in (run.last, run.average))])
    return table(["d", "noise", "last", "average"], rows)


def psi(beta: float, n: float) -> float:
    """The paper's (n^beta - 1) / beta, and its limit log n."""
    return (n**beta - 1) / beta if abs(beta) > 1e-9 else math.log(n)


def bounds(alpha: float, n: int, mu: float, start: float, eta: float = 0.2) -> tuple[float, float]:
    """Theorems 5 and 6 with their constants, for logistic regression with six parameters; `start` is delta_0."""
    C, M = PAPER["logistic"].bound, PAPER["logistic"].smoothness
    noise = C**2 * (1 + 6 * 4 / mu**2)
    G, J = start + noise * eta**2 * psi(1 - 2 * alpha, n), start + noise * eta**2
    H = (1 + 4 * math.sqrt(M * noise) * eta**1.5) / eta
    if alpha <= 1 / 2:
        below = math.sqrt(1 - 2 * alpha) * psi(1.5 * alpha - 0.5, n)
        last = 2 * J * H / below if below else math.inf
    else:
        last = 2 * math.sqrt(G) * H / psi(alpha / 2 if alpha <= 2 / 3 else 1 - alpha, n)
    return last, G / (2 * eta * n ** (1 - alpha)) + noise * eta * psi(1 - alpha, n) / (2 * n)


def bounds_table(size: Size) -> str:
    """A row for each alpha and mu: the excess of logistic regression beside Theorems 5 and 6."""
    rows, studies = [], walks("logistic", 5, ALPHAS[:3], (1.0, 3.0))
    for study, run in zip(studies, simulate(studies, [size.records], size.runs, seed=5), strict=True):
        start, row = float(np.sum(study.theta**2)), [f"{study.alpha:.2g}", study.spent]
        above = bounds(study.alpha, size.records, float(study.spent.split()[-1]), start)
        for errors, bound in zip((run.last, run.average), above, strict=True):
            row += [rough(excess(study, errors[:, -1])), f"{bound:.3g}"]
        rows.append(row)
    return table(["alpha", "budget", "excess, last", "Theorem 5", "excess, average", "Theorem 6"], rows)


def _appendix(loss: str, size: Size, name: str) -> Found:
    fewer = replace(size, runs=min(size.runs, APPENDIX_RUNS))
    picture = draw_grid(loss, FEATURES[1:], fewer, name)
    return Found(_grid_rows(loss, FEATURES[1:], fewer, (name,)), picture)


def _grid_rows(loss: str, features: Sequence[int], size: Size, names: Sequence[str]) -> str:
    head = ["d", "alpha", "budget", *(f"{MEASURES[n][1]}, {which}" for n in names for which in ("last", "average"))]
    rows = []
    for d in features:
        for study, run in grid(loss, d, size).items():
            found = [rough(MEASURES[n][0](study, errors[:, -1])) for n in names for errors in (run.last, run.average)]
            rows.append([str(d), "ours" if study.ours else f"{study.alpha:.2g}", study.spent, *found])
    return table(head, rows)


def figure_5(size: Size) -> Found:
    """Linear regression, d = 5."""
    picture = draw_grid("huber", (5,), size, "distance")
    return Found(_grid_rows("huber", (5,), size, ("distance", "excess")), picture)


def figure_6(size: Size) -> Found:
    """Logistic regression, d = 5."""
    picture = draw_grid("logistic", (5,), size, "excess")
    return Found(_grid_rows("logistic", (5,), size, ("excess", "distance")), picture)


def appendix_linear(size: Size) -> Found:
    """Linear regression, more features."""
    return _appendix("huber", size, "distance")


def appendix_logistic(size: Size) -> Found:
    """Logistic regression, more features."""
    return _appendix("logistic", size, "excess")


FIGURES: dict[str, Callable[[Size], Found]] = {
    "1": figure_1,
    "2": figure_2,
    "3": figure_3,
    "4": figure_4,
    "5": figure_5,
    "6": figure_6,
    "A1": appendix_linear,
    "A2": appendix_logistic,
}


def part(name: str) -> Callable[[bool], tuple[str, Any]]:
    """A figure as a part of the page."""

    def found(quick: bool) -> tuple[str, Any]:
        figure = FIGURES[name](SIZES["small" if quick else "full"])
        return figure.table, figure.picture

    return found


TABLES: dict[str, Callable[[Size], str]] = {"4b": figure_4_printed, "bounds": bounds_table}
PARTS: dict[str, Callable[[bool], str | tuple[str, Any]]] = {name: part(name) for name in FIGURES} | {
    name: lambda quick, of=of: of(SIZES["small" if quick else "full"]) for name, of in TABLES.items()
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print, and with --write save."""
    command(__file__, PARTS, arguments, quick=True)


if __name__ == "__main__":
    main()
