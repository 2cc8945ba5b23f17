"""Confidence intervals of the walk of Shi et al. 2025, as printed. Run with `python -m studies.coverage [--write]`.

Corollary 1 has a normal limit. Its plug-in interval is bar_n +- 1.96 sqrt(V / n), V = A^-1 S A^-1; here A and S are the
true ones, which consistent estimates come near. Beside it is `interval` with clock="records", from the path.
Setting: section 5 of the paper, d = 5, eta = 0.2, Mallows' weight. Noise comes from seeded
generators, which are for measuring only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product

import numpy as np

from benchmarks.learning import judged
from benchmarks.shared.pages import command, table
from streamdp import datasets
from streamdp.optim.planner import asymptotic_variance
from studies.theory import PAPER, Case

SIZES = {300_000: 60, 3_000_000: 12}
"""How many draws there are of so many records."""
ALPHAS, MU, Z = (1 / 2, 0.6, 2 / 3), (0.5, 1, 2, 3), 1.96


def rows(sizes: Mapping[int, int]) -> Iterator[list[str]]:
    """A row for each loss, number of records, alpha and mu."""
    for loss, (n, draws) in product(PAPER, sizes.items()):
        generate = datasets.linear if loss == "huber" else datasets.logistic
        cases = [Case(alpha=alpha, budget=f"mu={mu}", loss=loss) for alpha, mu in product(ALPHAS, MU)]
        averages = np.empty((len(cases), draws, len(cases[0].theta)))
        limits = np.empty((*averages.shape, 2))
        for draw in range(draws):
            X, y = generate(n, 5, seed=700_000 + draw)
            for k, case in enumerate(cases):
                model = case.estimator(900_000 + draw)
                model.learn_arrays(X, y)
                averages[k, draw], limits[k, draw] = model.theta, model.interval()
        for case, average, limit in zip(cases, averages, limits, strict=True):
            error = Z * np.sqrt(np.diagonal(asymptotic_variance(PAPER[loss], 5, str(case.budget))) / n)
            plugged = np.stack([average - error, average + error], axis=2)
            truths = np.broadcast_to(case.theta, average.shape)
            _, plug_in, _ = held(*judged(plugged, truths))
            yield [loss, f"{n:,}", str(draws), f"{case.alpha:.2f}", case.label, plug_in, *held(*judged(limit, truths))]


def held(share: float, error: float, width: float, settled: float) -> list[str]:
    """The share of intervals given, coverage, and width; no coverage if fewer than one in twenty is given."""
    if settled < 0.05:
        return [f"{settled:.0%}", "", ""]
    return [f"{settled:.0%}", f"{100 * share:.1f} ± {100 * error:.1f} %", f"{width:.2f}"]


HEAD = ["loss", "records", "draws", "alpha", "budget", "plug-in covers", "`interval` given", "covers", "width"]
PARTS: dict[str, Callable[[bool], str]] = {
    "intervals": lambda quick: table(HEAD, rows({20_000: 4} if quick else SIZES)),
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print, and with --write save."""
    command(__file__, PARTS, arguments, quick=True)


if __name__ == "__main__":
    main()
