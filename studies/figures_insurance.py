"""Section 6 of Shi et al. 2025, on insured people. Run with `python -m studies.figures_insurance [--write]`.

The paper's file was itself drawn by a script: columns are independent and uniform, and charges are a sum of effects and
a uniform disturbance. `EFFECTS` is that law. Two public notebooks print what it follows from: counts, moments, ten
records and least-squares coefficients (xSTILETTOx/Capstone and MinaliBheda/Project_4 on GitHub).

Encoding, steps (0.5 i^-alpha), start (uniform on (0, 1)), split (four fifths) and permutations are the paper's. It does
not say in which unit the charges are learned, and the result depends on it, so Figure 7 has two. Numeric columns are
standardised with the moments of all records, as in the paper: this is outside of any guarantee. By its text the codes
are not; parts "7c" to "9c" standardise them, too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np

from benchmarks.shared.pages import command, rough, table
from benchmarks.shared.pictures import sheet
from streamdp.estimators.ldp.estimators import LDPASGDClassifier, LDPASGDRegressor
from streamdp.optim.losses import Softmax
from studies.figures_ldp import ALPHAS, MU, STYLES, Measure, Study, lines, walk_name
from studies.theory import PAPER, Runs

NUMBERS = {"age": (18, 65, 20.0), "bmi": (18, 50, 50.0), "children": (0, 5, 200.0)}
"""The least value, the greatest, and dollars for each unit."""

_DISEASES = (0, 1_000, 2_000, 5_000)  # none, high blood pressure, diabetes, heart disease
EFFECTS: Mapping[str, tuple[int, ...]] = {
    "sex": (0, 1_000),  # female, male
    "smoker": (0, 5_000),  # no, yes
    "region": (1_000, 300, 500, 200),  # northeast, northwest, southeast, southwest
    "medical_history": _DISEASES,
    "family_history": _DISEASES,
    "exercise": (0, 1_000, 500, 2_000),  # never, occasionally, rarely, frequently
    "occupation": (500, 0, 1_500, 2_000),  # student, unemployed, blue collar, white collar
    "coverage": (0, 2_000, 5_000),  # basic, standard, premium
}
"""Dollars for each category, in the order of the paper's codes 0, 1, ...; it does not say how the region is coded."""
BASE, DISTURBANCE = 2_000, 500
PUBLISHED = {
    "mean": "16,735",
    "standard deviation": "4,416",
    "least": "3,445",
    "greatest": "32,562",
    "quartiles": "13,600, 16,622, 19,781",
    "R^2 of the law": "0.9957",
}
"""What the notebooks print of the charges of the paper's file."""
TERCILES = (0.33, 0.66)


@dataclass(frozen=True)
class Size:
    """How many people there are, of whom four fifths are learned, and in how many permutations."""

    people: int
    runs: int

    @property
    def marks(self) -> np.ndarray:
        """The numbers of records at which the held-out records are asked; the paper's are 10,000, 20,000 and so on."""
        return np.unique(np.geomspace(self.people / 100, self.people * 4 // 5, 10).round().astype(int))


SIZES = {"small": Size(1_000_000, 4), "full": Size(1_000_000, 50)}
CODES, STANDARD = Size(1_000_000, 10), ", codes standardised"
"""Where the codes are standardised, too."""


@dataclass(frozen=True)
class People:
    """The encoded people: columns (n, 11), charges (n,) in standard deviations, the tercile of the charges (n,).

    thousands: how many thousand dollars a standard deviation is.
    """

    X: np.ndarray
    charges: np.ndarray
    tercile: np.ndarray
    thousands: float


@cache
def drawn(n: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The numbers and codes of n people (n, 11), their charges, and what the law says of these."""
    rng = np.random.default_rng(18)
    columns, means = [], np.full(n, float(BASE))
    for name, (low, high, slope) in NUMBERS.items():
        column = rng.uniform(low, high, n).round(2) if name == "bmi" else rng.integers(low, high + 1, n)
        columns.append(column)
        means += slope * column
    for effects in EFFECTS.values():
        columns.append(rng.integers(0, len(effects), n))
        means += np.array(effects)[columns[-1]]
    return np.column_stack(columns).astype(float), means + rng.uniform(-DISTURBANCE, DISTURBANCE, n), means


@cache
def people(n: int, codes: bool = False) -> People:
    """Draw and encode n people. `codes`: also the codes are standardised."""
    X, charges, _ = drawn(n)
    X = X.copy()
    columns = slice(None if codes else len(NUMBERS))
    X[:, columns] = (X[:, columns] - X[:, columns].mean(axis=0)) / X[:, columns].std(axis=0)
    tercile = np.searchsorted(np.quantile(charges, TERCILES), charges, side="right")
    standard = (charges - charges.mean()) / charges.std()
    return People(X, standard, tercile.astype(float), charges.std() / 1000)


@dataclass(frozen=True)
class Line(Study):
    """A line of Figure 7 (loss "huber") or of Figures 8 and 9 ("softmax").

    unit: of the learned charges, as a part of their standard deviation.
    """

    eta: float = 0.5
    unit: float = 1.0
    d: int = len(NUMBERS) + len(EFFECTS)

    def estimator(self, seed: int) -> Any:
        """See `Case.estimator`; the paper's walk starts at a point that is uniform on (0, 1).

        The scale of Huber's loss starts at its least value if it would be below that.
        """
        noise: dict[str, Any] = {"budget": self.budget} if self.budget else {"mechanism": "none"}
        names = [*NUMBERS, *EFFECTS]
        walk: dict[str, Any] = {} if self.ours else {"clock": "records", "eta": self.eta, "alpha": self.alpha}
        model: Any
        if self.loss == "huber":
            loss: Any = "huber" if self.ours else PAPER["huber"]
            model = LDPASGDRegressor(loss=loss, features=names, seed=seed, **noise, **walk)
        else:
            loss = "softmax" if self.ours else Softmax(weighting="mallows")
            model = LDPASGDClassifier(loss=loss, features=names, classes=[0, 1, 2], seed=seed, **noise, **walk)
        if not self.ours:
            state = model.state_dict()
            start = np.random.default_rng(seed).uniform(size=state["state"].shape[1])
            if self.loss == "huber":
                start[-1] = max(start[-1], model.loss.sigma_min)
            state["state"] = np.tile(start, (3, 1))
            model.load_state_dict(state)
        return model


def learned(loss: str, size: Size, unit: float = 1.0, codes: bool = False) -> Mapping[Line, Runs]:
    """The iterates of every line at the marks, each permutation of the learned records given to all lines."""
    budgets = [None if mu is None else f"mu={mu:g}" for mu in MU]
    cases = [Line(loss=loss, alpha=alpha, budget=budget, unit=unit) for alpha in ALPHAS for budget in budgets]
    cases += [Line(loss=loss, budget=budget, ours=True, unit=unit) for budget in budgets]
    data, marks = people(size.people, codes), size.marks
    target = data.charges / unit if loss == "huber" else data.tercile
    found: dict[Line, list[np.ndarray]] = {line: [] for line in cases}
    for run in range(size.runs):
        order = np.random.default_rng(run).permutation(size.people * 4 // 5)
        for line in cases:
            model, states, begin = line.estimator(100 + run), [], 0
            for mark in marks:
                model.learn_arrays(data.X[order[begin:mark]], target[order[begin:mark]])
                states.append(model.state_dict()["state"])
                begin = mark
            found[line].append(np.array(states))
        print(f"{loss}: permutation {run + 1} of {size.runs}", flush=True)
    return {line: Runs(marks, np.stack(runs)[:, :, 0], np.stack(runs)[:, :, 1]) for line, runs in found.items()}


# --- the held-out records: each measure takes iterates (..., d) -----------------------------------------------


class HeldOut:
    """The last fifth of the people."""

    def __init__(self, n: int, codes: bool = False) -> None:
        data, begin = people(n, codes), n * 4 // 5
        rows = slice(begin, min(n, begin + 20_000))
        self._X = np.hstack([data.X[rows], np.ones((rows.stop - begin, 1))])
        self._charges, self._tercile = data.charges[rows], data.tercile[rows].astype(int)

    def squared_error(self, line: Line, thetas: np.ndarray) -> np.ndarray:
        """The mean squared error of the charges, in units of their variance."""
        flat = thetas.reshape(-1, thetas.shape[-1])[:, :-1] * line.unit
        second, cross = self._X.T @ self._X / len(self._X), self._X.T @ self._charges / len(self._X)
        mean = np.sum(flat @ second * flat, axis=1) - 2 * flat @ cross + np.mean(self._charges**2)
        return np.asarray(mean.reshape(thetas.shape[:-1]))

    def _scores(self, theta: np.ndarray) -> np.ndarray:
        return np.asarray(self._X @ theta.reshape(3, -1).T)

    def cross_entropy(self, line: Line, thetas: np.ndarray) -> np.ndarray:
        """The mean negative log likelihood of the tercile, in nats."""
        found = []
        for theta in thetas.reshape(-1, thetas.shape[-1]):
            scores = self._scores(theta)
            own = scores[np.arange(len(scores)), self._tercile]
            found.append(np.mean(np.logaddexp.reduce(scores, axis=1) - own))
        return np.array(found).reshape(thetas.shape[:-1])

    def accuracy(self, line: Line, thetas: np.ndarray) -> np.ndarray:
        """The share of people whose tercile is predicted."""
        flat = thetas.reshape(-1, thetas.shape[-1])
        found = [np.mean(np.argmax(self._scores(theta), axis=1) == self._tercile) for theta in flat]
        return np.array(found).reshape(thetas.shape[:-1])


def draw(runs: Mapping[Line, Runs], measure: Measure, label: str, what: str) -> Any:
    """One panel for each alpha, and one for our defaults."""
    figure, (axes,) = sheet(1, len(ALPHAS) + 1)
    for axis, alpha in zip(axes, (*ALPHAS, None), strict=True):
        chosen = {s: r for s, r in runs.items() if s.ours == (alpha is None) and (s.ours or s.alpha == alpha)}
        lines(axis, chosen, measure)
        axis.set_title(walk_name(alpha), fontsize=10)
        if label == "accuracy":
            axis.set_yscale("linear")
    axes[0].set_ylabel(AXES[label])
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(MU), fontsize=9)
    figure.suptitle(f"Synthetic insurance, {what}. {STYLES}", fontsize=10)
    return figure


def rows_of(runs: Mapping[Line, Runs], measure: Measure) -> list[list[str]]:
    """The measure after the first of the marks and after all records."""
    return [
        [
            "ours" if s.ours else f"{s.alpha:.2g}",
            s.spent,
            *(rough(measure(s, e)) for e in (r.last[:, 0], r.last[:, -1], r.average[:, -1])),
        ]
        for s, r in runs.items()
    ]


AXES = {
    "mean squared error": "mean squared error / variance",
    "cross-entropy": "cross-entropy, nats",
    "accuracy": "share of right terciles",
}


def _found(runs: Mapping[Line, Runs], label: str, what: str, measure: Measure) -> tuple[str, Any]:
    first = next(iter(runs.values())).marks[0]
    rows = table(["alpha", "budget", f"{label}, last at {first:,} records", "last", "average"], rows_of(runs, measure))
    return rows, draw(runs, measure, label, what)


def _size(quick: bool, codes: bool) -> Size:
    return SIZES["small"] if quick else CODES if codes else SIZES["full"]


def figure_7(quick: bool, what: str, codes: bool = False) -> tuple[str, Any]:
    """Huber regression of the charges in standard deviations, or in thousand dollars."""
    size = _size(quick, codes)
    unit = 1.0 if what == "standard deviations" else 1 / people(size.people).thousands
    measure, what = HeldOut(size.people, codes).squared_error, f"charges in {what}{STANDARD * codes}"
    return _found(learned("huber", size, unit, codes), "mean squared error", what, measure)


@cache
def figures_8_and_9(size: Size, codes: bool) -> Mapping[Line, Runs]:
    """The terciles: cross-entropy and accuracy of the same runs."""
    return learned("softmax", size, codes=codes)


def terciles(quick: bool, label: str, codes: bool = False) -> tuple[str, Any]:
    """One of the two."""
    size = _size(quick, codes)
    asked = HeldOut(size.people, codes)
    measure = asked.accuracy if label == "accuracy" else asked.cross_entropy
    return _found(figures_8_and_9(size, codes), label, f"terciles{STANDARD * codes}", measure)


def law(quick: bool) -> str:
    """The charges beside what is published of the paper's, and how much its codes and weights take off."""
    n = SIZES["full"].people
    (_, charges, means), X = drawn(n), people(n).X
    quartiles = ", ".join(f"{q:,.0f}" for q in np.quantile(charges, (0.25, 0.5, 0.75)))
    ends = (charges.mean(), charges.std(), charges.min(), charges.max())
    found = [*(f"{one:,.0f}" for one in ends), quartiles, f"{1 - np.var(charges - means) / np.var(charges):.4f}"]
    whole = np.hstack([X, np.ones((n, 1))])
    left = np.linalg.lstsq(whole, people(n).charges)[1].item() / n
    weight = float(np.mean(np.minimum(1, 2 / np.sum(whole**2, axis=1))))
    rows = table(
        ["charges", "paper's file", "here"], [[*said, one] for said, one in zip(PUBLISHED.items(), found, strict=True)]
    )
    codes = f"A linear model of the paper's codes leaves {left:.3f} of the variance."
    noise = f"The mean of Mallows' weight is {weight:.2f}, so that noise is {1 / weight:.0f} times as large"
    return f"{rows}\n\n{codes} {noise} beside the gradients."


PARTS: dict[str, Callable[[bool], str | tuple[str, Any]]] = {
    "law": law,
    "7": partial(figure_7, what="standard deviations"),
    "7b": partial(figure_7, what="thousand dollars"),
    "8": partial(terciles, label="cross-entropy"),
    "9": partial(terciles, label="accuracy"),
    "7c": partial(figure_7, what="standard deviations", codes=True),
    "8c": partial(terciles, label="cross-entropy", codes=True),
    "9c": partial(terciles, label="accuracy", codes=True),
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print, and with --write save."""
    command(__file__, PARTS, arguments, quick=True)


if __name__ == "__main__":
    main()
