"""Statistics keep their budget: attacks on two neighbouring streams, and the same attacks on half the noise."""

import json
from collections import Counter
from typing import Any, cast

import numpy as np
import pytest

from streamdp import ApproxDP, GaussianDP, PureDP, stats
from streamdp.config.definition import Definition
from streamdp.estimators.statistics import Statistics
from streamdp.learners.cells import BINS, Cells, Chosen, Index, Kept, Keyed, Ranks, Thirds, Values, bins, drawn, levels
from streamdp.learners.hitters import Hitters
from streamdp.learners.local_counts import Oracle
from streamdp.learners.sums import Held, HeldPure, Pan, PanPure
from streamdp.privacy.entropy import SeededEntropy
from streamdp.privacy.mechanisms.additive import grid_laplace
from streamdp.privacy.mechanisms.response import epsilon_of
from streamdp.protocol.local_half import LocalHalf
from streamdp.protocol.report_desk import ReportDesk
from tests.support.audit import lower_bound
from tests.support.oracles import reports, vectors
from tests.support.sizes import some

RUNS = 12_000
RUNS_OF_WINDOWS = 5_000
BLOCKS = [
    (Cells(levels(0, 3), bins(2, (-1, 0, 1))), 0.5),
    (Values(Index(), 2), 0.25),
    (Cells(Index(), bins(2, tuple(np.linspace(-1, 1, 9))), ordered=True), 0.25),
]
ONE, OTHER = np.array([[1.0, 0.0, 1.0]]), np.array([[2.0, 0.0, -1.0]])
REST = np.array([[0.0, 0.0, 0.2], [1.0, 0.0, -0.7]])


def scores(budget: Any, noise: float) -> tuple[np.ndarray, np.ndarray]:
    """The sum along the difference of two neighbours, with one of its two noises: the attacker knows the other."""
    pan, rng = Pan(budget, BLOCKS), SeededEntropy(5)
    pan.sum.scale *= noise

    def vector(x: np.ndarray) -> np.ndarray:
        return np.concatenate([vectors(block, x)[0] * factor for block, factor in pan.parts])

    direction = vector(ONE) - vector(OTHER)
    found = []
    for record in (ONE, OTHER):
        pan.wipe()
        pan.add(np.vstack([REST, record]), rng)
        exact = pan.sum.total.copy()
        runs = np.empty(RUNS)
        for i in range(RUNS):
            pan.wipe()
            pan.sum.add_noise(rng)
            runs[i] = ((pan.sum.total + exact) / pan.sum.cells) @ direction
        found.append(runs)
    return found[0], found[1]


@pytest.mark.parametrize("budget", [ApproxDP(1.0, 1e-2), GaussianDP(1.0)])
def test_one_noise_of_a_sum_keeps_the_claim_and_half_of_it_does_not(budget: Any) -> None:
    """False alarms: 1e-6 each."""
    whole = lower_bound(budget, *scores(budget, 1.0))
    half = lower_bound(budget, *scores(budget, 0.5))
    claimed = budget.mu if isinstance(budget, GaussianDP) else budget.epsilon
    assert whole <= claimed
    assert half > claimed


@pytest.mark.parametrize("budget", some([PureDP(1.0), GaussianDP(1.0)], 0))
@pytest.mark.parametrize("unary", [False, True])
def test_a_report_keeps_the_claim_and_one_with_twice_the_epsilon_does_not(budget: Any, unary: bool) -> None:
    """False alarms: 1e-6 each. The score of a report is the log ratio of its likelihoods."""
    rng = np.random.default_rng(6)

    def attack(epsilon: float) -> float:
        oracle = Oracle(4, epsilon, unary)
        found = []
        for cell in (0, 1):
            words = rng.integers(0, 2**64, (RUNS, oracle.words), dtype=np.uint64)
            each = [reports(oracle, np.array([cell]), words[i : i + 1]) for i in range(RUNS)]
            found.append(np.array([float(report[0]) - float(report[1]) for report in each]))
        return lower_bound(budget, found[0], found[1])

    claimed = 1.0
    assert attack(epsilon_of(budget)) <= claimed
    assert attack(2 * epsilon_of(budget)) > claimed


def test_a_whole_report_of_statistics_keeps_the_claim() -> None:
    """All that leaves one record's side, with the part that was drawn: the state of a learner of one record."""
    declared = {"count": {"count": "g"}, "median": {"quantile": 0.5, "of": "x"}}
    found = []
    for record in ({"g": "a", "x": 1.0}, {"g": "b", "x": -1.0}):
        runs = []
        for seed in range(1200):
            model = Statistics(declared, {"g": ["a", "b"], "x": (-1, 1)}, budget="eps=1", trust="nobody", seed=seed)
            model.learn_one(record)
            counts, roots = model.learner.parts
            runs.append(float(counts._state[0] - counts._state[1]) + float(roots._open[0] - roots._open[1]))
        found.append(np.array(runs))
    assert lower_bound(PureDP(1.0), found[0], -found[1]) <= 1.0
    assert lower_bound(PureDP(1.0), found[0], found[1]) <= 1.0


DEVICES = {"count": {"count": "g"}, "mean": {"mean": "x", "by": "g"}, "median": {"quantile": 0.5, "of": "x"}}


def attack_of_a_device(statistics: Any, thresholds: list[list[float]], budget: str) -> float:
    """The epsilon that an observer of one report finds: a hostile learner chose the thresholds.

    The score is the log ratio of how often an answer came in a first half of the runs; the bound is of the others.
    """
    job = Definition.model_validate(
        {
            "schema": {"features": {"g": ["a", "b"], "x": [-1, 1]}},
            "statistics": statistics,
            "model": {"estimator": "Statistics", "trust": "nobody", "budget": budget},
        }
    )
    desk = ReportDesk("audit", job)
    desk.show(0, job.build_estimator())
    half = LocalHalf(json.dumps(json.loads(desk.document().text) | {"thresholds": thresholds}).encode())
    found: list[list[Any]] = []
    for record in ({"g": "a", "x": 1.0}, {"g": "b", "x": -1.0}):
        row = np.array([half.schema.encode_raw(record)])
        made = (half.randomizer(row) for _ in range(2 * RUNS))
        found.append([(part, *answer) for part, answer in made])
    first, second = (Counter(each[:RUNS]) for each in found)
    scores = [np.array([np.log((first[a] + 1) / (second[a] + 1)) for a in each[RUNS:]]) for each in found]
    return lower_bound(PureDP(1.0), scores[0], scores[1])


@pytest.mark.parametrize("thresholds", some([[0.0], [1.0], [-1.0]], 0), ids=str)
def test_a_report_of_a_device_keeps_the_claim_and_one_with_half_the_noise_does_not(thresholds: list[float]) -> None:
    """False alarms: 1e-6 each. Whichever part is drawn, and whatever the learner asks."""
    shown = [[], [], thresholds]
    assert 0.5 < attack_of_a_device(DEVICES, shown, "eps=1") <= 1.0
    assert attack_of_a_device(DEVICES, shown, "eps=2") > 1.0


def test_the_report_of_a_device_about_many_cells_keeps_the_claim() -> None:
    """A report with a bit for each cell. False alarms: 1e-6 each."""
    edges = {"x": [-1, -0.9, -0.8, -0.7, -0.6, 0, 1]}
    declared = {"table": {"count": ["g", "x"], "edges": edges}}
    assert attack_of_a_device(declared, [[]], "eps=1") <= 1.0
    assert attack_of_a_device(declared, [[]], "eps=2.5") > 1.0


COVERED = {"mean": {"mean": "x", "by": "g"}, "share": {"proportion": "g"}, "median": {"quantile": 0.5, "of": "x"}}


@pytest.mark.parametrize("trust", some(["process", "window", "nobody", "shuffler"], 0, 2))
def test_limits_cover_the_truth_of_the_distribution(trust: str) -> None:
    """50 draws of 3,000 records at eps = 4: fewer than 36 of 50 at a coverage of .95 have a probability of 1e-8."""
    true = {"mean": {"a": 0.5, "b": 0.5}, "share": {"a": 0.7, "b": 0.3}, "median": 0.5}
    declared = COVERED if trust != "shuffler" else {k: v for k, v in COVERED.items() if k != "median"}
    rng, inside, total = np.random.default_rng(11), 0, 0
    budget = "eps=4" if trust in ("nobody", "window") else "eps=4,delta=1e-6"
    hits: dict[tuple[str, ...], list[bool]] = {}
    for seed in range(50):
        model = stats.Statistics(declared, {"x": (0, 1), "g": ["a", "b"]}, budget=budget, trust=trust, seed=seed)  # type: ignore[arg-type]
        n = 3000
        model.learn_encoded(np.column_stack([2 * rng.random(n) - 1, (rng.random(n) < 0.3).astype(float)]), np.zeros(n))
        model.close_batch()
        for name, found in model.interval().items():
            pairs = found.items() if isinstance(found, dict) else [("", found)]
            for key, (low, high) in pairs:
                wanted = true[name][key] if key else true[name]  # type: ignore[index]
                hits.setdefault((name, key), []).append(bool(low <= wanted <= high) if low == low else True)
    for key, covered in hits.items():
        assert sum(covered) >= 36, (trust, key)
        inside, total = inside + sum(covered), total + len(covered)
    assert inside / total > 0.9


def test_each_window_has_noise_of_its_own() -> None:
    """400 windows of one batch, 20 numbers each: the stated variance within 5 deviations of 1.6 %, and no correlation.

    False alarms: 6e-7 for each of the two. A variance that is wrong by 20 % is 12 deviations off.
    """
    declared = {"ages": {"histogram": "x", "edges": list(range(21))}}
    model = Statistics(declared, {"x": (0, 20)}, budget="eps=1,delta=1e-6", seed=3, every="1 day")
    model.learn_encoded(np.full((400, 1), -1.0), np.arange(400) * 86_400 + 1.0)
    model.close_batch()
    found = np.array([list(window["ages"].values()) for window in model.get().values()])
    found[:, 0] -= 1  # each has one person
    limits = np.array(list(next(iter(model.interval(0.6826894921).values()))["ages"].values()))
    stated = ((limits[1, 1] - limits[1, 0]) / 2) ** 2
    assert abs(np.mean(found**2) / stated - 1) < 0.08
    assert abs(np.corrcoef(found[:-1].ravel(), found[1:].ravel())[0, 1]) < 5 / np.sqrt(found[1:].size)


@pytest.mark.parametrize("budget", [PureDP(1.0), GaussianDP(1.0)])
def test_a_report_of_a_text_keeps_the_claim_and_one_with_twice_the_epsilon_does_not(budget: Any) -> None:
    """False alarms: 1e-6 each. All reports have the rows of one draw, so the sums say how many are of which cell."""
    rng = np.random.default_rng(5)
    drawn = rng.integers(0, 2**64, 3, dtype=np.uint64)  # does not depend on the text

    def learned(text: float, epsilon: float) -> tuple[np.ndarray, int]:
        words = rng.integers(0, 2**64, (RUNS, Hitters.words), dtype=np.uint64)
        words[:, :3] = drawn
        hitters = Hitters([0], epsilon)
        hitters.learn(np.full((RUNS, 1), text), words)
        return hitters.learned()["texts"], hitters._oracle.cells

    signs = [np.sign(learned(text, 50.0)[0]) for text in (-1.0, 1.0)]  # without noise

    def attack(epsilon: float) -> float:
        """The score of a report is 1 if it is of the cell of the first text, -1 if of the second, else 0."""
        scores = []
        for text in (-1.0, 1.0):
            sums, cells = learned(text, epsilon)
            first, second = ((RUNS + int((sums * sign).sum())) // cells for sign in signs)
            scores.append(np.repeat([1.0, -1.0, 0.0], [first, second, RUNS - first - second]))
        return lower_bound(budget, scores[0], scores[1])

    assert attack(epsilon_of(budget)) <= 1.0
    assert attack(2 * epsilon_of(budget)) > 1.0


@pytest.mark.parametrize("epsilon", [1.0, 4.0])
def test_shares_of_texts_have_the_stated_variance(epsilon: float) -> None:
    """200 runs of 4,000 reports: mean and variance of the share within 5 deviations (6e-7); 1.6 would be 16 off."""
    rng, found, spread = np.random.default_rng(9), [], []
    for _ in range(200):
        hitters = Hitters([0], epsilon)
        X = np.where(np.arange(4000) % 10 < 7, -1.0, 1.0)[:, None]
        hitters.learn(X, rng.integers(0, 2**64, (len(X), hitters.words), dtype=np.uint64))
        frequencies = hitters.found()[1]
        found.append(frequencies.f[0])
        spread.append(frequencies.variance(np.array([1.0, *np.zeros(len(frequencies.f) - 1)])))
    deviation = np.sqrt(np.mean(spread))
    assert abs(np.mean(found) - 0.7) < 5 * deviation / np.sqrt(200)
    assert abs(np.var(found) / deviation**2 - 1) < 5 * np.sqrt(2 / 200)


# -- windows -----------------------------------------------------------------------------------------------------------

PURE = [(Cells(levels(0, 3), bins(2, (-1, 0, 1))), 0.5), (Values(Index(), 2, 0.25), 0.5)]
OF_GROUPS = [(Thirds(levels(0, 3), 2), 1.0)]


def of_windows(kind: Any, blocks: Any, budget: Any, noise: float) -> tuple[np.ndarray, np.ndarray]:
    """The log ratio of the likelihoods of what a window releases, or a break-in sees, for either of two neighbours."""
    rng = SeededEntropy(8)
    held = kind(budget, blocks)
    held.sum.scale *= noise

    def vector(x: np.ndarray) -> np.ndarray:
        return np.concatenate([vectors(block, x).sum(axis=0) * factor for block, factor in held.parts])

    means = [vector(np.vstack([REST, record])) for record in (ONE, OTHER)]
    found = []
    for record in (ONE, OTHER):
        runs = np.empty(RUNS_OF_WINDOWS)
        for i in range(RUNS_OF_WINDOWS):
            held.wipe()
            held.open(rng, 3)
            held.add(np.vstack([REST, record]), rng)
            released = held.total / held.sum.cells if kind is PanPure else held.close(rng)
            away = [np.abs(released - mean) for mean in means]
            runs[i] = np.sum(away[1] - away[0] if kind is not Held else away[1] ** 2 - away[0] ** 2)
        found.append(runs)
    return found[0], found[1]


@pytest.mark.parametrize(
    ("kind", "blocks", "budget"),
    [
        (Held, BLOCKS, GaussianDP(1.0)),
        (HeldPure, PURE, PureDP(1.0)),
        (HeldPure, OF_GROUPS, PureDP(1.0)),
        (PanPure, PURE, PureDP(1.0)),
        (PanPure, OF_GROUPS, PureDP(1.0)),
    ],
)
def test_the_noise_of_a_window_keeps_the_claim_and_half_of_it_does_not(kind: Any, blocks: Any, budget: Any) -> None:
    """False alarms: 1e-6 each."""
    assert lower_bound(budget, *of_windows(kind, blocks, budget, 1.0)) <= 1.0
    assert lower_bound(budget, *of_windows(kind, blocks, budget, 0.5)) > 1.0


@pytest.mark.parametrize("column", [None, 1])
def test_sums_by_texts_keep_the_claim_and_half_of_the_noise_does_not(column: int | None) -> None:
    """False alarms: 1e-6 each. One record goes from one text to the other; the number of each text is its likeliest."""

    class Changed(Keyed):
        def noise(self, epsilon: float) -> tuple[float, float]:
            one, scale = super().noise(epsilon)
            return one, louder * scale

        def least(self, epsilon: float, delta: float) -> float:
            return -(2.0**60)  # else the texts would be hidden at times

    def attack() -> float:
        rng, found = SeededEntropy(5), []
        for of_first in (10, 9):
            one, runs = Kept(Changed((0,), column), 1.0, 0.3), []
            for _ in range(RUNS // 2):
                one.add(np.array([[-1.0 if i < of_first else 1.0, 1.0] for i in range(20)]))
                _, (_, (first, second)) = cast("Any", one.close(rng))
                one.wipe()
                runs.append(float(first[-2] - second[-2]))  # of v = 1 all of the record is in the last third
            found.append(np.array(runs))
        return lower_bound(PureDP(1.0), *found)

    louder = 1.0
    assert attack() <= 1.0
    louder = 0.5
    assert attack() > 1.0


@pytest.mark.parametrize(("column", "least"), [(None, 0.045), (1, 0.0)])
def test_a_text_of_one_record_passes_as_often_as_delta_allows(column: int | None, least: float) -> None:
    """False alarms: 1e-6. The bound of one number is exact."""
    one, rng, runs = Kept(Keyed((0,), column), 2.0, 0.06), SeededEntropy(6), 12_000
    passed = 0
    for _ in range(runs):
        one.add(np.array([[0.2, 0.3]]))
        _, (texts, _) = cast("Any", one.close(rng))
        passed += len(texts)
        one.wipe()
    assert least * runs < passed <= 0.06 * runs + 4.9 * (0.06 * runs) ** 0.5


def test_a_choice_of_tables_keeps_the_claim_and_a_tenth_of_its_noise_does_not() -> None:
    """False alarms: 1e-6 each. One record brings two columns nearer to each other and takes two others apart."""
    chosen = Chosen((levels(0, 2), levels(1, 2), levels(2, 2)))
    rest = ["110", "000", "101", "110", "110", "010", "010", "100", "010", "010"]

    def attack(mu: float) -> float:
        rng, found = SeededEntropy(4), []
        for last in ("111", "001"):
            rows = np.array([[int(one) for one in row] for row in [*rest, last]])
            pairs = [np.bincount(2 * rows[:, i] + rows[:, j], minlength=4) for i, j in ((0, 1), (0, 2), (1, 2))]
            runs = [chosen.chosen(np.concatenate(pairs), mu, rng) for _ in range(RUNS // 3)]
            found.append(np.array([shown[8] - shown[4] for shown in runs]))
        return lower_bound(GaussianDP(1.0), *found)

    assert attack(1.0) <= 1.0
    assert attack(10.0) > 1.0


def test_a_drawn_quantile_keeps_the_claim_and_twice_the_steepness_does_not() -> None:
    """False alarms: 1e-6 each. One record moves from below the median to above: bins between get nearer or farther."""

    def attack(steepness: float) -> float:
        rng, found = SeededEntropy(9), []
        for moved in (0, 1):
            counts = np.zeros(1102, dtype=np.int64)  # 100 bins where C = n/2 - 1, then 1,000 where C = n/2 + 1
            counts[0], counts[101], counts[-1] = 19 - moved, 2, 19 + moved
            runs = [drawn(counts, 0.5, 0.0, 1.0, steepness, rng) for _ in range(RUNS)]
            found.append(np.array([float(0 < at < 101) for at in runs]))
        return lower_bound(PureDP(1.0), found[0], found[1])

    assert attack(0.5) <= 1.0  # which spends twice the steepness
    assert attack(1.0) > 1.0


@pytest.mark.parametrize(
    ("groups", "weight", "windows"),
    [
        (Index(), 1.0, 1000),
        pytest.param(Index(), 1.0, 10_000, marks=pytest.mark.campaign),
        (levels(0, 2), 1.0, 3000),
        (levels(0, 2), 2.0, 3000),
    ],
)
def test_all_quantiles_of_a_window_keep_the_claim(groups: Any, weight: float, windows: int) -> None:
    """All that a window releases of two neighbours, one of which has another group if there are groups."""
    ranks, rng, found = Ranks(groups, 1, (0.3, 0.8)), SeededEntropy(10), []
    for record in ([0.0, -1.0], [1.0 if groups.count > 1 else 0.0, 1.0]):
        X = np.array([[0.0, -0.5], [0.0, 0.5], [1.0, 0.1], record])
        runs = [ranks.released(ranks.kept(X, 1.0), 1.0, 0.0, rng)[0].reshape(-1, 4) for _ in range(windows)]
        found.append(np.array([run[:, 1].sum() * weight - run[:, 0].sum() * (weight > 1) for run in runs]))
    assert lower_bound(PureDP(1.0), found[0], found[1]) <= 1.0


def test_drawn_quantiles_have_their_law_and_no_other_steepness() -> None:
    """40,000 draws among 6 bins: chi-squared below 50 by chance but for 2e-9 (5 degrees); 20 % off is far above."""
    counts, rng = np.array([3, 0, 1, 0, 0, 6]), SeededEntropy(12)
    found = np.bincount([drawn(counts, 0.5, 0.0, 1.0, 0.6, rng) for _ in range(40_000)], minlength=6)
    away = np.array([2, 2, 1, 1, 1, 0])  # of the rank 5: C is 3, 3, 4, 4, 4, 10
    for steepness, fits in ((0.6, True), (0.48, False), (0.72, False)):
        law = np.exp(-steepness * away) / np.exp(-steepness * away).sum() * 40_000
        assert (np.sum((found - law) ** 2 / law) < 50) == fits


def test_laplace_noise_on_the_grid_has_its_law_and_no_other_scale() -> None:
    """200,000 draws: moments within 6 deviations (2e-9 each); a scale that is wrong by 20 % is 90 off."""
    noise = grid_laplace(SeededEntropy(13), 1e6, 200_000) / 1e6
    assert abs(np.mean(np.abs(noise)) - 1) < 6 / np.sqrt(len(noise))
    assert abs(np.mean(noise)) < 6 * np.sqrt(2 / len(noise))
    assert abs(np.mean(noise**4) / 24 - 1) < 6 * np.sqrt(69 / len(noise))
    assert not abs(np.mean(np.abs(1.2 * noise)) - 1) < 6 / np.sqrt(len(noise))


@pytest.mark.parametrize(("budget", "scale"), [("eps=1", 2.0), ("mu=1", None)])
def test_counts_of_a_window_have_the_stated_noise(budget: str, scale: float | None) -> None:
    """400 windows of 20 counts: the stated variance within 6 deviations of it; 20 % off would be 8 and 12 off."""
    found = []
    for seed in range(400):
        model = Statistics(
            {"ages": {"histogram": "x", "edges": list(range(21))}}, {"x": (0, 20)}, budget, "window", seed=seed
        )
        model.learn_encoded(np.full((5, 1), -1.0), np.zeros(5))
        model.close_batch()
        found.append(list(model.get()["ages"].values()))
    errors = np.array(found) - np.append(5, np.zeros(19))
    (_, stated), *_ = model.learner.released().values()
    low, high = model.interval()["ages"][0.0, 1.0]
    assert (high - low) / 2 == pytest.approx(scale * np.log(20) if scale else 1.959964 * np.sqrt(stated), rel=1e-4)
    assert stated == pytest.approx(2 * scale**2 if scale else 2.0, rel=1e-4)
    assert abs(np.mean(errors**2) / stated - 1) < 6 * np.sqrt((5 if scale else 2) / errors.size)
    assert np.all(np.abs(errors - np.rint(errors)).max() > 1e-3)


def test_batches_of_a_process_have_laplace_noise_at_both_ends() -> None:
    """2,000 batches of 20 counts of nobody: each end has the variance 2 (2 / eps)^2 within 6 deviations, 1.4 %."""
    blocks = [(Cells(Index(), bins(0, tuple(range(21)))), 1.0)]
    pan, rng, found = PanPure(PureDP(1.0), blocks), SeededEntropy(3), []
    for _ in range(2000):
        pan.wipe()
        pan.open(rng, 1)
        first = pan.total / pan.sum.cells
        found.append([first, pan.close(rng) - first])
    ends = np.array(found) * 2.0  # the factor of a count is 1 / 2
    assert pan.variance * 4 == pytest.approx(16.0, rel=1e-4)
    for end in (ends[:, 0], ends[:, 1]):
        assert abs(np.mean(end**2) / 8 - 1) < 6 * np.sqrt(5 / end.size)
        assert not abs(np.mean((end / 2) ** 2) / 8 - 1) < 6 * np.sqrt(5 / end.size)


def test_a_bin_is_as_wide_as_is_said() -> None:
    """Values on the bounds are in the outer bins."""
    assert Ranks(Index(), 0, (0.5,)).kept(np.array([[-1.0], [0.0], [1.0]]), 1.0).tolist() == [0, BINS // 2, BINS - 1]
