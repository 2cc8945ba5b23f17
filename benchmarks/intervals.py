"""Intervals of rare classes: how often they cover, and how often they are given.

`python -m benchmarks.intervals --write` writes intervals.md. Records have three normal columns with the weights 1, -1
and 1/2, and an intercept for which a class has a given share. A 95 % interval that is given counts for a coefficient;
one that has an infinite limit or none is not given. No figure is a time. Half an hour on one core.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
from scipy.optimize import brentq
from scipy.special import expit

from benchmarks.shared.pages import command, table
from streamdp import LDPASGDClassifier, PanPrivateClassifier, ShuffleClassifier, WindowedClassifier
from streamdp.errors import NotAvailableError

WEIGHTS = np.array([1.0, -1.0, 0.5])
SHARES = (0.5, 0.1, 0.03, 0.01)
KINDS: dict[str, Any] = {
    "LDP": LDPASGDClassifier,
    "pan-private": PanPrivateClassifier,
    "shuffle": ShuffleClassifier,
    "one window": partial(WindowedClassifier, items_per_user=1, window=2**20),
}


def intercept(share: float) -> float:
    """The intercept for which the class has this share."""
    scores = np.random.default_rng(1).normal(size=(200_000, 3)) @ WEIGHTS
    return float(brentq(lambda b: expit(scores + b).mean() - share, -20, 20))


def limits(kind: str, n: int, epsilon: float, truth: np.ndarray, draw: int) -> np.ndarray:
    """The limits (4, 2) of one draw; NaN if they are not given."""
    rng = np.random.default_rng(draw)
    X = rng.normal(size=(n, 3))
    y = (rng.random(n) < expit(X @ truth[:3] + truth[3])).astype(float)
    budget = f"eps={epsilon:g}" + ",delta=1e-8" * (kind != "LDP")
    model = KINDS[kind](features=["a", "b", "c"], budget=budget)
    model.learn_encoded(X, y)
    if kind != "LDP":
        model.close_batch()
    try:
        return np.asarray(model.interval())[:4]
    except NotAvailableError:
        return np.full((4, 2), np.nan)


def rows(kinds: Sequence[str], sizes: Sequence[int], draws: int) -> Iterator[list[str]]:
    """A row for each share, budget and size."""
    for share in SHARES:
        truth = np.append(WEIGHTS, intercept(share))
        for epsilon in (1.0, 4.0):
            for n in sizes:
                cells = [f"{100 * share:g} %", f"{epsilon:g}", f"{n:,}"]
                for kind in kinds:
                    several = draws * (10 if kind == "LDP" else 1)  # its intervals are few, and its draws cheap
                    found = np.array([limits(kind, n, epsilon, truth, draw) for draw in range(several)])
                    given = np.isfinite(found).all(axis=2)
                    covered = (found[..., 0] <= truth) & (truth <= found[..., 1])
                    share_covered = f"{100 * covered[given].mean():.0f} %" if given.any() else "-"
                    cells.append(f"{share_covered} of {100 * given.mean():.0f} %")
                yield cells


def shown(sizes: Sequence[int], draws: int) -> str:
    """The table of some sizes."""
    return table(
        ["share", "eps", "records", *(f"{kind}: covered, given" for kind in KINDS)], rows([*KINDS], sizes, draws)
    )


PARTS = {
    "short": lambda quick: shown([10_000], 5 if quick else 200),
    "long": lambda quick: shown([100_000], 2 if quick else 40),
    "million": lambda quick: shown([1_000_000], 1 if quick else 12),
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print, and with --write save."""
    command(__file__, PARTS, arguments, quick=True)


if __name__ == "__main__":
    main()
