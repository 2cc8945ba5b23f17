"""Powers of n, d and epsilon in Cheu et al. 2022, Table 1. Run with `python -m studies.powers [--write]`.

The distributions are those of `excess`, the hardest of the family for convex losses. One more attains the bounds of
non-smooth losses (Theorems 4.1, 4.7 and C.3(1)), which the medians of `rates` do not: a median that is far above all
scores, so that its loss is linear, -x'theta / 2, on the unit ball. x has d signs, of norm sqrt(2), and a mean along the
diagonal. The mean's length is about the excess to be expected; the hardest of three is shown. `--write` writes
powers.md and powers.png beside this file. Noise comes from seeded generators, which are for measuring only.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from benchmarks.shared.pages import mean_and_error, pm, slope, table
from benchmarks.shared.pictures import COLOURS, MARKERS, sheet
from studies.excess import METHODS, SETTINGS, Setting

FOLDER = Path(__file__).parent
RECORDS = 31_623
"""n where d or epsilon is varied."""
REPETITIONS = 5
FAR = 100.0
"""The target of the linear losses. No score is above sqrt(2)."""
LINEAR = "linear: a median far away"


@dataclass(frozen=True, eq=False)
class Linear(Setting):
    """The linear loss; x_j > 0 with probability (1 + a) / 2. `points` has the largest x (1, d)."""

    a: float = 1.0

    def draw(self, rng: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray]:
        """n records."""
        X = np.where(rng.random((n, self.d)) < (1 + self.a) / 2, self.points, -self.points)
        return X, np.full(n, FAR)

    def excess(self, theta: np.ndarray) -> float:
        """E f(theta) - f(theta*), exactly."""
        return float(self.a * self.points[0] @ (self.truth - theta)) / 2


def linear(d: int, a: float = 1.0) -> Linear:
    """In d dimensions."""
    points, truth = np.full((1, d), math.sqrt(2 / d)), np.full(d, 1 / math.sqrt(d))
    median = SETTINGS[1]
    own = {"name": LINEAR, "points": points, "truth": truth, "radius": 1.0}
    return Linear(**{field.name: getattr(median, field.name) for field in fields(median)} | own, a=a)


def members(setting: Setting, method: str, n: int) -> list[Setting]:
    """Of whom the hardest is shown."""
    if isinstance(setting, Linear):
        norm = setting.bounds(method, n)[0] / setting.loss.bound
        return [replace(setting, a=min(1.0, norm * share)) for share in (0.25, 0.5, 1.0)]
    return [setting] if setting.convexity else setting.family()


def hardest(setting: Setting, method: str, n: int) -> np.ndarray:
    """The runs of the member with the largest mean excess."""
    runs = [member.measure(method, n, REPETITIONS) for member in members(setting, method, n)]
    return max(runs, key=np.mean)


@dataclass(frozen=True)
class Sweep:
    """One setting and method against one of n, d and epsilon. `exponent` is that of privacy's part of the bound."""

    setting: Callable[[float], tuple[Setting, int]]
    name: str
    method: str
    varied: str
    values: tuple[float, ...]
    exponent: float

    @cached_property
    def told(self) -> list[tuple[float, Setting, int]]:
        """Where the bound is below the excess at the start."""
        cells = [(value, *self.setting(value)) for value in self.values]
        return [cell for cell in cells if cell[1].bounds(self.method, cell[2])[0] < cell[1].start]

    @cached_property
    def runs(self) -> list[np.ndarray]:
        """The excess for each of them."""
        return [hardest(setting, self.method, n) for _, setting, n in self.told]

    @property
    def bounds(self) -> list[float]:
        """The plan's bounds."""
        return [setting.bounds(self.method, n)[0] for _, setting, n in self.told]

    def row(self) -> list[str]:
        """Of the table."""
        values = [value for value, *_ in self.told]
        if len(values) < 2:
            return [self.name, self.method, self.varied, f"{self.exponent:.2f}", "too few sizes", "", ""]
        steep = np.polyfit(np.log(values), np.log(self.bounds), 1)[0]
        pairs = [mean_and_error(run) for run in self.runs]
        share = max((mean + 2 * error) / bound for (mean, error), bound in zip(pairs, self.bounds, strict=True))
        against = f"{self.varied}, {values[0]:,g} to {values[-1]:,g}"
        fitted = pm(slope(values, self.runs))  # type: ignore[arg-type]
        numbers = [f"{self.exponent:.2f}", fitted, f"{steep:.2f}", f"{share:.2f}"]
        return [self.name, self.method, against, *numbers]


def in_n(name: str, of: Callable[[int], Setting], method: str, exponent: float) -> Sweep:
    """Against the number of records."""
    sizes = (1_000, 5_623, 31_623, 177_828)
    return Sweep(lambda value: (of(6), int(value)), name, method, "n", sizes, exponent)


def in_d(name: str, of: Callable[[int], Setting], method: str, exponent: float, most: int) -> Sweep:
    """Against the number of features."""
    columns = tuple(float(d) for d in (2, 4, 8, 32) if d <= most)
    return Sweep(lambda value: (of(int(value)), RECORDS), name, method, "d", columns, exponent)


def in_epsilon(name: str, of: Callable[[int], Setting], method: str, exponent: float) -> Sweep:
    """Against epsilon."""

    def at(value: float) -> tuple[Setting, int]:
        return replace(of(6), budget=f"eps={value:g},delta=1e-6"), RECORDS

    return Sweep(at, name, method, "epsilon", (0.125, 0.5, 2.0), exponent)


FAMILIES: tuple[tuple[str, Callable[[int], Setting], dict[str, float], float, int], ...] = (
    (LINEAR, linear, dict.fromkeys(METHODS[:2], 2 / 3) | {"SGD": 1 / 2}, 1 / 2, 32),
    (SETTINGS[0].name, SETTINGS[0].wide, dict.fromkeys(METHODS[:2], 4 / 5), 1 / 2, 8),
    (SETTINGS[2].name, SETTINGS[2].wide, dict.fromkeys(METHODS[:2], 2.0), 5 / 4, 8),
    (SETTINGS[3].name, SETTINGS[3].wide, dict.fromkeys(METHODS[:2], 4 / 3), 5 / 4, 8),
)
"""Name, setting for d features, the power of 1 / (n epsilon) by method, and of d over it, and the largest d. Strong
convexity is 2 / d of the squared loss, so the theorem's d / lambda^(3/2) is d^(5/2), and its d^(2/3) / lambda is
d^(5/3)."""


def sweeps() -> list[Sweep]:
    """All of them."""
    found = []
    for name, of, powers, share, most in FAMILIES:
        for method, power in powers.items():
            if of is linear:
                found.append(in_n(name, of, method, -power))
            found.append(in_d(name, of, method, power * share, most))
            found.append(in_epsilon(name, of, method, -power))
    return found


def picture(path: Path, found: Sequence[Sweep]) -> None:
    """The linear losses: a panel for what is varied."""
    figure, (axes,) = sheet(1, 3)
    for axis, varied, label in zip(axes, ("n", "d", "epsilon"), ("records n", "features d", "epsilon"), strict=True):
        shown = [sweep for sweep in found if sweep.name == LINEAR and sweep.varied == varied]
        for colour, marker, sweep in zip(COLOURS, MARKERS, shown, strict=False):
            values = np.array([value for value, *_ in sweep.told])
            pairs = np.array([mean_and_error(run) for run in sweep.runs])
            style = {"color": colour, "marker": marker, "ms": 4, "capsize": 2, "label": sweep.method}
            axis.errorbar(values, pairs[:, 0], 2 * pairs[:, 1], **style)
            axis.plot(values, sweep.bounds, "--", color=colour, lw=1)
        axis.set(xscale="log", yscale="log", xlabel=label)
        axis.set_xticks(shown[0].values, [f"{value:,g}" for value in shown[0].values])
        axis.minorticks_off()
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("excess loss; dashed: the plan's bound")
    axes[0].legend(fontsize=8)
    figure.savefig(path, dpi=90)


TEXT = """# Powers of n, d and epsilon

Written by `python -m studies.powers --write`; do not edit. Excess loss of pan-private AC-SA, shuffled AC-SA and
P_SGD (Cheu et al. 2022, Table 1, sequential), delta = 1e-6, {repetitions} repetitions; ± is one Monte Carlo standard
error. n = {records:,}, six features and epsilon = 1, but for what is varied; only sizes at which the plan's bound is
below the excess of theta_0.

* "Linear": half the absolute distance from a target far above all scores, on the unit ball. It is convex, and has its
  kink where no score comes, so it is in the class of Theorems 4.1, 4.7 and C.3(1), and no member of the class is much
  harder: theta learns a direction from gradients whose mean is about as long as the error of theirs. The hardest of
  three lengths is shown. The excess of all other losses of `rates.md` is that of curvature, too.
* The others are those of `rates.md`, with equal scales (convex: the hardest of seven). Strong convexity is 2 / d times
  that of the loss in its score, so that the theorems' d / lambda^(3/2) is d^(5/2), and d^(2/3) / lambda is d^(5/3).

![Linear losses](powers.png)

"Exponent" is that of privacy's part of the theorem's bound, the other part having n^-1/2 (n^-1) and no d or epsilon.
The plan's bound has both parts and the logarithms, so its slope is what the theorem says at these sizes. The last
column is the largest ratio of mean excess, plus two standard errors, and the plan's bound.

{table}
"""
HEAD = ["setting", "method", "against", "exponent", "slope", "slope of the bound", "largest (mean + 2 s.e.) / bound"]


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print, and with --write save."""
    parser = argparse.ArgumentParser(description="Measure powers of n, d and epsilon.")
    parser.add_argument("--write", action="store_true", help="write powers.md and powers.png")
    write = parser.parse_args(arguments).write
    found, rows = sweeps(), []
    for sweep in found:
        rows.append(sweep.row())
        print(*rows[-1], sep=" | ", flush=True)
    if write:
        page = TEXT.format(repetitions=REPETITIONS, records=RECORDS, table=table(HEAD, rows))
        (FOLDER / "powers.md").write_text(page, encoding="utf-8")
        picture(FOLDER / "powers.png", found)


if __name__ == "__main__":
    main()
