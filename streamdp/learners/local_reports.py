"""Local reports: noisy steps and bits of single records, for LDP-SGD and LDP-ASGD.

Proofs: docs/proofs/local_reports.md, and docs/proofs/change.md for streams that change. The device's half, which knows
names, is `streamdp.estimators.ldp.randomizer`.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import get_args

import numpy as np

from streamdp.data.floats import finite_array, flag, floats
from streamdp.errors import ConfigError, SchemaError, check_choice
from streamdp.learners.learner import Learner
from streamdp.learners.linear_problem import Columns, LinearProblem
from streamdp.optim import follow, loops, odds
from streamdp.optim.arrays import CHANGES, Arrays
from streamdp.optim.local_learning import LocalStep, absorb, absorb_bit, learn
from streamdp.optim.losses import first_theta, weighted_by_norm
from streamdp.optim.steps import EACH, Steps, expected_distance, rarity
from streamdp.privacy import samplers
from streamdp.privacy.entropy import Rng
from streamdp.privacy.guarantees import Budget, amount
from streamdp.privacy.mechanisms import Mechanism, NoNoise, PrivUnit, calibrated, mechanism_for, record_rows
from streamdp.privacy.mechanisms.privunit import arithmetic_delta
from streamdp.privacy.statement import arithmetic_note
from streamdp.reading.change import OnChange, follows
from streamdp.reading.intervals import SEGMENTS
from streamdp.reading.moderation import NO_NOISE, UNKNOWN, Noise, noise_at
from streamdp.scaling import pair_bits, schedule
from streamdp.scaling import unit_table as k
from streamdp.scaling.arrays import FIRST_SCALE, begin
from streamdp.scaling.search import Question
from streamdp.scaling.units import Scaling, Units, free_units, scaling_of

# Within these limits states stay far inside the doubles for 1e18 records; reports are at most 1e15 bounds long.
_LARGEST_REPORT = 1e15
_LARGEST_THETA = 1e130  # further than a slope of the widest bounds over the narrowest
_BLOCK = 8192  # records that are calibrated at once: their memory is used again, and new memory takes long to get
_MOST_PAIRED = 32  # more columns have more pairs than most streams have information about


@dataclass(frozen=True)
class Report:
    """What leaves a person's side: a noisy gradient (d,) and the budget that its noise was calibrated to.

    `private`: False if it was made without noise or with a seed. `changes`: `Asked.changes` of the scales that it was
    made for.
    """

    gradient: np.ndarray
    budget: Budget
    private: bool = True
    changes: int = 0


@dataclass(frozen=True)
class Answer:
    """What leaves a person's side instead of a gradient: one noisy bit about a column.

    `question`: what was asked, in units of the declared bounds, [-1, 1]. `yes`: the noisy bit.
    """

    question: Question
    yes: bool
    budget: Budget
    private: bool = True


@dataclass(frozen=True)
class Asked:
    """What a record is asked: a gradient, or a bit about one column. It was made from earlier answers only.

    `bit`: as `question` of `Answer`; None: a gradient is asked for. `scales`: (p + 1, 2): centre and scale of the
    columns, and of the target. A gradient is taken for (x - centre) / scale. `bounds`: the middle of the target's
    declared bounds, and half their distance; (0, inf) if there are none. `changes`: how often the scales were changed
    before.
    """

    bit: Question | None
    scales: np.ndarray
    bounds: tuple[float, float]
    changes: int


class LocalReports(Learner):
    """A step or a bit for each record. What was learned is in `arrays` (see `optim.arrays`).

    `mechanism`, `scaling`, `change`: as for the estimators. `averaged`: whether the answer is the average of the
    iterates (LDP-ASGD), and not the last one (LDP-SGD).
    """

    trust = (
        "nobody, if the randomizer runs on the person's side; otherwise the process that calls learn_one, "
        "which sees each record and forgets it"
    )
    per_record_budgets = any_budget = True
    scales_columns = True
    stays = True
    rng: Rng
    arrays: Arrays

    def __init__(
        self,
        problem: LinearProblem,
        budget: Budget,
        rng: Rng,
        *,
        mechanism: str | type[Mechanism],
        steps: Steps,
        scaling: Scaling | None,
        averaged: bool,
        change: OnChange | None,
    ) -> None:
        super().__init__(replace(problem, loss=weighted_by_norm(problem.loss)), budget, rng)
        if scaling is not None:
            check_choice("scaling", scaling, get_args(Scaling), " or None")
        self.mechanism, self.steps, self.scaling, self.averaged = mechanism, steps, scaling, averaged
        self.follows = follows(change, None if steps.clock == "information" else 'with clock="records"')
        self.default = self.mechanism_of(budget)  # a budget that cannot be served is an error now
        self.merged = False
        """Whether it began from others; then there is no path for intervals."""
        self._noise = UNKNOWN

    def begin(self, columns: Columns) -> None:
        problem, p = self.problem, len(columns)
        spec, box = problem.described(p)
        d = box.shape[1]
        bounds, bounded = problem.target, bool(columns.numeric.any()) or problem.target is not None
        needs = free_units(problem.intercept, problem.domain != self.default_domain)
        self._scaling = scaling = scaling_of(self.scaling, "private", bounded, {"private": needs})
        in_units = bounds is not None and scaling != "none"
        classes = problem.classes > 0
        self.distance = expected_distance(d, in_units, classes)
        numbers = self.steps.numbers(self.distance, problem.loss.bound, d, classes)
        spec[loops.FACTOR], spec[loops.DECAY], spec[loops.OFFSET] = numbers
        spec[loops.BY_RECORDS], spec[loops.AVERAGED] = self.steps.clock == "records", self.averaged
        spec[loops.BOUND] = problem.loss.bound
        if self.follows:
            spec[loops.CURVATURE] = problem.curvature(p) / problem.loss.bound
        table = np.zeros((p + 1, k.TABLE))
        table[:, [k.SCALE, k.UNIT]] = 1.0
        table[p, k.UNIT] = np.inf
        if problem.intercept:
            table[:p, k.ORIGIN], table[:p, k.UNIT] = columns.origin, columns.unit
        scaled: list[int] = []
        if scaling == "private":
            scaled = [*np.flatnonzero(columns.numeric).tolist(), *([] if bounds is None else [p])]
            table[:p, k.SCALE][columns.numeric] = FIRST_SCALE
        if bounds is not None:
            low, high = bounds
            table[p, k.ORIGIN], table[p, k.UNIT] = (low + high) / 2, (high - low) / 2
            if scaling != "none":
                table[p, [k.CENTRE, k.SCALE]] = table[p, [k.ORIGIN, k.UNIT]]
        if scaling != "none":
            for j, (centre, spread) in columns.typical.items():
                table[j, [k.CENTRE, k.SCALE]] = centre if problem.intercept else 0.0, spread
        segments = np.zeros((SEGMENTS if self.averaged else 0, d + 1 + 2 * (p + 1)))
        blocks = np.zeros((follow.ROWS, 5 * d + 2))
        units = begin(table, scaled, self._paired(columns))
        self.arrays, self.columns = Arrays(spec, box, np.zeros((3, d)), segments, blocks, units), columns
        self.merged = False
        self.arrays.state[0] = first_theta(problem.loss, d, in_units)
        self.arrays.state[1:] = self.units.outward(self.arrays.state[0])
        self.__dict__.pop("default_rows", None)

    def _paired(self, columns: Columns) -> Sequence[int]:
        """The columns of which pairs are asked about; the number of columns is the constant 1.

        All numbers, if they are few, and the constant. `clock="records"`, the paper's algorithm, asks nobody.
        """
        numbers = columns.numeric if columns.declared else np.ones(len(columns), dtype=bool)
        if not self.averaged or self.steps.clock == "records" or np.count_nonzero(numbers) > _MOST_PAIRED:
            return ()
        return [*np.flatnonzero(numbers).tolist(), *([len(numbers)] if self.problem.intercept else [])]

    @cached_property
    def default_rows(self) -> np.ndarray:
        """The calibration of the default budget; a model that is only read needs none."""
        return self.default.rows(self.arrays.state.shape[1])

    @property
    def units(self) -> Units:
        """The units in which theta is learned."""
        table, problem = self.arrays.units.table, self.problem
        centre, scale, origin, unit = table[:-1, [k.CENTRE, k.SCALE, k.ORIGIN, k.UNIT]].T
        columns, target = np.stack([origin + unit * centre, 1 / (scale * unit)]), table[-1].tolist()
        return Units(columns, target[k.CENTRE], target[k.SCALE], problem.target, problem.intercept, problem.outputs)

    def average_in_units(self) -> np.ndarray:
        """The average of theta in the units in which it is learned, as a new array (d,)."""
        return self.units.inward(self.arrays.state[1])

    def mechanism_of(self, budget: Budget) -> Mechanism:
        """The mechanism with the noise of a budget. Raises `BudgetError` if it cannot serve it."""
        kind: object = mechanism_for(self.mechanism, budget)
        return calibrated(kind, budget, self.problem.loss.bound, self.problem.loss.sensitivity)

    # -- learning ----------------------------------------------------------------------------------------------------

    def check(self, budget: Budget) -> None:
        self.mechanism_of(budget)

    def learn(self, X: np.ndarray, y: np.ndarray, budget: Budget | None, amounts: np.ndarray | None) -> None:
        mechanism, d = self.default, self.arrays.state.shape[1]
        if self.side is not None and budget is None:
            X, y, amounts = self.side.draw(self, X, y, amounts)
        if amounts is not None:
            for at in range(0, len(X), _BLOCK):
                some = slice(at, at + _BLOCK)
                self._learn_by(mechanism, mechanism.rows(d, amounts[some], self._asks), X[some], y[some])
        elif budget is not None:
            mechanism = self.mechanism_of(budget)
            self._learn_by(mechanism, record_rows(mechanism, d), X, y)
        else:
            self._learn_by(mechanism, self.default_rows, X, y)

    def _learn_by(self, mechanism: Mechanism, rows: np.ndarray, X: np.ndarray, y: np.ndarray) -> None:
        """Learn by one calibration, or by one for each record."""
        rng = self.rng
        while (done := learn(self.arrays, mechanism.code, self.seen, X, y, rows, rng.words)) < len(X):
            rng.refill_for(done)
            X, y = X[done:], y[done:]
            rows = rows if len(rows) == 1 else rows[done:]

    def record_kernel(self) -> LocalStep:
        return LocalStep(self.arrays, self.default.code, self.seen, self.default_rows)

    # -- reports of devices ------------------------------------------------------------------------------------------

    def question(self) -> Asked:
        """What the next record is asked; nothing about pairs of columns and about the class."""
        units = self.arrays.units
        column = schedule.next_question(units)
        bit = Question(*units.ends(column), 0, column) if column >= 0 else None
        scales = units.table[:, [k.CENTRE, k.SCALE]].copy()
        bounds = tuple(units.table[-1, [k.ORIGIN, k.UNIT]].tolist())
        return Asked(bit, scales, bounds, int(units.progress[k.CHANGES]))

    def taken(self, report: Report | Answer) -> Callable[[], None]:
        """Check a report, and return what takes it in, for when its spend is counted. Raises as `absorb` does."""
        if not isinstance(report, Report | Answer):
            raise SchemaError(f"report: expected what a randomizer returns, got {type(report).__name__}")
        row = record_rows(self.mechanism_of(report.budget), self.arrays.state.shape[1])[0]
        keep = float(row[samplers.KEEP])
        if isinstance(report, Answer):
            return self._taken_bit(report, keep)
        g, shape = floats("report", report.gradient), self.arrays.state[0].shape
        if g.shape != shape or not np.all(np.abs(g) <= _LARGEST_REPORT * self.problem.loss.bound):
            raise SchemaError(f"report: expected a finite vector of shape {shape}, got shape {g.shape}")

        def take() -> None:
            if report.changes == self.arrays.units.progress[k.CHANGES]:
                absorb(self.arrays, self.seen, g, float(row[samplers.INFORMATION]), keep)
            else:  # made for older scales: counted, and not learned
                self.seen[0] += 1

        return take

    def _taken_bit(self, answer: Answer, keep: float) -> Callable[[], None]:
        low, high, _, column = answer.question
        if not self.arrays.units.scaled(column) or not low < high:
            raise SchemaError("report: expected an answer about a column that is scaled")
        bit = column, float(low), float(high), bool(answer.yes)
        return lambda: absorb_bit(self.arrays, self.seen, *bit, keep)

    # -- what was released -------------------------------------------------------------------------------------------

    @property
    def point(self) -> tuple[np.ndarray, bool]:
        return self.arrays.state[1], self.problem.intercept

    @property
    def unit_table(self) -> np.ndarray:
        return self.arrays.units.table

    @property
    def private(self) -> bool:
        return mechanism_for(self.mechanism, self.budget).code != NoNoise.code

    @property
    def place_of_target(self) -> tuple[float, float, float]:
        if self.problem.target is None:
            return super().place_of_target
        target, asked = self.arrays.units.table[-1], self.arrays.units.progress[k.TARGET]
        if target[k.SLOT] >= 0 and asked < k.DONE:
            return 0.0, 0.0, 0.0
        at = [k.ORIGIN, k.UNIT] if self._scaling == "none" else [k.CENTRE, k.SCALE]
        centre, scale = target[at].tolist()
        return centre, scale, float(target[k.UNIT])

    @property
    def _asks(self) -> bool:
        """Whether a later record may be asked for a bit in place of a gradient."""
        return len(self.arrays.units.summary) > 0 or bool(self.arrays.units.pairs[-1, pair_bits.FIRST] >= 0)

    @property
    def n_asked(self) -> int:
        """Records that answered with one bit about the class, or about the centre and scale of target or column."""
        return 0 if self.columns is None else int(self.arrays.units.progress[k.BITS])

    @property
    def n_paired(self) -> int:
        """Records that answered with one bit about two columns, and not with a gradient (see `pair_bits`)."""
        return 0 if self.columns is None else int(self.arrays.units.pairs[-1, pair_bits.ANSWERS])

    @property
    def n_changes(self) -> int:
        return 0 if self.columns is None else int(self.arrays.blocks[CHANGES])

    @property
    def renewals(self) -> int:
        return 0 if self.columns is None else int(self.arrays.blocks[follow.NUMBERS, follow.RENEWALS])

    @property
    def last_change(self) -> int | None:
        return None if self.columns is None else int(self.arrays.blocks[follow.NUMBERS, follow.NOTICED]) or None

    @property
    def least_records(self) -> int | None:
        """About how many records in all hold the information I_0 of `steps`; None before the first one."""
        seen = int(self.seen[0])
        if self.columns is None or not seen or self.steps.clock == "records":
            return None
        arrays, problem = self.arrays, self.problem
        total, gradients = self.information, seen - self.n_asked - self.n_paired
        each = total / max(gradients, 1) if total else float(self.default_rows[0, samplers.INFORMATION])
        shares = np.array([odds.told(arrays)])
        if problem.outputs > 1 and problem.intercept:
            shares = problem.blocks(self.average_in_units(), self.p)[:, -1]
        effort = problem.loss.effort * rarity(shares) ** 2
        return self.n_asked + math.ceil(EACH * len(arrays.state[0]) * effort / each)

    @property
    def range_of_scale(self) -> tuple[float, float]:
        low, high = super().range_of_scale
        return low * self.units.scale, high

    @property
    def noise(self) -> Noise:
        problem, arrays = self.problem, self.arrays
        if self.merged or not problem.loss.probabilistic:
            return NO_NOISE
        total, since = arrays.units.progress.item(k.TOTAL), arrays.units.table.item(-1, k.SINCE)
        if self._noise.low <= total < self._noise.high and since == self._noise.since:
            return self._noise
        free = problem.domain == self.default_domain
        if not (problem.outputs == 1 and free and self.steps.clock == "information"):
            return NO_NOISE
        factor, alpha, offset = arrays.spec[[loops.FACTOR, loops.DECAY, loops.OFFSET]].tolist()
        factor *= problem.loss.bound / math.sqrt(arrays.state.shape[1])
        self._noise = noise_at((factor, alpha, offset - since), total, self.averaged, odds.told(arrays), since)
        return self._noise

    @property
    def progress(self) -> np.ndarray:
        return self.arrays.units.progress

    def noise_units(self) -> np.ndarray:
        return self.arrays.units.table[:-1, [k.CENTRE, k.SCALE]].T

    def caveats(self, spent: Sequence[Budget], capped: bool, answers: bool) -> list[str]:
        if self.columns is None:
            return []
        notes = []
        others = "a gradient or another answer" if answers else "a gradient"
        budgets = [b for b in spent if mechanism_for(self.mechanism, b).code == PrivUnit.code]
        if budgets:
            delta = arithmetic_delta(max(budgets, key=amount), self.arrays.state.shape[1])
            notes.append(arithmetic_note(delta))
        target = "class" if self.problem.classes else "centre and the scale of the target"
        bits = {f"the {target}, or the centre and the scale of a column": self.n_asked, "two columns": self.n_paired}
        if any(bits.values()):
            asked = ", ".join(
                f"{count:,} spent their budget on one bit about {what}" for what, count in bits.items() if count
            )
            seen = int(self.seen[0])
            notes.append(f"of the {seen:,} records, {asked}, and the others on {others}; which ones is public")
        return notes

    # -- state -------------------------------------------------------------------------------------------------------

    def model(self) -> dict[str, object]:
        """See `Learner.model`: steps may change between states, units and weights may not."""
        units = self.arrays.units.table[:, [k.ORIGIN, k.UNIT, k.SLOT]].tolist()
        weighting = self.problem.loss.weighting or "mallows"
        return {"weighting": weighting, "clock": self.steps.clock, "units": repr(units)}

    def learned(self) -> dict[str, object]:
        arrays = self.arrays
        return {
            "state": arrays.state.copy(),
            "segments": arrays.segments.copy(),
            "blocks": arrays.saved_blocks(),
            "merged": self.merged,
            **arrays.units.learned(),
        }

    def read(self, state: Mapping[str, object]) -> None:
        arrays = self.arrays
        numbers = finite_array(state, "state", arrays.state.shape)
        segments, d = finite_array(state, "segments", arrays.segments.shape), numbers.shape[1]
        measured = segments[:, d + 1 :] > 0
        if (
            np.abs(numbers).max() > _LARGEST_THETA
            or segments[:, d:].min(initial=0.0) < 0
            or np.any(measured != (measured.all(axis=1) & (segments[:, d] > 0))[:, None])
        ):
            raise ConfigError("state: numbers out of range")
        self.problem.check_theta(numbers[0], self.p)
        blocks = arrays.read_blocks(state)
        arrays.units.read(state, len(segments))
        arrays.state[:], arrays.segments[:], arrays.blocks[:] = numbers, segments, blocks
        self.merged = flag(state, "merged")

    @property
    def information(self) -> float:
        """That of all gradients, also of those before a change of the stream."""
        progress, numbers = self.arrays.units.progress, self.arrays.blocks[follow.NUMBERS]
        return float(numbers[follow.EVER] if self.arrays.spec[loops.CURVATURE] else progress[k.TOTAL])

    @property
    def weight(self) -> float:
        """The information of its gradients since the last change of the stream that it noticed."""
        return float(self.arrays.units.progress[k.TOTAL])

    @property
    def latest(self) -> float:
        return self.weight / self.information if self.information else 1.0

    def keep_latest(self, share: float) -> None:
        arrays = self.arrays
        mean = follow.keep_latest(arrays, share)
        if mean is not None and self.averaged:
            arrays.state[1:] = self.units.outward(mean)

    def _both(self) -> np.ndarray:
        """Theta and the answer (2, d) in original units."""
        return np.stack([self.units.outward(self.arrays.state[0]), self.arrays.state[1]])

    def merge(self, parts: "Sequence[LocalReports]", average: Callable[[Sequence[np.ndarray]], np.ndarray]) -> None:
        arrays = self.arrays
        found = average([part._both() for part in parts]) if any(part.weight for part in parts) else self._both()  # noqa: SLF001 - the same class
        arrays.units.merge([part.arrays.units for part in parts])
        arrays.segments[:] = arrays.units.progress[[k.SEGMENT, k.WIDTH]] = 0.0
        # The scale of a part may be below the least one in the units of the whole.
        arrays.state[0], arrays.state[1:] = np.clip(self.units.inward(found[0]), *arrays.box), found[1]
        arrays.merge_blocks([part.arrays for part in parts], self.units.inward(found[1]))
        odds.begin(arrays)
        self.merged = True
