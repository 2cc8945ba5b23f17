"""The error of statistics, beside one release of the same numbers by OpenDP, and how often limits cover.

Run with `python -m benchmarks.statistics [--write]`; `--only windows cells covered` does those of windows alone, in
three minutes. Charges of the simulated insurance data (`streamdp.datasets`) by
region. Noise of streamdp comes from seeded generators, which are for measuring only. Needs the extra
`bench`. Twelve minutes on one core.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any

import numpy as np
import polars as pl
from scipy.optimize import brentq
from scipy.stats import norm

from benchmarks.shared.pages import command, table
from streamdp import stats
from streamdp.datasets import insurance
from streamdp.learners.drawn import DrawnAnswer, answered
from streamdp.privacy.entropy import SeededEntropy
from streamdp.privacy.guarantees import PureDP

HIGH = 60_000
REGIONS = ["northeast", "northwest", "southeast", "southwest"]
FEATURES = {"charges": (0, HIGH), "region": REGIONS}
DECLARED: dict[str, dict[str, Any]] = {
    "mean": {"mean": "charges"},
    "median": {"quantile": 0.5, "of": "charges"},
    "9th decile": {"quantile": 0.9, "of": "charges"},
    "mean by region": {"mean": "charges", "by": "region"},
    "people by region": {"count": "region"},
    "histogram": {"histogram": "charges", "edges": [0, 5000, 10_000, 20_000, 40_000, HIGH]},
}
DECILES: dict[str, Any] = {"quantile": [q / 10 for q in range(1, 10)], "of": "charges"}
TRUST = ("process", "shuffler", "nobody")
SIZES, DRAWS, COVERED, GROWTH_DRAWS = (10_000, 100_000), 20, 200, 10
PERIODS, A_PERIOD = (10, 30, 100, 300), 1000
SHARES = (0.01, 0.02, 0.04, 0.08, 0.16)
WINDOWS, WINDOW_DRAWS = (1000, 10_000, 100_000), 12
ANSWERED, DEVICE_DRAWS = (1, 1000), 10
FREQUENT, LENGTH, TEXT_DRAWS = 16, 8, 12
START, FRAGMENT = 4, 4
"""Bits of PEM: as `start_length` and `fragment_length` of pure-ldp."""
FUNCTIONS = 10_000


@cache
def people(n: int, seed: int = 1) -> pl.DataFrame:
    """Records to learn."""
    return insurance(n, seed=seed).select("charges", "region")


def truth(name: str, frame: pl.DataFrame) -> np.ndarray:
    """What a statistic of records is, without noise."""
    charges, given = frame["charges"].clip(0, HIGH), DECLARED.get(name, DECILES)
    groups = [charges.filter(frame["region"] == region) for region in REGIONS]
    if "histogram" in given:
        return np.histogram(charges, given["edges"])[0].astype(float)
    if "count" in given:
        return np.array([len(group) for group in groups], dtype=float)
    if "mean" in given:
        return np.array([group.mean() for group in (groups if "by" in given else [charges])])
    levels = given["quantile"] if isinstance(given["quantile"], list) else [given["quantile"]]
    return np.array([charges.quantile(level) for level in levels])


def estimated(name: str, frame: pl.DataFrame, trust: str, epsilon: int, seed: int) -> stats.Statistics:
    """One statistic alone, with the whole budget."""
    budget = f"eps={epsilon}" if trust == "nobody" else f"eps={epsilon},delta=1e-6"
    found = stats.Statistics({name: DECLARED[name]}, FEATURES, budget, trust, seed=seed)  # type: ignore[arg-type]
    found.learn_many(frame)
    found.close_batch()
    return found


def in_a_window(name: str, frame: pl.DataFrame, budget: str, seed: int) -> stats.Statistics:
    """One statistic alone, of one window."""
    found = stats.Statistics({name: DECLARED.get(name, DECILES)}, FEATURES, budget, "window", seed=seed)
    found.learn_many(frame)
    found.close_batch()
    return found


@cache
def once(name: str, n: int, epsilon: int) -> Callable[[], np.ndarray] | None:
    """One release by OpenDP, with all records of the public number n in memory, pure epsilon, replace-one; or None."""
    import opendp.prelude as dp

    dp.enable_features("contrib", "idealized-numerics")
    given, frame = DECLARED[name], people(n)
    charges = frame["charges"].clip(0, HIGH)
    number = dp.vector_domain(dp.atom_domain(bounds=(0.0, float(HIGH)), nan=False), size=n), dp.symmetric_distance()
    data: list[Any] = charges.to_list()
    make: Callable[[float], Any]
    if given == {"mean": "charges"}:
        make = lambda scale: number >> dp.t.then_mean() >> dp.m.then_laplace(scale)  # noqa: E731
    elif "quantile" in given:
        plain = dp.vector_domain(dp.atom_domain(T=float, nan=False), size=n), dp.symmetric_distance()
        candidates = np.linspace(0, HIGH, 1025).tolist()  # the edges of streamdp's bins
        level = given["quantile"]
        make = lambda scale: plain >> dp.m.then_private_quantile(dp.max_divergence(), candidates, level, scale)  # noqa: E731
    elif "by" not in given:
        text = dp.vector_domain(dp.atom_domain(T=str)), dp.symmetric_distance()
        edges = given.get("edges")
        cells = REGIONS if edges is None else [str(i) for i in range(len(edges) - 1)]
        at = np.searchsorted(edges[1:-1], charges.to_numpy(), side="right") if edges else None
        data = frame["region"].to_list() if at is None else [str(i) for i in at]
        counts = text >> dp.t.then_count_by_categories(cells, null_category=False)
        make = lambda scale: counts >> dp.m.then_laplace(scale)  # noqa: E731
    else:
        return None
    release = make(dp.binary_search_param(make, d_in=2, d_out=float(epsilon)))
    return lambda: np.atleast_1d(np.array(release(data), dtype=float))


def bound(name: str, frame: pl.DataFrame, epsilon: int) -> float | None:
    """The root mean square error of the best pure local mechanism that is known for this statistic alone, or None.

    Of counts of k cells: subset selection (Ye and Barg 2018), which is optimal in the limit of many records. Of a mean:
    the best of Duchi et al. 2018 and of the piecewise and the hybrid mechanism of Wang et al. 2019. Of a quantile: one
    randomised response per record at the quantile itself, which no learner knows beforehand.
    """
    given, n, e = DECLARED[name], len(frame), np.exp(epsilon)
    charges = frame["charges"].clip(0, HIGH).to_numpy()
    if "by" in given:
        return None
    if "mean" in given:
        v, root = charges / (HIGH / 2) - 1, np.exp(epsilon / 2)
        duchi = ((e + 1) / (e - 1)) ** 2 - v**2
        piecewise = v**2 / (root - 1) + (root + 3) / (3 * (root - 1) ** 2)
        hybrid = (1 - 1 / root) * piecewise + duchi / root
        return float(HIGH / 2 * np.sqrt(min(np.mean(found) for found in (duchi, piecewise, hybrid)) / n))
    if "quantile" in given:
        at, width = truth(name, frame)[0], HIGH / 100
        density = np.mean(np.abs(charges - at) < width) / (2 * width)
        return float(np.sqrt(e / n) / (e - 1) / density)
    shares = truth(name, frame) / n
    k = len(shares)

    def variance(size: int) -> float:
        whole = size * e + k - size
        p, q = size * e / whole, size * (e * (size - 1) + k - size) / ((k - 1) * whole)
        return float(np.mean(shares * p * (1 - p) + (1 - shares) * q * (1 - q)) / (p - q) ** 2)

    return float(np.sqrt(n * min(variance(size) for size in range(1, k))))


def values(found: Any) -> np.ndarray:
    """The numbers of one statistic."""
    return np.array(list(found.values()) if isinstance(found, dict) else [found], dtype=float)


def spread(errors: list[np.ndarray]) -> str:
    """The root of the mean square of errors; how many of them are not known."""
    flat = np.concatenate(errors)
    known = flat[~np.isnan(flat)]
    text = f"{np.sqrt(np.mean(known**2)):.3g}" if len(known) else "not known"
    return text if len(known) in (0, len(flat)) else f"{text} ({len(flat) - len(known)} of {len(flat)} not known)"


def error_rows() -> Iterator[Sequence[str]]:
    """One row for each statistic, number of records and epsilon."""
    for name in DECLARED:
        for n in SIZES:
            frame = people(n)
            true = truth(name, frame)
            for epsilon in (1, 4):
                cells = []
                for trust in TRUST:
                    if trust == "shuffler" and "quantile" in DECLARED[name]:
                        cells.append("-")
                        continue
                    runs = [estimated(name, frame, trust, epsilon, seed) for seed in range(DRAWS)]
                    cells.append(spread([values(run.get()[name]) - true for run in runs]))
                least, release = bound(name, frame, epsilon), once(name, n, epsilon)
                cells.append("-" if least is None else f"{least:.3g}")
                cells.append("-" if release is None else spread([release() - true for _ in range(DRAWS)]))
                yield [name, f"{n:,}", str(epsilon), *cells]


def by_devices(name: str, frame: pl.DataFrame, epsilon: int, seed: int, each: int) -> stats.Statistics:
    """One statistic alone, from reports of devices: so many of them answer one document."""
    found, words = stats.Statistics({name: DECLARED[name]}, FEATURES, f"eps={epsilon}", "nobody"), SeededEntropy(seed)
    found.state_dict()  # from now on its columns are known
    spend = PureDP(float(epsilon))
    codes = frame["region"].replace_strict(REGIONS, range(len(REGIONS)), return_dtype=pl.Float64)
    rows = np.column_stack([frame["charges"].clip(0, HIGH).to_numpy() / (HIGH / 2) - 1, codes])
    for at in range(0, len(rows), each):
        parts = [(part, share) for _, part, share in found.reported()]
        for row in rows[at : at + each]:
            i, answer = answered(parts, row[None], words)
            found.absorb(DrawnAnswer(i, tuple(answer), parts[i][0].asked, spend, words.private))
        found.learner.close()
    return found


def device_rows() -> Iterator[Sequence[str]]:
    """One row for each statistic and epsilon: errors in one process, and of devices by the reports of a document."""
    frame = people(10_000)
    for name in ("mean", "histogram", "median", "9th decile"):
        for epsilon in (1, 4):
            true, cells = truth(name, frame), []
            for each in (None, *ANSWERED):
                errors = []
                for seed in range(DEVICE_DRAWS):
                    found = (
                        estimated(name, frame, "nobody", epsilon, seed)
                        if each is None
                        else by_devices(name, frame, epsilon, 1000 + seed, each)
                    )
                    errors.append(values(found.get()[name]) - true)
                cells.append(spread(errors))
            yield [name, str(epsilon), *cells]


def window_rows(names: Sequence[str]) -> Iterator[Sequence[str]]:
    """One row for each statistic, number of records and epsilon: one window, pure and with a delta."""
    for name in names:
        for n in WINDOWS:
            frame = people(n)
            true = truth(name, frame)
            for epsilon in (1, 4):
                cells = []
                for delta in ("", ",delta=1e-6"):
                    runs = [in_a_window(name, frame, f"eps={epsilon}{delta}", seed) for seed in range(WINDOW_DRAWS)]
                    cells.append(spread([values(run.get()[name]) - true for run in runs]))
                release = once(name, n, epsilon) if name in DECLARED else None
                least = "-" if release is None else spread([release() - true for _ in range(WINDOW_DRAWS)])
                yield [name, f"{n:,}", str(epsilon), *cells, least]


def covered_rows() -> Iterator[Sequence[str]]:
    """As `coverage_rows`, of one window, with a pure epsilon."""
    n, whole = 10_000, people(1_000_000, 9)
    inside: dict[tuple[str, int], list[bool]] = {(name, epsilon): [] for name in DECLARED for epsilon in (1, 4)}
    of_all = {name: truth(name, whole) for name in DECLARED}
    for seed in range(COVERED):
        frame = whole.sample(n, seed=seed)
        for (name, epsilon), found in inside.items():
            given = DECLARED[name]
            true = truth(name, frame) if "count" in given or "histogram" in given else of_all[name]
            limits = in_a_window(name, frame, f"eps={epsilon}", seed).interval()[name]
            pairs = np.array(list(limits.values()) if isinstance(limits, dict) else [limits])
            found += ((pairs[:, 0] <= true) & (true <= pairs[:, 1])).tolist()
    for name in DECLARED:
        yield [name, *(f"{100 * np.mean(inside[name, epsilon]):.1f} %" for epsilon in (1, 4))]


def text_rows() -> Iterator[Sequence[str]]:
    """How often a text of 8 bytes is found among texts that are all different, by its share of the records."""
    for n in (50_000, 500_000):
        for epsilon in (1, 4):
            cells, rng = [], np.random.default_rng(1)
            for share in SHARES:
                found, rows = 0, rng.integers(97, 123, (n, 8))
                rows[: round(share * n)] = np.frombuffer(b"tea\0\0\0\0\0", dtype=np.uint8)
                for seed in range(DRAWS):
                    hitters = stats.HeavyHitters(8, budget=f"eps={epsilon}", seed=seed)
                    hitters.estimator.learn_encoded(rows / 127.5 - 1, np.zeros(n))
                    found += "tea" in hitters.get()
                cells.append(f"{found} of {DRAWS}")
            yield [f"{n:,}", str(epsilon), *cells]


def texts_of(n: int, rng: np.random.Generator) -> tuple[np.ndarray, dict[str, float]]:
    """Texts of 8 letters (n, 8), and the shares of 16 of them: as 1 / rank, 80 % in all. The others are random."""
    rows = rng.integers(97, 123, (n, LENGTH))
    shares = 0.8 / np.arange(1, FREQUENT + 1) / np.sum(1 / np.arange(1, FREQUENT + 1))
    ends = np.cumsum(np.rint(shares * n)).astype(int)
    for begin, end in zip([0, *ends[:-1]], ends, strict=True):
        rows[begin:end] = rows[begin]
    named = {bytes(rows[end - 1].tolist()).decode(): share for end, share in zip(ends, shares, strict=True)}
    return rows, named


def prefix_extending(rows: np.ndarray, epsilon: float, rng: np.random.Generator) -> dict[str, float]:
    """The texts and shares that the prefix extending method finds, with fast local hashing: PEM and FLH.

    Source: Wang, Li, Jha 2021 and Cormode, Maddock, Maple 2021. As in pure-ldp 1.2.0, which has a loop over people:
    each person reports a prefix of one length by one of `FUNCTIONS` hash functions, and the `FREQUENT` best prefixes of
    a length are extended to the next one.
    """
    whole = rows.astype(np.uint8).view(">u8").ravel().astype(np.uint64)
    cells = round(np.exp(epsilon)) + 1
    keep = np.exp(epsilon) / (np.exp(epsilon) + cells - 1)
    groups = (8 * LENGTH - START) // FRAGMENT
    group_of = rng.integers(groups, size=len(rows))

    def short(prefixes: np.ndarray) -> np.ndarray:
        return ((prefixes * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(32)).astype(np.uint32)

    def cell(mixed: Any, seeds: np.ndarray) -> np.ndarray:
        mixed = (seeds ^ mixed) * np.uint32(0x85EBCA6B)
        mixed = (mixed ^ (mixed >> np.uint32(13))) * np.uint32(0xC2B2AE35)
        found: np.ndarray = ((mixed >> np.uint32(16)) * np.uint32(cells)) >> np.uint32(16)
        return found

    best, shares = np.zeros(1, np.uint64), np.zeros(1)
    for group in range(groups):
        length = START + (group + 1) * FRAGMENT
        mine = whole[group_of == group] >> np.uint64(64 - length)
        seeds = rng.integers(2**32, size=FUNCTIONS, dtype=np.uint32)
        function = rng.integers(FUNCTIONS, size=len(mine))
        others = rng.integers(1, cells, size=len(mine), dtype=np.uint32)
        reports = cell(short(mine), seeds[function])
        reports = np.where(rng.random(len(mine)) < keep, reports, (reports + others) % np.uint32(cells))
        more = START + FRAGMENT if group == 0 else FRAGMENT
        candidates = ((best[:, None] << np.uint64(more)) + np.arange(2**more, dtype=np.uint64)).ravel()
        reported = np.bincount(function * cells + reports, minlength=FUNCTIONS * cells).reshape(FUNCTIONS, cells)
        counts = np.array([reported[np.arange(FUNCTIONS), cell(one, seeds)].sum() for one in short(candidates)])
        found = (counts / len(mine) - 1 / cells) / (keep - 1 / cells)
        order = np.argsort(-found)[:FREQUENT]
        best, shares = candidates[order], found[order]
    texts = [int(one).to_bytes(LENGTH, "big").decode("latin-1") for one in best]
    return dict(zip(texts, shares.tolist(), strict=True))


def least_share(n: int, epsilon: float) -> float:
    """The share from which on a text is found with a probability of 95 %: "Texts" of docs/proofs/statistics.md."""
    keep, k = min(
        ((np.expm1(epsilon) / (np.expm1(epsilon) + k), k) for k in 2 ** np.arange(1, 6)),
        key=lambda found: 1 / (found[0] ** 2 * (found[1] - 1)),
    )
    log, shares = np.log((2 * LENGTH + 1) / 0.05), np.linspace(0, 2, 20_001)
    known = np.ones(len(shares), dtype=bool)
    for m, z in ((0.8 * n / (2 * LENGTH), 1.7), (n / 5, 4.5)):
        d = (1 + keep * (k - 2) * shares) / (keep**2 * (k - 1))
        known &= shares >= z * np.sqrt(d[0] / m) + np.sqrt(2 * d * log / m) + 2 * log * k / (keep * (k - 1)) / (3 * m)
    return float(shares[known].min(initial=2.0))


def hitter_rows() -> Iterator[Sequence[str]]:
    """One row for each number of records and epsilon: what is found of 16 frequent texts, beside PEM."""
    for n in (10_000, 100_000, 1_000_000):
        for epsilon in (1, 4):
            least = least_share(n, epsilon)
            cells = [f"{least:.1%}" if least < 1 else "-"]
            runs: dict[str, list[tuple[dict[str, float], dict[str, float]]]] = {"ours": [], "PEM": []}
            for seed in range(TEXT_DRAWS):
                rng = np.random.default_rng(seed)
                rows, true = texts_of(n, rng)
                hitters = stats.HeavyHitters(LENGTH, budget=f"eps={epsilon}", seed=seed)
                hitters.estimator.learn_encoded(rows / 127.5 - 1, np.zeros(n))
                runs["ours"].append(({text: count / n for text, count in hitters.get().items()}, true))
                runs["PEM"].append((prefix_extending(rows, epsilon, rng), true))
            for draws in runs.values():
                right = [[(found[text], true[text]) for text in found.keys() & true.keys()] for found, true in draws]
                shown = sum(len(found) for found, _ in draws)
                hits = [pair for each in right for pair in each]
                cells.append(f"{len(hits) / TEXT_DRAWS / FREQUENT:.0%}")
                cells.append(f"{len(hits) / shown:.0%}" if shown else "-")
                cells.append(f"{np.sqrt(np.mean([(a - b) ** 2 for a, b in hits])):.2%}" if hits else "-")
            yield [f"{n:,}", str(epsilon), *cells]


def growth_rows() -> Iterator[Sequence[str]]:
    """One row for each trust and number of periods: errors of people by region, of a period and of all of them."""
    features = {"region": REGIONS}
    for trust in ("process", "nobody"):
        budget = "eps=1" if trust == "nobody" else "eps=1,delta=1e-6"
        for periods in PERIODS:
            frame = people(periods * A_PERIOD).select("region")
            times = 86_400.0 * (1 + np.arange(len(frame)) // A_PERIOD)
            of = np.array([frame["region"].to_numpy() == region for region in REGIONS]).T
            true = of.reshape(periods, A_PERIOD, -1).sum(axis=1)
            each, added, whole = [], [], []
            for seed in range(GROWTH_DRAWS):
                declared: Any = {"people": {"count": "region"}}
                series = stats.Statistics(declared, features, budget, trust, every="1 day", seed=seed)  # type: ignore[arg-type]
                series.learn_many(frame, times)
                series.close_batch()
                found = np.array([values(window["people"]) for window in series.get().values()])
                each.append((found - true).ravel())
                added.append(found.sum(axis=0) - true.sum(axis=0))
                total = stats.Statistics(declared, features, budget, trust, seed=seed)  # type: ignore[arg-type]
                total.learn_many(frame)
                total.close_batch()
                whole.append(values(total.get()["people"]) - true.sum(axis=0))
            yield [trust, str(periods), spread(each), spread(added), spread(whole)]


def total_rows() -> Iterator[Sequence[str]]:
    """One row for each number of periods: the deviation of the last running total of a count, by formulas.

    At eps=1 and delta=1e-6, neighbours replace one record. One noise that covers all that is ever shown of a number has
    the deviation sqrt(2) / mu; the batches of "process" have two. Sources: of the tree, Chan, Shi, Song 2011; of the
    square root, Henzinger, Upadhyay, Upadhyay 2023, as `toeplitz` of jax_privacy.
    """
    mu = brentq(lambda m: norm.cdf(m / 2 - 1 / m) - np.e * norm.cdf(-m / 2 - 1 / m) - 1e-6, 0.05, 5)
    noise = np.sqrt(2) / mu
    for periods in PERIODS:
        records = batches = 0
        while records < periods * A_PERIOD:  # the last one is open or closed early
            records += max(1000, records // 4)
            batches += 1
        levels = periods.bit_length()
        squares = np.append(1.0, np.cumprod(1 - 0.5 / np.arange(1, periods)) ** 2).sum()
        every, grown = noise * np.sqrt(2 * periods), noise * np.sqrt(2 * batches)
        tree = noise * np.sqrt(levels * np.mean([t.bit_count() for t in range(1, periods + 1)]))
        root = noise * squares
        yield [str(periods), *(f"{value:.3g}" for value in (every, grown, tree, root, grown / root))]


def coverage_rows() -> Iterator[Sequence[str]]:
    """One row for each statistic and trust: the share of 95 % intervals that hold what they describe."""
    n, whole = 10_000, people(1_000_000, 9)
    for name, given in DECLARED.items():
        for trust in TRUST:
            if trust == "shuffler" and "quantile" in given:
                continue
            cells = []
            for epsilon in (1, 4):
                inside, given_at_all = [], []
                for seed in range(COVERED):
                    frame = whole.sample(n, seed=seed)
                    true = truth(name, frame if "count" in given or "histogram" in given else whole)
                    found = estimated(name, frame, trust, epsilon, seed).interval()[name]
                    limits = np.array(list(found.values()) if isinstance(found, dict) else [found])
                    known = ~np.isnan(limits[:, 0])
                    given_at_all += known.tolist()
                    inside += ((limits[:, 0] <= true) & (true <= limits[:, 1]))[known].tolist()
                cells += [f"{100 * np.mean(inside):.1f} %", f"{100 * np.mean(given_at_all):.0f} %"]
            yield [name, trust, *cells]


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print, and with --write save."""
    warnings.simplefilter("ignore")
    windowed = ["statistic", "records", "eps", "window", "window, delta=1e-6", "OpenDP, once"]
    parts = {
        "errors": lambda: table(["statistic", "records", "eps", *TRUST, "nobody, bound", "OpenDP, once"], error_rows()),
        "devices": lambda: table(
            ["statistic", "eps", "one process", *(f"devices, {each:,} reports a document" for each in ANSWERED)],
            device_rows(),
        ),
        "windows": lambda: table(windowed, window_rows(["mean", "median", "9th decile", "deciles"])),
        "cells": lambda: table(windowed, window_rows(["mean by region", "people by region", "histogram"])),
        "covered": lambda: table(["statistic", "covered, eps=1", "covered, eps=4"], covered_rows()),
        "texts": lambda: table(["records", "eps", *(f"share {share:.0%}" for share in SHARES)], text_rows()),
        "hitters": lambda: table(
            [
                "records",
                "eps",
                "bound",
                *(f"{name}{of}" for of in ("", ", PEM") for name in ("recall", "precision", "error")),
            ],
            hitter_rows(),
        ),
        "growth": lambda: table(["trust", "periods", "a period", "periods added up", "no `every`"], growth_rows()),
        "totals": lambda: table(
            ["periods", "a batch a period", "batches that grow", "tree", "square root", "grow / root"], total_rows()
        ),
        "coverage": lambda: table(
            ["statistic", "trust", "covered, eps=1", "given, eps=1", "covered, eps=4", "given, eps=4"], coverage_rows()
        ),
    }
    command(__file__, parts, arguments)


if __name__ == "__main__":
    main()
