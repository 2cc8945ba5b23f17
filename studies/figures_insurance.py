"""Section 6 of Shi et al. 2025, on synthetic insured people. `python -m studies.figures_insurance [--write]`.

Encoding, steps (0.5 i^-alpha), start (uniform on (0, 1)), split (four fifths) and permutations are the paper's. It does
not say in which unit the charges are learned, and the result depends on it, so Figure 7 has two. Numeric columns are
standardised with the moments of all records, as in the paper: this is outside of any guarantee.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np

from benchmarks.shared.pages import command, rough, table
from benchmarks.shared.pictures import sheet
from streamdp import datasets
from streamdp.estimators.ldp.estimators import LDPASGDClassifier, LDPASGDRegressor
from streamdp.optim.losses import Softmax
from studies.figures_ldp import ALPHAS, MU, STYLES, Measure, Study, lines, walk_name
from studies.theory import PAPER, Runs

LEVELS: Mapping[str, tuple[str, ...]] = {
    "sex": ("female", "male"),
    "smoker": ("no", "yes"),
    "region": ("northeast", "northwest", "southeast", "southwest"),
    "medical_history": ("none", "high_blood_pressure", "diabetes", "heart_disease"),
    "family_history": ("none", "high_blood_pressure", "diabetes", "heart_disease"),
    "exercise": ("never", "occasionally", "rarely", "frequently"),
    "occupation": ("student", "unemployed", "blue_collar", "white_collar"),
    "coverage": ("basic", "standard", "premium"),
}
"""Categories in the order of the paper's codes 0, 1, ...; it does not say how the region is coded."""
NUMBERS = ("age", "bmi", "children")
TERCILES = (0.33, 0.66)


@dataclass(frozen=True)
class Size:
    """How many people there are, of whom four fifths are learned, and in how many permutations."""

    people: int
    runs: int

    @property
    def marks(self) -> np.ndarray:
        """The numbers of records at which the held-out records are asked."""
        return np.unique(np.geomspace(self.people / 400, self.people * 4 // 5, 10).astype(int))


SIZES = {"small": Size(1_000_000, 4), "full": Size(1_000_000, 50)}


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
def people(n: int) -> People:
    """Simulate and encode n people."""
    frame = datasets.insurance(n, seed=18)
    numbers = np.column_stack([frame[name].to_numpy().astype(float) for name in NUMBERS])
    codes = [frame[name].replace_strict({level: k for k, level in enumerate(names)}) for name, names in LEVELS.items()]
    numbers = (numbers - numbers.mean(axis=0)) / numbers.std(axis=0)
    charges = frame["charges"].to_numpy()
    tercile = np.searchsorted(np.quantile(charges, TERCILES), charges, side="right")
    X = np.column_stack([numbers, *(code.to_numpy() for code in codes)]).astype(float)
    standard = (charges - charges.mean()) / charges.std()
    return People(X, standard, tercile.astype(float), charges.std() / 1000)


@dataclass(frozen=True)
class Line(Study):
    """A line of Figure 7 (loss "huber") or of Figures 8 and 9 ("softmax").

    unit: of the learned charges, as a part of their standard deviation.
    """

    eta: float = 0.5
    unit: float = 1.0
    d: int = len(NUMBERS) + len(LEVELS)

    def estimator(self, seed: int) -> Any:
        """See `Case.estimator`; the paper's walk starts at a point that is uniform on (0, 1).

        The scale of Huber's loss starts at its least value if it would be below that.
        """
        noise: dict[str, Any] = {"budget": self.budget} if self.budget else {"mechanism": "none"}
        names = [*NUMBERS, *LEVELS]
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


def learned(loss: str, size: Size, unit: float = 1.0) -> Mapping[Line, Runs]:
    """The iterates of every line at the marks, each permutation of the learned records given to all lines."""
    budgets = [None if mu is None else f"mu={mu:g}" for mu in MU]
    cases = [Line(loss=loss, alpha=alpha, budget=budget, unit=unit) for alpha in ALPHAS for budget in budgets]
    cases += [Line(loss=loss, budget=budget, ours=True, unit=unit) for budget in budgets]
    data, marks = people(size.people), size.marks
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

    def __init__(self, n: int, most: int = 20_000) -> None:
        data, begin = people(n), n * 4 // 5
        rows = slice(begin, min(n, begin + most))
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
    """The measure after all records."""
    return [
        ["ours" if s.ours else f"{s.alpha:.2g}", s.spent, *(rough(measure(s, e[:, -1])) for e in (r.last, r.average))]
        for s, r in runs.items()
    ]


AXES = {
    "mean squared error": "mean squared error / variance",
    "cross-entropy": "cross-entropy, nats",
    "accuracy": "share of right terciles",
}


def _found(runs: Mapping[Line, Runs], label: str, what: str, measure: Measure) -> tuple[str, Any]:
    rows = table(["alpha", "budget", f"{label}, last", "average"], rows_of(runs, measure))
    return rows, draw(runs, measure, label, what)


def figure_7(quick: bool, what: str) -> tuple[str, Any]:
    """Huber regression of the charges in standard deviations, or in thousand dollars."""
    size = SIZES["small" if quick else "full"]
    unit = 1.0 if what == "standard deviations" else 1 / people(size.people).thousands
    measure = HeldOut(size.people).squared_error
    return _found(learned("huber", size, unit), "mean squared error", f"charges in {what}", measure)


@cache
def figures_8_and_9(size: Size) -> Mapping[Line, Runs]:
    """The terciles: cross-entropy and accuracy of the same runs."""
    return learned("softmax", size)


def terciles(quick: bool, label: str) -> tuple[str, Any]:
    """One of the two."""
    size = SIZES["small" if quick else "full"]
    asked = HeldOut(size.people)
    measure = asked.accuracy if label == "accuracy" else asked.cross_entropy
    return _found(figures_8_and_9(size), label, "terciles", measure)


def weights(quick: bool) -> str:
    """How much Mallows' weight takes off."""
    X = people(SIZES["full"].people).X[:20_000]
    weight = float(np.mean(np.minimum(1, 2 / (1 + np.sum(X**2, axis=1)))))
    said = f"The mean of Mallows' weight is {weight:.2f}, so that noise is {1 / weight:.0f} times as large"
    return f"{said} beside the gradients."


PARTS: dict[str, Callable[[bool], str | tuple[str, Any]]] = {
    "weights": weights,
    "7": partial(figure_7, what="standard deviations"),
    "7b": partial(figure_7, what="thousand dollars"),
    "8": partial(terciles, label="cross-entropy"),
    "9": partial(terciles, label="accuracy"),
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print, and with --write save."""
    command(__file__, PARTS, arguments, quick=True)


if __name__ == "__main__":
    main()
