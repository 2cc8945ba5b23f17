"""Local reports of statistics: each record reports about one of several, drawn by their shares.

Which one is drawn does not depend on the record, and each report spends the whole budget of its record. Drawing is
better than a division of epsilon: a report with epsilon / k has about k^2 times the variance, and a k-th of the reports
k times.

Proof: docs/proofs/statistics.md.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from streamdp.aggregation.block_loops import DrawnReport
from streamdp.errors import SchemaError
from streamdp.learners.learner import Learner
from streamdp.learners.linear_problem import Columns, LinearProblem
from streamdp.learners.local_counts import ReportPart
from streamdp.optim.record_kernel import RecordKernel
from streamdp.privacy.entropy import AnyRng, FreshRng, FreshWords, uniform
from streamdp.privacy.guarantees import Budget
from streamdp.privacy.mechanisms.response import epsilon_of

_WORDS = 1 << 20


@dataclass(frozen=True)
class DrawnAnswer:
    """What leaves a person's side: a noisy answer about one of the statistics, and the budget that it spends.

    `part`: which one. `answer`: see `ReportPart.answer`. `block`: that of a quantile whose thresholds were answered.
    `private`: False if it was made with a seed.
    """

    part: int
    answer: tuple[int, ...]
    block: int
    budget: Budget
    private: bool = True


def _ends(shares: Sequence[float]) -> np.ndarray:
    """Where the share of each part ends, but for the last one."""
    return np.cumsum(shares)[:-1]


def _drawn(ends: np.ndarray, words: np.ndarray) -> np.ndarray:
    """Which parts records report about, by one random word each: not by what they say."""
    return np.searchsorted(ends, uniform(words), side="right")


def answered(parts: Sequence[tuple[ReportPart, float]], X: np.ndarray, rng: FreshRng) -> tuple[int, list[int]]:
    """Return the part that one row X (1, p) reports about, and its answer: all that may leave a person's side.

    It is what `Drawn.learn` adds up for such a row with the same words. `parts` come with their shares.
    """
    words = rng.draw(1 + max(part.words for part, _ in parts)).reshape(1, -1)
    try:
        (i,) = _drawn(_ends([share for _, share in parts]), words[:, 0]).tolist()
        return i, parts[i][0].answer(X, words[:, 1:])
    finally:
        words[:] = 0


class Drawn(Learner):
    """Reports about several statistics, with words of an `rng`.

    `parts` makes the parts for an epsilon; each comes with its share of the records.
    """

    trust = (
        "nobody, if reports come from people's devices; otherwise nobody but the process that calls learn_one, update "
        "or learn_many, which sees each record, adds the noise and forgets the record"
    )
    private = True
    rng: FreshRng

    def __init__(
        self,
        problem: LinearProblem,
        budget: Budget,
        rng: AnyRng,
        parts: Callable[[float], Sequence[tuple[ReportPart, float]]],
    ) -> None:
        super().__init__(problem, budget, rng)
        self._make = parts
        found = parts(epsilon_of(budget))
        self.parts = [part for part, _ in found]
        self.shares = [share for _, share in found]
        self._until = _ends(self.shares)
        self._words = 1 + max(part.words for part in self.parts)

    def begin(self, columns: Columns) -> None:
        self.columns = columns
        self.parts = [part for part, _ in self._make(epsilon_of(self.budget))]

    def learn(self, X: np.ndarray, y: np.ndarray, budget: Budget | None, amounts: np.ndarray | None) -> None:
        step = max(1, _WORDS // self._words)
        for at in range(0, len(X), step):
            rows = X[at : at + step]
            self.seen[0] += len(rows)  # before they are learned: an interruption may lose records, but never a count
            words = self.rng.draw(len(rows) * self._words).reshape(len(rows), -1)
            try:
                drawn = _drawn(self._until, words[:, 0])
                for i, part in enumerate(self.parts):
                    mine = drawn == i
                    if mine.any():
                        part.learn(rows[mine], words[mine, 1:])
            finally:
                words[:] = 0
                self.fast = None  # a block of reports may have ended

    def record_kernel(self) -> RecordKernel | None:
        parts = [reporter for part in self.parts if (reporter := part.reporter()) is not None]
        if len(parts) < len(self.parts):
            return None
        return DrawnReport(parts, self._until, self.seen, self.p, self.rng, isinstance(self.rng, FreshWords))

    def taken(self, report: DrawnAnswer) -> Callable[[], None]:
        """Check a report, and return what takes it in, for when its spend is counted. Raises `SchemaError`."""
        if not isinstance(report, DrawnAnswer) or not 0 <= report.part < len(self.parts):
            raise SchemaError("report: expected an answer about one of the statistics")
        part = self.parts[report.part]
        if report.budget != self.budget or not part.possible(report.answer):
            raise SchemaError(f"report: expected an answer that spends {self.budget}, and that its noise can make")

        def take() -> None:
            self.seen[0] += 1
            part.absorb(report.answer, report.block)
            self.fast = None

        return take

    def close(self) -> None:
        """See `ReportPart.close`."""
        for part in self.parts:
            part.close()
        self.fast = None

    @property
    def point(self) -> tuple[np.ndarray, bool]:
        return np.array([float(part.n) for part in self.parts]), False

    def model(self) -> dict[str, object]:
        return {"budget": str(self.budget)}

    def learned(self) -> dict[str, object]:
        return {f"{i} {name}": value for i, part in enumerate(self.parts) for name, value in part.learned().items()}

    def read(self, state: Mapping[str, object]) -> None:
        for i, part in enumerate(self.parts):
            part.read({name: state[f"{i} {name}"] for name in part.learned()})

    def merge(self, parts: Sequence[Self], average: Callable[[Sequence[np.ndarray]], np.ndarray]) -> None:
        for i, part in enumerate(self.parts):
            part.merge([other.parts[i] for other in parts])
