"""What shuffled learning costs: bits, time, absent people, many rounds. Run with `python -m studies.shuffle_cost`.

Cheu et al. 2022: Corollaries B.8 to B.11 (bits of a user and run time), A.9 (people who do not answer), Theorem 4.9
(everybody answers in every round). Times are processor times of one
process. Noise comes from seeded generators, which are for measuring only.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from benchmarks.shared.pages import command, fast_enough, pm, rough, table
from benchmarks.trust import Problem
from streamdp.aggregation.shuffled_sum import Analyzer, LocalRandomizer, Shuffler
from streamdp.aggregation.vector_sum import VectorSum
from streamdp.errors import BudgetError
from streamdp.estimators.shuffle.estimators import ShuffleClassifier
from streamdp.privacy.entropy import SeededEntropy
from streamdp.privacy.guarantees import ApproxDP, GaussianDP
from studies.cohort import groups, learn_cohort, planned_rounds
from studies.excess import SETTINGS, Setting
from studies.paper_sum import paper_parameters
from studies.rates import linear
from studies.theory import slope

BUDGET = ApproxDP(1.0, 1e-6)
BATCHES, FEATURES = (40, 100, 1_000, 10_000, 100_000, 1_000_000), (1, 6, 30, 100)
USERS = (10_000, 100_000, 1_000_000)
ABSENT = (0.0, 0.1, 0.3, 0.5)
COHORTS, REPETITIONS, PEOPLE = (100, 300, 1_000, 3_000, 10_000), 10, 300
PLANS: tuple[tuple[str, str, int, str, float], ...] = (
    ("B.8", "4.1", 0, "SGD", 0.0),
    ("B.9", "4.3", 0, "shuffle", 3 / 10),
    ("B.10", "4.7", 1, "shuffle", 1 / 6),
)
"""Corollary, theorem, setting and method, and the corollary's exponent of n where sqrt(b) leads."""


def paper_bits(users: int, d: int) -> float:
    """d (sqrt(b) + log(1/delta) / eps^2): the paper's bits of a user, without its constant."""
    return d * (math.sqrt(users) + math.log(1 / BUDGET.delta) / BUDGET.epsilon**2)


def bits(users: int, d: int) -> float:
    """The bits of one user in a sum of so many."""
    params = VectorSum.calibrated(BUDGET, 1.0, users, d)
    return d * (params.g + params.b)


def share_bits(users: int, d: int) -> float:
    """As `bits`, of the same noisy places in additive shares that are shuffled, which show their sum and no more.

    Balle, Bell, Gascon, Nissim 2020, and Ghazi, Manurangsi, Pagh, Velingker 2020: m = (2 sigma + log2 q) / log2(n / e)
    + 2 shares modulo q are within 2^-sigma of that. All coordinates together have a hundredth of delta, as the tails of
    the noise have.
    """
    params = VectorSum.calibrated(BUDGET, 1.0, users, d)
    sigma = math.log2(d * (1 + math.exp(BUDGET.epsilon)) / (0.01 * BUDGET.delta))
    q_bits = math.ceil(math.log2(users * (params.g + params.b) + 1))
    return d * q_bits * math.ceil((2 * sigma + q_bits) / math.log2(users / math.e) + 2)


def printed_bits(users: int, d: int) -> float:
    """As `bits`, by the paper's calibration; nan if that does not serve it."""
    try:
        return d * sum(paper_parameters(users, d, BUDGET, 1.0))
    except BudgetError:
        return math.nan


def bits_rows() -> list[list[str]]:
    """A row for each batch and d."""
    rows = []
    for d in FEATURES:
        for users in BATCHES:
            tight, paper = bits(users, d), printed_bits(users, d)
            shown = "not served" if math.isnan(paper) else f"{paper:,.0f}"
            ratio, shares = f"{tight / paper_bits(users, d):.2f}", f"{share_bits(users, d):,.0f}"
            rows.append([str(d), f"{users:,}", f"{tight:,.0f}", ratio, shown, shares])
    return rows


def plan_rows() -> list[list[str]]:
    """The batch that the library plans for n users, and the bits of each; the slope in n below."""
    rows = []
    for corollary, theorem, number, method, exponent in PLANS:
        found = []
        for n in USERS:
            batch = SETTINGS[number].model(method, n).learner.batch_steps.plan[-1].batch
            found.append(bits(batch, 6))
            rows.append([corollary, theorem, f"{n:,}", f"{batch:,}", f"{found[-1]:,.0f}", f"{n * found[-1]:.1e}"])
        grows = np.polyfit(np.log(USERS), np.log(found), 1)[0]
        rows.append([corollary, theorem, "exponent of n", "", f"{grows:.2f} (at most {exponent:.2f})", ""])
    return rows


def seconds(users: int, d: int, rounds: int = 1) -> tuple[float, float]:
    """Processor time and bits of one sum of so many rounds: randomizers, shuffler and analyzer."""
    params = VectorSum.calibrated(BUDGET, 1.0, users, d, rounds=rounds)
    vectors = np.random.default_rng(0).standard_normal((users, d))
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    local, shuffler = LocalRandomizer(params, SeededEntropy(0, 1 << 16)), Shuffler(params)
    started = time.process_time()
    shuffler.collect(local.messages(vectors))
    Analyzer(params).sum(shuffler.forward())
    return time.process_time() - started, users * d * (params.g + params.b)


def time_rows() -> list[list[str]]:
    """A row for each batch and d: the time is a constant for each bit if the corollaries hold."""
    rows = []
    for users, d in ((1_000, 6), (10_000, 6), (100_000, 6), (10_000, 30), (1_000, 100)):
        took, total = seconds(users, d)
        rows.append([f"{users:,}", str(d), f"{total:.2e}", f"{took:.2f}", f"{took / total * 1e9:.1f}"])
    return rows


def absent_run(share: float, seed: int, n: int = 100_000, batch: int = 1_000) -> tuple[float, float]:
    """The excess loss where so many people of each batch do not answer, and the epsilon of those who do."""
    problem = Problem("logistic")
    X, y = problem.draw(seed, n)
    model = ShuffleClassifier(budget=str(BUDGET), features=problem.names, batch_size=batch, seed=seed)
    for begin in range(0, n, batch):
        there = slice(begin, begin + round(batch * (1 - share)))
        randomizer = model.randomizer
        shuffler = Shuffler(randomizer.params, minimum=1)
        shuffler.collect(randomizer.messages_of(X[there], y[there]))
        model.absorb(shuffler.forward())
    spent = model.guarantee.budgets[0]
    assert isinstance(spent, ApproxDP)
    return problem.excess(model.theta), spent.epsilon


def absent_rows() -> list[list[str]]:
    """A row for each share of absent people."""
    rows = []
    for share in ABSENT:
        runs = np.array([absent_run(share, seed) for seed in range(REPETITIONS)])
        rows.append([f"{share:.0%}", rough(runs[:, 0]), f"{runs[0, 1]:.2f}", f"{1 / (1 - share):.2f}"])
    return rows


def cohort(setting: Setting, n: int, seed: int) -> float:
    """The excess loss of Algorithm 5 with n people, and as many rounds as a group has people."""
    model, rng = setting.model("SGD", n, seed), np.random.default_rng(seed)
    learn_cohort(model, *setting.draw(rng, n), rng, rounds=n // groups(setting.convexity, n))
    return setting.excess(model.theta)


def cohort_rows() -> list[list[str]]:
    """A row for each setting: its excess at the start and by n, and the slopes in n, of all and of the last three."""
    rows = []
    for setting, sizes in ((SETTINGS[1], COHORTS[:-1]), (SETTINGS[3], COHORTS)):
        runs = np.array([[cohort(setting, n, seed) for n in sizes] for seed in range(4 * REPETITIONS)])
        cells = [rough(runs[:, k]) for k in range(len(sizes))] + [""] * (len(COHORTS) - len(sizes))
        for begin in (0, -3):
            fitted = slope(np.array(sizes[begin:]), np.sqrt(runs[:, begin:])[..., None])
            cells.append(f"{pm(fitted)} ({'yes' if fast_enough(fitted, setting.slow) else '**no**'})")
        rows.append([setting.name, f"{setting.start:.2g}", *cells[:-2], f"{setting.slow:.1f}", *cells[-2:]])
    return rows


def planned_rows() -> list[list[str]]:
    """A row for each setting, n and method: rounds, bits of a user, and the excess loss."""
    rows = []
    for setting, n, rounds in (
        (SETTINGS[0], 300, 300),
        (SETTINGS[0], 1_000, 1_000),
        (SETTINGS[0], 10_000, 100),
        (SETTINGS[1], 300, 300),
        (SETTINGS[1], 1_000, 1_000),
    ):
        for name, method, given in (("Algorithm 5", "SGD", rounds), ("planned", "shuffle", None)):
            found = []
            for seed in range(2 * REPETITIONS):
                model = setting.model(method, n, seed)
                rng = np.random.default_rng((seed, 1))
                learn_cohort(model, *setting.draw(rng, n), rng, given)
                found.append(setting.excess(model.theta))
            run = planned_rounds(model.learner, n, given, model.learner.batch_steps.problem.distance)
            params = model.learner.cohort_sum(n, run.steps)
            sent = run.steps * params.d * (params.g + params.b)
            rows.append([setting.name, f"{n:,}", name, f"{run.steps:,}", f"{sent:.1e}", rough(np.array(found))])
    return rows


def cohort_bits_rows() -> list[list[str]]:
    """The bits of a user in all n rounds, the paper's formula without its constant, and n times the time of a round."""
    rows, sizes, found = [], (100, 1_000, 10_000), []
    for n in sizes:
        took, total = seconds(n, 6, n)
        each = total // n
        found.append((n * each, n * took))
        shown = f"{n * took:.2g}", f"{took / total * 1e9:.1f}"
        rows.append([f"{n:,}", f"{each:,}", f"{n * each:.2e}", f"{n * paper_bits(n, 6):.2e}", *shown])
    bits_grow, time_grows = np.polyfit(np.log(sizes), np.log(found), 1)[0]
    rows.append(["exponent of n", "", f"{bits_grow:.2f} (at most 1.50)", "", f"{time_grows:.2f} (at most 2.50)", ""])
    return rows


def full_cell(d: int, epsilon: float, people: int = PEOPLE) -> tuple[np.ndarray, float]:
    """The excess on the hardest of three linear losses after as many rounds as people, and the bound up to constants.

    The bound has privacy's part with the noise of the tight calibration, sqrt(d) / (n mu).
    """
    bound = 1 / math.sqrt(people) + math.sqrt(d) / (people * GaussianDP.from_approx(ApproxDP(epsilon, BUDGET.delta)).mu)
    runs = []
    for share in (0.5, 1.0, 2.0):
        setting = replace(linear(d, min(1.0, share * bound)), budget=f"eps={epsilon:g},delta=1e-6")
        runs.append(np.array([cohort(setting, people, seed) for seed in range(REPETITIONS)]))
    return max(runs, key=np.mean), bound


FULL: tuple[tuple[str, Sequence[float], float, Callable[[float], tuple[np.ndarray, float]]], ...] = (
    ("n", COHORTS[1:-1], -1.0, lambda n: full_cell(6, 1.0, int(n))),
    ("d", (2, 4, 8), 0.5, lambda d: full_cell(int(d), 0.5)),
    ("epsilon", (0.5, 1.0, 2.0), -1.0, lambda epsilon: full_cell(6, epsilon)),
)


def full_rows() -> list[list[str]]:
    """A row for what is varied: excess, slope, slope of the bound, exponent of privacy's part."""
    rows = []
    for varied, values, exponent, cell in FULL:
        runs, bounds = zip(*(cell(value) for value in values), strict=True)
        steep = np.polyfit(np.log(values), np.log(bounds), 1)[0]
        shown = "; ".join(f"{value:,g}: {rough(run)}" for value, run in zip(values, runs, strict=True))
        fitted = slope(np.array(values), np.sqrt(np.column_stack(runs))[..., None])
        rows.append([varied, shown, f"{exponent:.1f}", pm(fitted), f"{steep:.2f}"])
    return rows


TABLES: dict[str, tuple[list[str], Callable[[], list[list[str]]]]] = {
    "bits": (["d", "batch", "bits", "ratio", "bits, the paper's calibration", "bits, in shares"], bits_rows),
    "plans": (["corollary", "theorem", "n", "batch", "bits of a user", "total"], plan_rows),
    "times": (["users", "d", "bits in all", "seconds of processor", "ns a bit"], time_rows),
    "absent": (["absent", "excess loss", "epsilon of those who answer", "the paper's"], absent_rows),
    "cohort_bits": (
        [
            "n",
            "bits of a user in a round",
            "in n rounds",
            "n d (sqrt(n) + log(1/delta)/eps^2)",
            "seconds of processor in n rounds",
            "ns a bit",
        ],
        cohort_bits_rows,
    ),
    "full": (["against", "excess", "exponent", "slope", "slope of the bound"], full_rows),
    "planned": (["setting", "n", "method", "rounds", "bits of a user", "excess"], planned_rows),
    "cohorts": (
        ["setting", "start", *(f"n = {n:,}" for n in COHORTS), "n^", "slope (met)", "of the last three (met)"],
        cohort_rows,
    ),
}
PARTS = {name: (lambda head=head, rows=rows: table(head, rows())) for name, (head, rows) in TABLES.items()}


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print, and with --write save."""
    command(__file__, PARTS, arguments)


if __name__ == "__main__":
    main()
