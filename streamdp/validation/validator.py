"""Private progressive validation: each record that answers is asked about the model before the record is learned.

Blocks. What is asked is fixed at the beginning of each block of records: the model, the constant, and the largest
error. A block has a sixteenth of the records before it, from 1 to 512, so the errors are those of a model that is up
to 512 records old. The answers of a block change nothing but their sums. So calls may learn single records or arrays,
with the same answers. Compiled code asks single records by `Asking`, one by one; nothing of later ones is drawn.

Interruptions. The caller counts the budget of a record before it is asked. `take` moves past records before they
answer: no record answers twice, and an exception may lose answers. If it comes while a block begins, the block begins
again. Compiled code is not interrupted. All that is kept is private, so it may be saved with
the model; true errors are overwritten.

The proofs for privacy and for alarms are in docs/proofs/validation.md, that for intervals is in `sums`.
"""

from collections.abc import Mapping, Sequence
from typing import Self

import numpy as np

from streamdp.data.floats import finite_array
from streamdp.errors import ConfigError
from streamdp.privacy.entropy import FreshWords, Rng, draw
from streamdp.validation import drift, quality, sums
from streamdp.validation.answers import Asking, Errors
from streamdp.validation.plan import FARTHEST, NEAREST, Plan, questions
from streamdp.validation.quality import Quality
from streamdp.validation.tasks import Numbers, Task

_SURE = 30.0
_STRETCHES = 32
# `progress`: records met; the number at which the block ends; the largest distance (0 before it is known); the answers
# about the constant, and their information (see `unit_table`); alarms, and the records met at the last one.
MET, END, REACH, CONSTANTS, INFORMATION, DRIFTS, DRIFT = range(7)
PROGRESS = 7
_LARGEST = 1e270  # a sum of 10^15 squares of squares of `FARTHEST`, with their noise


class Validator:
    """The answers of one model's records; `size` is the length of the vector that predicts.

    `rng` has the random words of this alone: answers are the same however a stream is cut into calls.
    """

    summed = False
    """Whether answers are summed before noise is added; see `held_out`."""

    def __init__(self, plan: Plan, task: Task, size: int, rng: Rng | FreshWords) -> None:
        self.plan = plan
        self.task, self.rng = task, rng
        self.progress = np.zeros(PROGRESS)
        self.known = task.start(0.0, 1.0, self.summed)
        self._total = np.zeros(sums.COLUMNS + task.cells)
        self._halves = sums.Rows(_STRETCHES, drift.FIRST, columns=len(self._total))
        self._window = sums.Rows(drift.ROWS, drift.FIRST, drift.LONGEST)
        self.open = np.zeros_like(self._total)
        self.point = np.zeros(size)
        """The vector that predicts in this block."""
        self.fixed = self.known
        self._errors: tuple[np.ndarray, Errors] | None = None
        self.questions = np.zeros(0, dtype=np.int64)
        self._came = np.zeros(2, dtype=np.int64)  # records since `allow`, and how many may come before the next `take`
        self.asking = Asking()
        """What asks single records, for compiled code."""

    @property
    def least(self) -> float:
        """About the fewest answers of the first sums that give an interval; 0 for single answers."""
        return 0.0

    @property
    def due(self) -> bool:
        """Whether the block is complete, or its beginning was interrupted: `begin` comes before the next record."""
        return len(self.questions) == int(self._came[0])

    def begin(self, point: np.ndarray, middle: float, scale: float, most: float) -> None:
        """Begin a block with the point (size,) that predicts now.

        `middle` and `scale` are the centre and the spread of the target as far as they are known privately; with a
        spread of 0, records are not asked yet. `most` is half the width of the target's bounds.
        """
        self.settle()
        self._end_block()
        progress = self.progress.copy()
        if progress[REACH] == 0 and scale > 0:
            progress[REACH] = self.plan.bound or np.clip(self.task.reach * scale, NEAREST, min(most, FARTHEST))
            self.known = self.task.start(middle, float(progress[REACH]), self.summed)
        self.point, self.fixed = point.copy(), self.known.copy()  # what is known changes in place
        progress[END] = progress[MET] + min(max(progress[MET] // 16, 1), 512)
        self.progress = progress
        self._ask()

    def _end_block(self) -> None:
        """Add the answers of a block to the sums, and look for drift."""
        block, self.open = self.open, np.zeros_like(self._total)
        if not block[sums.ANSWERS]:
            return
        self._total = self._total + block
        self._halves.add(block)
        if self._window.add(block[: sums.COLUMNS]) and drift.risen(
            self._window, self.task.largest(self.progress[REACH])
        ):
            self._window.clear()
            self._halves.clear()
            progress = self.progress.copy()
            progress[DRIFTS] += 1
            progress[DRIFT] = progress[MET]
            self.progress = progress

    def _ask(self) -> None:
        met, end = int(self.progress[MET]), int(self.progress[END])
        if self.progress[REACH] == 0:
            self.questions = np.zeros(end - met, dtype=np.int64)
        else:
            cells = bool(self.task.cells)
            self.questions = questions(met, end - met, self.plan.share, not self.knows_constant(), cells=cells)

    def knows_constant(self) -> bool:
        """Whether the constant of this block is known well enough to compare errors with it."""
        return self._lacks(self.fixed) <= 1

    def _lacks(self, known: np.ndarray) -> float:
        """How many times the answers about the constant that are `known` determine it."""
        if isinstance(self.task, Numbers) and not self.summed:
            return _SURE / max(float(self.progress[INFORMATION]), 1e-9)
        return self.task.lacks(known)

    def take(self, most: int) -> np.ndarray:
        """Return what the next records of the block, at most this many, are asked, and move past them."""
        self.settle()
        asked, self.questions = self.questions[:most], self.questions[most:]
        self.progress[MET] += len(asked)
        return asked

    def allow(self, predictor: object, keep: float) -> None:
        """Let compiled code ask the other records of the block, by `asking`, without `take` and `answer`.

        `predictor` predicts by `point`, and `keep` is the probability of a true bit, which sums do not have.
        """
        self.settle()
        self._look(predictor, keep)
        self._came[1] = len(self.questions)

    def _look(self, predictor: object, keep: float) -> None:
        self.asking.look(
            predictor, keep, self.rng, self.errors, self.questions, self._came, self.open, self.progress, self.known
        )

    def settle(self) -> None:
        """Move past the records that compiled code has asked."""
        came = int(self._came[0])
        self._came[:] = 0
        self.questions = self.questions[came:]
        self.progress[MET] += came

    def answer(self, asked: np.ndarray, scores: np.ndarray, y: np.ndarray, keep: np.ndarray) -> None:
        """Let records answer what they are asked (n,), not `NOTHING`. Hold the lock of the estimator.

        `scores` (n, K) are the linear predictors of `point` for them, y (n,) their targets: both are
        overwritten; `keep` (n,) or (1,) are the probabilities of a true bit at their budgets.
        """
        words = draw(self.rng, 2 * len(asked)).reshape(len(asked), 2)  # by record, however the records come
        found = self.open.copy(), self.progress.copy(), self.known.copy()
        try:
            self.errors.answer(asked, scores, y, keep, words, *found)
            self.open, self.progress, self.known = found
        finally:
            scores[:] = y[:] = 0
            words[:] = 0

    @property
    def errors(self) -> Errors:
        """What records of this block say."""
        if self._errors is None or self._errors[0] is not self.fixed:
            self._errors = self.fixed, self.task.errors(self.fixed, float(self.progress[REACH]))
        return self._errors[1]

    def quality(self) -> Quality:
        """The quality of the model by the answers."""
        reach = float(self.progress[REACH])
        largest = self.task.largest(reach)
        recent = quality.stretch(self._halves.later_half() + self.open, self.task, self.known, reach)
        total = quality.stretch(self._total + self.open, self.task, self.known, reach)
        drifts, verdict = int(self.progress[DRIFTS]), quality.verdict(recent)
        return Quality(
            self.task.measure,
            largest if reach else None,
            total,
            recent,
            verdict,
            drifts,
            int(self.progress[DRIFT]) if drifts else None,
            quality.missing(total, recent) if verdict == quality.UNKNOWN else None,
            quality.first(total, recent, self._lacks(self.known), self.least) if verdict == quality.UNKNOWN else None,
        )

    # -- state ------------------------------------------------------------------------------------------------------

    def state(self) -> dict[str, np.ndarray]:
        """The state as new arrays. No random words and no values of records are in it."""
        self.settle()
        return {name: value.copy() for name, value in self._numbers().items()}

    def _numbers(self) -> dict[str, np.ndarray]:
        return {
            "progress": self.progress,
            "known": self.known,
            "fixed": self.fixed,
            "point": self.point,
            "total": self._total,
            "open": self.open,
            "halves": self._halves.numbers,
            "window": self._window.numbers,
        }

    def load(self, state: Mapping[str, object]) -> None:
        """Take over what `state` returned.

        Raises `ConfigError` for numbers out of range; `KeyError`, `TypeError` and `ValueError` mean that it is no
        state.
        """
        found = {name: finite_array(state, name, mine.shape, _LARGEST) for name, mine in self._numbers().items()}
        progress, bits = found["progress"], isinstance(self.task, Numbers) and not self.summed
        rows = [np.atleast_2d(found[name]) for name in ("total", "open", "halves", "window")]
        counts = np.concatenate([part[:, sums.COUNTS] for part in rows])
        if (
            min(progress.min(), counts.min(), *(part[:, sums.SQUARES].min() for part in rows)) < 0
            or np.any(counts != np.rint(counts))
            or not 0 <= progress[END] - progress[MET] <= 512
            or not (progress[REACH] == 0 or NEAREST <= progress[REACH] <= FARTHEST)
            or (bits and min(found["known"][1], found["fixed"][1]) < 0)  # the weights of answers
            or any(part[-1, 0] > len(part) - 2 or part[-1, 1] < 1 for part in rows[2:])  # used, length
        ):
            raise ConfigError("state: validation is out of range: expected what answers can make")
        self._halves.numbers, self._window.numbers = found["halves"], found["window"]
        self.progress, self.known, self.fixed, self.point = progress, found["known"], found["fixed"], found["point"]
        self._total, self.open = found["total"], found["open"]
        self._came[:] = 0
        self._ask()

    def take_sum(self, parts: Sequence[Self]) -> None:
        """Take over the answers about models of disjoint records. What is recent is the later half of each."""
        for part in (self, *parts):
            part.settle()
        all_progress = np.stack([part.progress for part in parts])
        self.progress = all_progress.sum(axis=0)
        self.progress[REACH], self.progress[DRIFT] = all_progress[:, REACH].max(), all_progress[:, DRIFT].max()
        self.progress[END] = self.progress[MET]
        best = parts[int(np.argmax(all_progress[:, INFORMATION]))]
        self.known, self.fixed = best.known.copy(), best.known.copy()
        self._total = np.sum([part._total + part.open for part in parts], axis=0)  # noqa: SLF001
        later = np.sum([part._halves.later_half() + part.open for part in parts], axis=0)  # noqa: SLF001
        self._halves.start(later[None, :], max(drift.FIRST, later[sums.ANSWERS]))
        self._window.clear()
