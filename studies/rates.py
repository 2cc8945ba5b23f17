"""Rates of Cheu et al. 2022: how fast the excess loss falls with n, d and epsilon. `python -m studies.rates [--write]`.

The settings are in `excess`. One more attains the bounds of non-smooth losses (Theorems 4.1, 4.7 and C.3(1)), which the
medians do not: a median that is far above all scores, so that its loss is linear, -x'theta / 2, on the unit ball. x has
d signs, of norm sqrt(2), and a mean along the diagonal. The mean's length is about the excess to be expected; the
hardest of three is shown. A second has its kink at the optimum: the median is far off for most records, as often above
as below, and not at all for a share of them about as small as the bound. Noise comes from seeded generators, which are
for measuring only.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache, cached_property
from typing import Any

import numpy as np

from benchmarks.shared.pages import command, fast_enough, mean_and_error, pm, scientific, slope, table
from benchmarks.shared.pictures import COLOURS, MARKERS, sheet
from studies.excess import METHODS, SETTINGS, Setting, even

SIZES = tuple(round(10 ** (k / 2)) for k in range(6, 13))  # 10^3, 10^3.5, ..., 10^6
REPETITIONS = 12
STRONG_REPETITIONS = 96
FAMILY_REPETITIONS = 10


@dataclass(frozen=True)
class Curve:
    """The excess of one method in one setting: `runs` has the repetitions at each of `sizes`."""

    setting: Setting
    method: str
    sizes: tuple[int, ...]
    runs: tuple[np.ndarray, ...]

    def exponent(self, chosen: Sequence[int] | None = None) -> float:
        """The slope of the slower of the theorem's terms, which is P_SGD's only one, over the chosen sizes."""
        sizes = self.sizes if chosen is None else [self.sizes[k] for k in chosen]
        return float(np.polyfit(np.log(sizes), np.log([self.setting.rate(n) for n in sizes]), 1)[0])

    def told(self) -> list[int]:
        """Which sizes the bound says something about: it is below the excess of not learning at all."""
        start = self.setting.start
        return [k for k, n in enumerate(self.sizes) if self.setting.bounds(self.method, n)[0] < start]

    def fit(self, chosen: Sequence[int] | None = None) -> tuple[float, float]:
        """The slope over the chosen sizes, all when None."""
        chosen = range(len(self.sizes)) if chosen is None else chosen
        return slope([self.sizes[k] for k in chosen], [self.runs[k] for k in chosen])

    def share(self) -> float:
        """The largest ratio of measured excess, plus two standard errors, and bound."""
        pairs = [mean_and_error(run) for run in self.runs]
        bounds = [self.setting.bounds(self.method, n)[0] for n in self.sizes]
        return max((mean + 2 * error) / bound for (mean, error), bound in zip(pairs, bounds, strict=True))


def curve(setting: Setting, method: str, sizes: Sequence[int], repetitions: int, seed: int = 0) -> Curve:
    """Measure one."""
    print(f"{setting.name}, {method}", flush=True)
    return Curve(setting, method, tuple(sizes), tuple(setting.measure(method, n, repetitions, seed) for n in sizes))


def worst(setting: Setting, method: str, sizes: Sequence[int], repetitions: int, seed: int = 0) -> Curve:
    """At each n the runs of that member of the family whose mean excess is the largest there."""
    members = [curve(member, method, sizes, repetitions, seed) for member in setting.family()]
    runs = tuple(max((c.runs[k] for c in members), key=np.mean) for k in range(len(sizes)))
    return Curve(members[0].setting, method, tuple(sizes), runs)


def _verdict(fitted: tuple[float, float], exponent: float) -> str:
    return f"{pm(fitted)} ({'yes' if fast_enough(fitted, exponent) else '**no**'})"


def slopes_table(curves: Sequence[Curve]) -> str:
    """A row a curve."""
    rows = []
    for c in curves:
        told, bounds = c.told(), np.array([c.setting.bounds(c.method, n) for n in c.sizes])
        sgd = c.method == "SGD"
        fitted = _verdict(c.fit(told), c.exponent(told)) if len(told) > 1 else "too few sizes"
        steep = np.polyfit(np.log(c.sizes)[told], np.log(bounds[told, 0]), 1)[0] if len(told) > 1 else math.nan
        apart = [k for k, n in enumerate(c.sizes) if bounds[k, 0] >= 2 * bounds[k, 1]]
        rows.append(
            [
                c.setting.name,
                c.method,
                "4.1" if sgd else c.setting.theorem,
                f"{c.setting.slow:.2f}" if sgd else f"{c.setting.slow:.2f} ({c.setting.fast:.2f})",
                f"{c.sizes[apart[-1]]:,}" if apart else "nowhere",
                _verdict(c.fit(), c.exponent()),
                f"{c.sizes[told[0]]:,}" if told else "nowhere",
                fitted,
                f"{steep:.2f}",
                f"{c.share():.2f}",
            ]
        )
    head = ["setting", "method", "theorem", "n^ (privacy's)", "privacy's part leads to n =", "slope, all n (met)"]
    head += [
        "bound tells from n =",
        "slope from there (met)",
        "slope of the bound there",
        "largest (mean + 2 s.e.) / bound",
    ]
    return table(head, rows)


def excess_table(curves: Sequence[Curve]) -> str:
    """The excess of every curve, and the bound."""
    rows = []
    for c in curves:
        name = f"{c.setting.name}, {c.method}"
        rows.append([name, *(scientific(run) for run in c.runs)])
        rows.append(["its bound", *(f"{c.setting.bounds(c.method, n)[0]:.1e}" for n in c.sizes)])
    return table(["excess loss", *(f"{n:,}" for n in curves[0].sizes)], rows)


def draw(curves: Sequence[Curve]) -> Any:
    """The figure: a panel a setting."""
    settings = list(dict.fromkeys(c.setting.name for c in curves))
    figure, axes = sheet(2, len(settings) // 2, share=False, width=4.2, height=3.3)
    for axis, name in zip(axes.flat, settings, strict=True):
        shown = [c for c in curves if c.setting.name == name]
        for c in shown:
            k = METHODS.index(c.method)
            pairs = np.array([mean_and_error(run) for run in c.runs])
            label = f"{c.method}, slope {c.fit()[0]:.2f}"
            axis.errorbar(
                c.sizes, pairs[:, 0], 2 * pairs[:, 1], fmt=MARKERS[k] + "-", ms=4, color=COLOURS[k], label=label
            )
            axis.plot(c.sizes, [c.setting.bounds(c.method, n)[0] for n in c.sizes], "--", lw=1, color=COLOURS[k])
        setting, n = shown[0].setting, np.array(shown[0].sizes)
        axis.plot(
            n, shown[0].runs[-1].mean() * (n / n[-1]) ** setting.slow, ":", color="0.3", label=f"n^{setting.slow:g}"
        )
        axis.axhline(setting.start, color="0.5", lw=0.8, label="nothing learned")
        axis.set(xscale="log", yscale="log", xlabel="records n", ylabel="excess loss")
        axis.set_title(name, fontsize=10)
        axis.legend(fontsize=8)
    figure.suptitle("Solid: measured, with two standard errors. Dashed: the plan's bound.", fontsize=10)
    return figure


def finding(curves: Sequence[Curve]) -> str:
    """What holds and what does not, in words."""
    told = [c for c in curves if len(c.told()) > 1]
    slow = [f"{c.setting.name}, {c.method}" for c in told if not fast_enough(c.fit(c.told()), c.exponent(c.told()))]
    early = [f"{c.setting.name}, {c.method}" for c in curves if not fast_enough(c.fit(), c.exponent())]
    above = [f"{c.setting.name}, {c.method}" for c in curves if c.share() > 1]
    lines = [f"Slower than the theorem where the bound tells: {'; '.join(slow) or 'none'}."]
    lines.append(f"Slower over the whole range, small n included: {'; '.join(early) or 'none'}.")
    lines.append(f"Mean plus two standard errors above the plan's bound at some n: {'; '.join(above) or 'none'}.")
    return "\n".join(lines)


# --- powers of n, d and epsilon -----------------------------------------------------------------------------


RECORDS = 31_623
"""n where d or epsilon is varied."""
EACH = 10
FAR = 100.0
"""The target of the linear losses. No score is above sqrt(2)."""
LINEAR = "linear: a median far away"
KINKED = "a rare kink at the optimum"


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


@dataclass(frozen=True, eq=False)
class Kinked(Linear):
    """y is the score for a share `a` of the records, and far above or below it for the others, in equal parts."""

    def draw(self, rng: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray]:
        """n records."""
        X = self.points[rng.integers(0, len(self.points), n)]
        far = rng.choice([-FAR, 0.0, FAR], p=[(1 - self.a) / 2, self.a, (1 - self.a) / 2], size=n)
        return X, X @ self.truth + far

    def excess(self, theta: np.ndarray) -> float:
        """E f(theta) - f(theta*), exactly."""
        return self.a * float(np.mean(np.abs(self.points @ (theta - self.truth)))) / 2


def kinked(d: int, a: float = 1.0) -> Kinked:
    """In d dimensions."""
    own = {field.name: getattr(linear(d, a), field.name) for field in fields(Linear)}
    return Kinked(**own | {"name": KINKED, "points": even(d)})


def members(setting: Setting, method: str, n: int) -> list[Setting]:
    """Of whom the hardest is shown."""
    if isinstance(setting, Linear):
        norm = setting.bounds(method, n)[0] / setting.loss.bound
        shares = (2.0, 4.0, 8.0) if isinstance(setting, Kinked) else (0.25, 0.5, 1.0)
        return [replace(setting, a=min(1.0, norm * share)) for share in shares]
    return [setting] if setting.convexity else setting.family()


def hardest(setting: Setting, method: str, n: int) -> np.ndarray:
    """The runs of the member with the largest mean excess."""
    runs = [member.measure(method, n, EACH) for member in members(setting, method, n)]
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
    (KINKED, kinked, dict.fromkeys(METHODS[:2], 2 / 3) | {"SGD": 1 / 2}, 1 / 2, 8),
    (SETTINGS[0].name, SETTINGS[0].wide, dict.fromkeys(METHODS[:2], 4 / 5), 1 / 2, 8),
    (SETTINGS[2].name, SETTINGS[2].wide, dict.fromkeys(METHODS[:2], 2.0), 5 / 4, 8),
    (SETTINGS[3].name, SETTINGS[3].wide, dict.fromkeys(METHODS[:2], 4 / 3), 5 / 4, 8),
)
"""Name, setting for d features, the power of 1 / (n epsilon) by method, and of d over it, and the largest d. Strong
convexity is 1 / d times a constant, so the theorem's d / lambda^(3/2) is d^(5/2), and its d^(2/3) / lambda is
d^(5/3)."""


def sweeps() -> list[Sweep]:
    """All of them."""
    found = []
    for name, of, powers, share, most in FAMILIES:
        for method, power in powers.items():
            if of in (linear, kinked):
                found.append(in_n(name, of, method, -power))
            found.append(in_d(name, of, method, power * share, most))
            found.append(in_epsilon(name, of, method, -power))
    return found


def draw_powers(found: Sequence[Sweep]) -> Any:
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
    return figure


HEAD = ["setting", "method", "against", "exponent", "slope", "slope of the bound", "largest (mean + 2 s.e.) / bound"]


def powers() -> tuple[str, Any]:
    """The table, and the picture of linear losses."""
    found, rows = sweeps(), []
    for sweep in found:
        rows.append(sweep.row())
        print(*rows[-1], sep=" | ", flush=True)
    return table(HEAD, rows), draw_powers(found)


@cache
def curves() -> list[Curve]:
    """All of them."""
    found = []
    for setting in SETTINGS:
        each = STRONG_REPETITIONS if setting.convexity else REPETITIONS
        found += [curve(setting, method, SIZES, each) for method in setting.methods]
        if not setting.convexity:
            found += [worst(setting, method, SIZES, FAMILY_REPETITIONS) for method in setting.methods]
    return found


PARTS: dict[str, Callable[[], str | tuple[str, Any]]] = {
    "slopes": lambda: (f"{slopes_table(curves())}\n\n{finding(curves())}", draw(curves())),
    "excess": lambda: excess_table(curves()),
    "powers": powers,
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print, and with --write save."""
    command(__file__, PARTS, arguments)


if __name__ == "__main__":
    main()
