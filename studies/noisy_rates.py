"""Rates of LDP-SGD and LDP-ASGD with noise. Run with `python -m studies.noisy_rates [--write]`.

Shi et al. 2025, Theorems 3 and 4: the squared distance of the last iterate falls as n^-alpha, that of the average as
n^-min(2 alpha, 1). `theory` measures them without noise, and with noise at alpha = 1/2. Here other alphas have noise,
and d is varied. The setting is the paper's Huber regression, mu = 3, coefficients in [0, 2]. Noise comes from seeded
generators, which are for measuring only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
from scipy.special import expit

from benchmarks.shared.pages import command, mean_and_error, pm, rough, table
from streamdp.estimators.ldp.estimators import LDPASGDClassifier
from streamdp.optim.domains import Box
from studies.figures_ldp import excess, exponents
from studies.theory import PAPER, Case, Runs, clt_ratio, gaussian_noise, huber_theory, rates, simulate, slope

RUNS, MU = 24, 3
BASE = Case(eta=0.5, budget=f"mu={MU}", domain=Box(0.0, 2.0))
CASES = (
    replace(BASE, eta=0.05, alpha=1 / 4),
    replace(BASE, eta=0.1, alpha=1 / 3),
    BASE,
    replace(BASE, eta=2.0, alpha=2 / 3),
    replace(BASE, eta=4.0, alpha=0.8),
)
MARKS = (10_000, 17_783, 31_623, 56_234, 100_000, 177_828, 316_228)
FLAT, FLAT_RUNS = (1_000, 3_162, 10_000, 31_623, 100_000), 60
SCALES = tuple(2.0 ** (-k / 2) for k in range(-1, 11))
"""No record is longer than sqrt(2), so that no Mallows weight plays a part."""
COLUMNS = (2, 5, 10, 20)
LAST = 100_000
"""Records where d is varied."""


def alphas_table(results: Sequence[Runs]) -> str:
    """A row for each alpha."""
    rows, marks = [], np.array(MARKS)
    variance = huber_theory(BASE.d).variance(gaussian_noise(MU))
    for case, run in zip(CASES, results, strict=True):
        last, average = rates(case.alpha)
        row = [f"{case.alpha:.3g}", f"{case.eta:g}", pm(slope(marks, run.last)), f"{last:.2f}"]
        row += [pm(slope(marks, run.average)), f"{average:.2f}"]
        for errors in (run.last, run.average):
            row.append(rough(np.sum(errors[:, -1] ** 2, axis=1)))
        row.append(pm(clt_ratio(run, MARKS[-1], variance)))
        rows.append(row)
    head = ["alpha", "eta", "slope of theta_n", "theory", "slope of bar_n", "theory"]
    return table([*head, f"theta_n at {MARKS[-1]:,}", "bar_n there", "bar_n / limit"], rows)


def excess_table(results: Sequence[Runs]) -> str:
    """A row for each alpha: slopes of the mean excess loss beside Table 1."""
    rows, marks = [], np.array(MARKS)
    for case, run in zip(CASES, results, strict=True):
        if (theory := exponents(case.alpha, excess)) is None:
            continue
        row = [f"{case.alpha:.3g}"]
        for errors, exponent in zip((run.last, run.average), theory, strict=True):
            row += [pm(slope(marks, np.sqrt(excess(case, errors))[..., None])), f"{exponent:.2f}"]
        rows.append(row)
    return table(["alpha", "slope of theta_n", "Table 1", "slope of bar_n", "Table 1"], rows)


def flat_runs(scale: float, alpha: float) -> tuple[np.ndarray, np.ndarray]:
    """The excess (runs, marks) of the last and of the averaged iterate, logistic regression on x = +-scale."""
    found, chance = [], expit(scale)
    for run in range(FLAT_RUNS):
        rng = np.random.default_rng(run)
        x = rng.choice([-scale, scale], FLAT[-1])
        y = (rng.random(FLAT[-1]) < expit(x)).astype(float)
        options: dict[str, Any] = {"features": ["x"], "intercept": False, "clock": "records", "eta": 1.0}
        model = LDPASGDClassifier(PAPER["logistic"], f"mu={MU}", alpha=alpha, seed=run, **options)
        states, begin = [], 0
        for mark in FLAT:
            model.learn_arrays(x[begin:mark, None], y[begin:mark])
            states.append(model.state_dict()["state"][:, 0])
            begin = mark
        found.append(states)
    u = scale * np.array(found)
    excess = np.logaddexp(0, u) - np.logaddexp(0, scale) - chance * (u - scale)
    return excess[:, :, 0], excess[:, :, 1]


def flat_table() -> str:
    """A row for each alpha: slopes of the worst of the family at each n, and Table 1."""
    rows = []
    for alpha in (1 / 3, 1 / 2, 2 / 3, 0.8):
        family, row = [flat_runs(scale, alpha) for scale in SCALES], [f"{alpha:.3g}"]
        for which, exponent in enumerate(exponents(alpha, excess) or ()):
            worst = np.argmax([runs[which].mean(axis=0) for runs in family], axis=0)
            runs = np.column_stack([family[k][which][:, at] for at, k in enumerate(worst)])
            shown = f"{SCALES[worst[0]]:.2g} to {SCALES[worst[-1]]:.2g}"
            row += [pm(slope(np.array(FLAT), np.sqrt(runs)[..., None])), f"{exponent:.2f}", shown]
        rows.append(row)
    head = ["slope of {}", "Table 1", "hardest scales"]
    return table(["alpha", *(name.format(which) for which in ("theta_n", "bar_n") for name in head)], rows)


def columns_table() -> str:
    """A row for each d, and the slopes; the limit is tr(A^-1 S A^-1) / n."""
    rows, found = [], []
    for d in COLUMNS:
        (run,) = simulate([replace(BASE, d=d)], [LAST], RUNS, seed=8)
        errors = [mean_and_error(np.sum(each[:, 0] ** 2, axis=1)) for each in (run.last, run.average)]
        limit = float(huber_theory(d).variance(gaussian_noise(MU)).sum()) / LAST
        found.append([*(mean for mean, _ in errors), limit])
        shown = ["{:.2g} ± {:.1g}".format(*pair) for pair in errors]
        rows.append([str(d), *shown, f"{limit:.2g}", f"{errors[1][0] / limit:.2f}"])
    fits = [f"{np.polyfit(np.log(COLUMNS), np.log(values), 1)[0]:.2f}" for values in zip(*found, strict=True)]
    return table(["d", "theta_n", "bar_n", "limit of bar_n", "bar_n / limit"], [*rows, ["slope", *fits, ""]])


@cache
def results() -> list[Runs]:
    """The runs of all alphas."""
    return simulate(CASES, MARKS, RUNS, seed=7)


PARTS: dict[str, Callable[[], str]] = {
    "alphas": lambda: alphas_table(results()),
    "excess": lambda: excess_table(results()),
    "flat": flat_table,
    "columns": columns_table,
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print, and with --write save."""
    command(__file__, PARTS, arguments)


if __name__ == "__main__":
    main()
