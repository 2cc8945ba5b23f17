"""What an LDP learner holds: the arrays that its compiled loops read and write."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from streamdp.data.floats import finite_array
from streamdp.errors import ConfigError
from streamdp.optim import follow
from streamdp.scaling.arrays import UnitArrays

CHANGES = follow.KNOWN, -1
"""Where `blocks` have how many changes were noticed."""


class Arrays(NamedTuple):
    """What is learned, and what describes the model.

    `spec`, `box`: (`loops.SPEC`,) and (2, d): the model, and the lower and upper bounds of theta. `state`: (3, d):
    theta, and in original units the answer and the average, if there is one. `segments`: (`intervals.SEGMENTS`, d + 1 +
    2 (p + 1)): those of `path`. `blocks`: (`follow.ROWS`, 5 d + 2) sums of noisy gradients, from which a change of the
    stream is noticed. `units`: the units and the progress of columns and target.
    """

    spec: np.ndarray
    box: np.ndarray
    state: np.ndarray
    segments: np.ndarray
    blocks: np.ndarray
    units: UnitArrays

    def saved_blocks(self) -> np.ndarray:
        """Return the rows of `blocks` that a state has: those in use, and those after all blocks."""
        used = np.count_nonzero(self.blocks[: follow.BLOCKS, -1])
        return np.concatenate([self.blocks[:used], self.blocks[follow.OPEN : follow.SAVED]])

    def read_blocks(self, state: Mapping[str, object]) -> np.ndarray:
        """Return the blocks of a state. Raises `ConfigError` for numbers out of range."""
        out, rows = np.zeros_like(self.blocks), np.asarray(state["blocks"])
        width, after = out.shape[1], follow.SAVED - follow.OPEN
        used, d = len(rows) - after, (width - 2) // 5
        if rows.ndim != 2 or rows.shape[1] != width or not 0 <= used <= follow.BLOCKS:
            raise ConfigError(f"state: blocks: expected rows of {width} numbers, got shape {rows.shape}")
        rows = finite_array(state, "blocks", rows.shape)
        out[:used], out[follow.OPEN : follow.SAVED] = rows[:used], rows[used:]
        levels, numbers = rows[:used, -1], out[follow.NUMBERS]
        sums = np.concatenate([rows[: used + 2, 5 * d : -1], rows[:used, 3 * d : 4 * d]], axis=None)
        if (
            np.any(levels != np.rint(levels))
            or np.any(np.diff(levels) > 0)
            or not np.all((levels >= 1) & (levels <= follow.LEVELS))
            or sums.min() < 0
            or np.any(rows[:used, 4 * d : -1] <= 0)
            or min(numbers.min(), rows[used + 1, 3 * d : 4 * d].min(), rows[used + 1, -1]) < 0
            or numbers[follow.MIXED] > 1
        ):
            raise ConfigError("state: blocks: expected what a stream can make, got numbers out of range")
        return out

    def merge_blocks(self, parts: "Sequence[Arrays]", theta: np.ndarray) -> None:
        """Begin with one block, the average of learners of disjoint records, and what they know about the curvature.

        The average is `theta` (d,), in learned units; there is at least one part.
        """
        self.blocks[:] = 0.0
        kept = [follow.KNOWN, follow.NUMBERS]
        self.blocks[kept] = sum(part.blocks[kept] for part in parts)
        numbers = self.blocks[follow.NUMBERS]
        numbers[[follow.MIXED, follow.NOTICED]] = 0.0  # the records of one part are not those of all
        for number in ((follow.NUMBERS, follow.RENEWALS), (follow.NUMBERS, follow.BRIEF), CHANGES):
            self.blocks[number] = max(part.blocks[number] for part in parts)
        information, d = numbers[follow.FOLLOWED], len(theta)
        if information > 0:
            self.blocks[0, d : 2 * d], self.blocks[0, 4 * d : -1] = information * theta, information
            self.blocks[0, -1] = follow.LEVELS
