"""How fast the excess loss falls with n. Run with `python -m studies.rates [--write]`.

The settings are in `excess`. `--write` puts tables and figure into rates.md and rates.png beside this file. Noise comes
from seeded generators, which are for measuring only.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.shared.pages import fast_enough, mean_and_error, pm, ratio, slope, table
from benchmarks.shared.pictures import COLOURS, MARKERS, sheet
from studies.excess import FAMILY, METHODS, SETTINGS, Setting

FOLDER = Path(__file__).parent
SIZES = tuple(round(10 ** (k / 2)) for k in range(6, 13))  # 10^3, 10^3.5, ..., 10^6
REPETITIONS = {"pan-private": 12, "shuffle": 12, "SGD": 8}
FAMILY_REPETITIONS = {"pan-private": 5, "shuffle": 5, "SGD": 3}


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

    def share(self, errors: float = 2.0) -> float:
        """The largest ratio of measured excess, plus so many standard errors, and bound."""
        pairs = [mean_and_error(run) for run in self.runs]
        bounds = [self.setting.bounds(self.method, n)[0] for n in self.sizes]
        return max((mean + errors * error) / bound for (mean, error), bound in zip(pairs, bounds, strict=True))


def curve(setting: Setting, method: str, sizes: Sequence[int], repetitions: int, seed: int = 0) -> Curve:
    """Measure one."""
    print(f"{setting.name}, {method}", flush=True)
    return Curve(setting, method, tuple(sizes), tuple(setting.measure(method, n, repetitions, seed) for n in sizes))


def worst(setting: Setting, method: str, sizes: Sequence[int], repetitions: int, seed: int = 0) -> Curve:
    """At each n the runs of that member of the family whose mean excess is the largest there."""
    members = [curve(member, method, sizes, repetitions, seed) for member in setting.family()]
    runs = tuple(max((c.runs[k] for c in members), key=np.mean) for k in range(len(sizes)))
    return Curve(members[0].setting, method, tuple(sizes), runs)


def _scientific(pair: tuple[float, float]) -> str:
    return f"{pair[0]:.1e} ± {pair[1]:.0e}"


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
        rows.append([name, *(_scientific(mean_and_error(run)) for run in c.runs)])
        rows.append(["its bound", *(f"{c.setting.bounds(c.method, n)[0]:.1e}" for n in c.sizes)])
    return table(["excess loss", *(f"{n:,}" for n in curves[0].sizes)], rows)


def against_sgd(curves: Sequence[Curve]) -> str:
    """How many times the excess of P_SGD is that of the accelerated methods, at equal n."""
    rows = []
    for c in curves:
        rival = next((s for s in curves if s.setting.name == c.setting.name and s.method == "SGD"), None)
        if rival is None or rival is c:
            continue
        pairs = [ratio(slow, fast) for slow, fast in zip(rival.runs, c.runs, strict=True)]
        rows.append([f"{c.setting.name}, SGD over {c.method}", *(pm(pair, 1) for pair in pairs)])
        bounds = [rival.setting.bounds("SGD", n)[0] / c.setting.bounds(c.method, n)[0] for n in c.sizes]
        rows.append(["of their bounds", *(f"{b:.1f}" for b in bounds)])
    return table(["ratio of excess", *(f"{n:,}" for n in curves[0].sizes)], rows)


def draw(path: Path, curves: Sequence[Curve]) -> None:
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
    figure.savefig(path, dpi=90)


TEXT = """# Rates, measured

Written by `python -m studies.rates --write`; do not edit. Excess loss against n for pan-private AC-SA, shuffled
AC-SA ("shuffle") and P_SGD ("SGD": shuffled, averaged), each with the horizon n declared, eps = 1, delta = 1e-6, six
features. ± is one Monte Carlo standard error over {accelerated} repetitions ({sgd} of SGD).

Features are all 64 signs of a fixed vector, equally likely, so the excess is exact. The convex settings (ball of radius
5, theta* = (2, ..., 2)) have scales 1, 1/2, ..., 1/32, so curvatures a factor of 1024 apart and always some directions
that n does not settle; the median's noise has an atom, so its expected loss has kinks at the optimum. In the strongly
convex settings (unit ball, ||theta*|| = 0.8) the Hessian is a multiple of I everywhere, and lambda is declared.
"Worst of {family}" is what the theorems are about, which hold for every distribution: scales all equal to 1, 1/2, ...,
1/64, and at each n the one with the largest excess there ({few} repetitions, {fewest} of SGD).

![Excess loss](rates.png)

## Slopes

Theorems bound the excess by a sum of two powers of n: the one without privacy, which is the slower, and privacy's, in
brackets. "Met" says whether the fitted slope is at most the slower term's plus two standard errors; for a strongly
convex loss that term is (n / k)^-1 with its k = ceil(log2 log2 n) phases, the theorem's O~. Privacy's part of the
plan's bound is the larger one up to the n that is named. Where the bound exceeds the excess of theta_0 = 0 it says
nothing, and the excess may be anything below; so slopes are also fitted from the first n where it tells.

{slopes}

{finding}

A slower slope is no contradiction while the excess is below the bound (the last column). A fixed
distribution is easy at small n: what is steep is settled, what is flat is worth little yet, and the excess starts far
below the bound; from there it falls slower than the bound until the flattest direction is settled. The worst of a
family, which grows harder with n, is free of that. Where the bound tells nothing at small n, theta_0 limits the excess.

## Accelerated against averaged

Theorems 4.3 (smooth) and 4.7 (non-smooth) promise less than Theorem 4.1, whose n^-1/2 has the factor d^1/4
log^1/2(d/delta) / eps^1/2; theirs has none. How many times larger SGD's excess is:

{versus}

## Excess

{excess}
"""


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


def main() -> None:
    """Measure, print, and with --write save."""
    parser = argparse.ArgumentParser(prog="python -m studies.rates", description="Measure rates of the excess loss.")
    parser.add_argument("--write", action="store_true", help="write rates.md and rates.png")
    write = parser.parse_args().write
    curves = []
    for setting in SETTINGS:
        for method in setting.methods:
            curves.append(curve(setting, method, SIZES, REPETITIONS[method]))
        if not setting.convexity:
            curves += [worst(setting, method, SIZES, FAMILY_REPETITIONS[method]) for method in setting.methods]
    text = TEXT.format(
        accelerated=REPETITIONS["shuffle"],
        sgd=REPETITIONS["SGD"],
        family=FAMILY,
        few=FAMILY_REPETITIONS["shuffle"],
        fewest=FAMILY_REPETITIONS["SGD"],
        slopes=slopes_table(curves),
        finding=finding(curves),
        versus=against_sgd(curves),
        excess=excess_table(curves),
    )
    print(text)
    if write:
        (FOLDER / "rates.md").write_text(text, encoding="utf-8")
        draw(FOLDER / "rates.png", curves)


if __name__ == "__main__":
    main()
