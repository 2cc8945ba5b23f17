"""Section 6 of Shi et al. 2025, on synthetic insured people. `python -m studies.figures_insurance [--write]`.

Figure 7: Huber regression of the charges, by the mean squared error on held-out records. Figures 8 and 9: multinomial
logistic regression of the terciles of the charges, by cross-entropy and accuracy. The paper's file is on Kaggle, and no
package of the Python index ships it; `streamdp.datasets.insurance` has its columns and its size, but other people.
Encoding, steps (0.5 i^-alpha), start (uniform on (0, 1)), split (four fifths) and permutations are the paper's. The
paper does not say in which unit the charges are learned, and the result depends on it, so Figure 7 has two: standard
deviations, and thousand dollars. Numeric columns are standardised with the moments of all records, as in the paper:
this is outside of any guarantee. Beside it are the library's defaults on the same columns. `--write`
writes figures_insurance.md beside this file.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.shared.pages import table, write
from benchmarks.shared.pictures import sheet
from streamdp.data import datasets
from streamdp.estimators.ldp.estimators import LDPASGDClassifier, LDPASGDRegressor
from streamdp.optim.losses import Softmax
from studies.figures_ldp import ALPHAS, MU, STYLES, Found, Measure, Study, cell, lines, walk_name
from studies.theory import PAPER, Runs

FILE = Path(__file__).with_suffix(".md")
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
            state["state"] = np.tile(start, (2, 1))
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
        ["ours" if s.ours else f"{s.alpha:.2g}", s.spent, *(cell(measure(s, e[:, -1])) for e in (r.last, r.average))]
        for s, r in runs.items()
    ]


AXES = {
    "mean squared error": "mean squared error / variance",
    "cross-entropy": "cross-entropy, nats",
    "accuracy": "share of right terciles",
}
PAPER_SAYS = {
    "7": "Paper: the error is near that without noise for mu >= 1; alpha = 1/2 gives the average its lowest error for\n"
    "every budget; for alpha >= 1/2 the average is worse than the last iterate; at alpha = 1 neither converges.",
    "8": "Paper: the average loses more than the last iterate, and alpha = 1/3 gives the last iterate the least;\n"
    "at alpha = 1 neither converges.",
    "9": "Paper: accuracy comes near to that without noise.",
}
TEXT = """# Section 6 of Shi et al. 2025, on synthetic people

Written by `python -m studies.figures_insurance --write --size {name}`; do not edit. {people:,} people of
`streamdp.datasets.insurance`, of whom four fifths are learned in {runs} permutations and at most 20,000 others are
asked (the paper: Kaggle's people, 50 permutations, 200,000 asked). The records are not the paper's, so that its
numbers cannot come out, only what it says about them. Errors of charges are in units of their variance: the best
constant has 1. The most frequent tercile has 34 % of the people, and the cross-entropy ln 3 = 1.10 knows nothing. ± is
one Monte Carlo standard error over permutations and noise. Verdicts are in [docs/papers.md](../docs/papers.md).

The codes 0 to 3 make records long: the mean of Mallows' weight is {weight:.2f}, so that noise is {over:.0f} times as
large beside the gradients as for short records. The first, large steps carry theta far away: at alpha = 1/3 to errors
of 1,000 (mu = 1) and 10,000 (mu = 0.5). It takes some 100,000 records to come back, so with fewer records the paper's
steps end far above the best constant.
"""


def figure_7(size: Size, unit: float, what: str, number: str) -> list[Found]:
    """Huber regression."""
    runs, measure = learned("huber", size, unit), HeldOut(size.people).squared_error
    return [_found(number, what, runs, "mean squared error", measure)]


def figures_8_and_9(size: Size) -> list[Found]:
    """The terciles: cross-entropy and accuracy of the same runs."""
    runs, asked = learned("softmax", size), HeldOut(size.people)
    kinds = (("8", "cross-entropy", asked.cross_entropy), ("9", "accuracy", asked.accuracy))
    return [_found(number, "terciles", runs, label, measure) for number, label, measure in kinds]


def _found(number: str, what: str, runs: Mapping[Line, Runs], label: str, measure: Measure) -> Found:
    rows = table(["alpha", "budget", f"{label}, last", "average"], rows_of(runs, measure))
    return Found(number, f"{label}, {what}", PAPER_SAYS[number[0]], rows, draw(runs, measure, label, what))


FIGURES: dict[str, Callable[[Size], list[Found]]] = {
    "7": lambda size: figure_7(size, 1.0, "charges in standard deviations", "7"),
    "7b": lambda size: figure_7(size, 1 / people(size.people).thousands, "charges in thousand dollars", "7b"),
    "8-9": figures_8_and_9,
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print tables, and with --write save the page and the pictures."""
    parser = argparse.ArgumentParser(description="Section 6 of Shi et al. 2025, on synthetic people.")
    parser.add_argument("--write", action="store_true", help=f"write {FILE.name} and its pictures")
    parser.add_argument("--size", choices=SIZES, default="full", help="how many permutations; small is for a look")
    parser.add_argument("--only", choices=FIGURES, nargs="+", default=[*FIGURES], help="which figures")
    given = parser.parse_args(arguments)
    if given.write and given.size == "small":
        parser.error("--size small is for a look: its figures cannot be written")
    size = SIZES[given.size]
    X = people(size.people).X[:20_000]
    weight = float(np.mean(np.minimum(1, 2 / (1 + np.sum(X**2, axis=1)))))
    head = TEXT.format(name=given.size, people=size.people, runs=size.runs, weight=weight, over=1 / weight)
    for name in given.only:
        for figure in FIGURES[name](size):
            print(f"{figure.title}\n\n{figure.table}\n", flush=True)
            if given.write:
                write(figure.section("insurance"), head, FILE)


if __name__ == "__main__":
    main()
