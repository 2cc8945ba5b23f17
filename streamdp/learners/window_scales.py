"""Which columns of a window are centred and scaled: what that does to theta, and the search for the scales.

The search is `window_moments.zoom` (proof: docs/proofs/windowed.md). It spends the share `window_moments.SHARE` of
mu^2 of a window, and the method spends the rest.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from streamdp.data.floats import finite_array
from streamdp.errors import ConfigError, TooFewUsersError
from streamdp.privacy.entropy import Rng
from streamdp.privacy.guarantees import GaussianDP
from streamdp.privacy.mechanisms import Gaussian
from streamdp.scaling.units import Units
from streamdp.scaling.window_moments import (
    LEAST,
    LEAST_PRIVATE,
    SHARE,
    SIZES,
    noise_of,
    noise_of_sizes,
    sizes_of,
    useful,
    users_for_sizes,
    zoom,
)
from streamdp.windows.records import WindowUsers
from streamdp.windows.task import Task


class Scales:
    """The columns that are centred and scaled. Their centres and scales, a table (2, k), are in the learner's state.

    `columns`: (k,) ascending indices; p is the target. `p`: the number of features. `private`: the indices of columns
    whose bounds are not declared.
    """

    def __init__(self, columns: np.ndarray, p: int, private: Sequence[int] = ()) -> None:
        self.columns = columns
        self._private = np.isin(columns, list(private))
        self._inputs = int(np.count_nonzero(columns < p))

    def __len__(self) -> int:
        return len(self.columns)

    @property
    def start(self) -> tuple[np.ndarray, np.ndarray]:
        """The table, with centres 0 and scales 1, and 0 (k,), because they are not final."""
        return np.repeat([[0.0], [1.0]], len(self), axis=1), np.zeros(len(self))

    def read(self, state: Mapping[str, object]) -> tuple[np.ndarray, np.ndarray]:
        """Return what `start` returns, of a stored state. Raises `ConfigError` for numbers out of range."""
        table, final = finite_array(state, "scales", (2, len(self))), finite_array(state, "final", (len(self),))
        if np.abs(table[0]).max(initial=0.0) > 2 or table[1].min(initial=1.0) <= 0 or table[1].max(initial=1.0) > 1:
            raise ConfigError("state: scales out of range")
        return table, (final != 0).astype(float)

    def units(self, plain: Units, table: np.ndarray) -> Units:
        """The units of columns with centres and scales `table` (2, k); `plain`: those with declared bounds alone."""
        columns, (centre, scale), inputs = plain.columns.copy(), table, self._inputs
        columns[:, self.columns[:inputs]] = centre[:inputs], 1 / scale[:inputs]
        if inputs == len(self):
            return plain._replace(columns=columns)
        target = plain.centre + plain.scale * float(centre[-1]), plain.scale * float(scale[-1])
        return plain._replace(columns=columns, centre=target[0], scale=target[1])

    def caveats(self, final: np.ndarray) -> list[str]:
        """What the statement says of them; `final` (k,) are some of them."""
        if not len(self):
            return []
        state = "are final" if final.all() else "may still change"
        private = int(np.count_nonzero(self._private))
        return [
            f"the centres and scales of {len(self)} columns {state}; a window that looks for them spends "
            f"{SHARE:.0%} of its mu^2 on them",
            *(
                [f"{private} columns have no declared bounds; a window that looks for them spends {SIZES:.0%} more"]
                if private
                else []
            ),
        ]

    def bounds_from(self, task: Task) -> int | None:
        """From about how many users of a window on the bounds of all columns without any are found; None: all have."""
        private = int(np.count_nonzero(self._private))
        return math.ceil(users_for_sizes(self._noise_of_sizes(private, task), private)) if private else None

    def _noise_of_sizes(self, columns: int, task: Task) -> Gaussian:
        mu = GaussianDP.from_approx(task.budget).mu * (1 - 1e-9)
        return noise_of_sizes(columns, task.users, task.items, mu * math.sqrt(SIZES))

    def search(
        self,
        users: WindowUsers,
        table: np.ndarray,
        final: np.ndarray,
        task: Task,
        plan: Callable[[Task], object],
        rng: Rng,
    ) -> tuple[object, np.ndarray, np.ndarray] | None:
        """Find new centres and scales with a share of the window's budget, from the last `table` (2, k).

        Not all columns are `final` (k,). `plan` plans the method for a task. Returns the plan for the rest of the
        budget, the new table, and which are final. None, and nothing is asked of the users, if the noise would be too
        large or the rest of the budget too small for the method.
        """
        mu = GaussianDP.from_approx(task.budget).mu * (1 - 1e-9)  # what is left is converted and back
        asked = np.flatnonzero(final == 0)
        unknown = asked[self._private[asked] & (table[1, asked] == 1)]
        sizes = None
        if unknown.size:
            sizes = self._noise_of_sizes(len(unknown), task)
            if users_for_sizes(sizes, len(unknown)) >= task.users:  # these wait for a larger window
                asked, unknown, sizes = np.setdiff1d(asked, unknown), unknown[:0], None
        noise = noise_of(max(len(asked), 1), task.users, task.items, mu * math.sqrt(SHARE))
        if not (asked.size and useful(noise, len(asked), task.users)):
            return None
        rest = GaussianDP(mu * math.sqrt(1 - SHARE - SIZES * (sizes is not None))).to_approx(task.budget.delta)
        try:
            planned = plan(replace(task, budget=rest))
        except TooFewUsersError:
            return None
        table, final = table.copy(), final.copy()
        if sizes is not None:
            table[1, unknown] = sizes_of(users, self.columns[unknown], task.users, sizes, rng)
        least = np.where(self._private[asked], LEAST_PRIVATE, LEAST)
        table[:, asked], final[asked] = zoom(users, self.columns[asked], table[:, asked], task.users, noise, rng, least)
        return planned, table, final
