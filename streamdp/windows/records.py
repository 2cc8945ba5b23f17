"""The records of the users of one window. Methods can ask for averages of each user only."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

import numpy as np

from streamdp.optim.curvature import Curvature
from streamdp.optim.losses import Loss
from streamdp.optim.user_averages import average_gradients, within_bound
from streamdp.scaling.units import FAR, Link
from streamdp.scaling.window_moments import CELLS, WIDTH, WindowColumns
from streamdp.system import processors
from streamdp.windows.task import CHUNK, Users


class WindowUsers(Users, WindowColumns, Protocol):
    """All that a learner of windows asks of the users of one window."""

    def rescale(self, columns: np.ndarray, table: np.ndarray, link: Link) -> None:
        """Replace columns (k,) by (x - m) / s from now on, cut to `units.FAR` deviations, but for the target.

        A loss that `keeps_tails` has them cut to as many s. They are indices; p is the target. `table` (2, k) has m and
        s. `link` is that of `Units` for this target.
        """

    def wipe(self) -> None:
        """Overwrite all records."""


class WindowRecords:
    """The users of a window in this process, as `WindowUsers`.

    X (N, p) and y (N,) are sorted by user; `sizes` (n,) are the numbers of records of each, at least 1, and `places`
    (N,) those of records in the window, from 0 to 1, ascending for each user; None: as they are sorted. `spec`
    describes the loss and the model to the compiled loops; `project` projects theta onto the domain.
    """

    def __init__(
        self,
        loss: Loss,
        spec: np.ndarray,
        project: Callable[[np.ndarray], np.ndarray],
        X: np.ndarray,
        y: np.ndarray,
        sizes: np.ndarray,
        places: np.ndarray | None = None,
    ) -> None:
        self._loss, self._spec = loss, spec.copy()
        self._X, self._y, self.link = X, y, (0.0, 0.0)
        self._starts = np.append(0, np.cumsum(sizes))
        self._places = np.arange(len(X)) / len(X) if places is None else places
        self.project = project

    def gradients(self, theta: np.ndarray, users: np.ndarray | None = None, radius: float = 0.0) -> np.ndarray:
        """As `task.Users.gradients`. A positive radius is for non-smooth losses only."""
        chosen = np.arange(len(self._starts) - 1) if users is None else np.asarray(users, dtype=np.int64)
        if radius > 0:
            return self._smoothed(theta, chosen, radius)
        return average_gradients(self._spec, self._loss, theta, self._X, self._y, self._starts, chosen)

    def curvatures(self, curvature: Curvature, theta: np.ndarray, grid: float) -> np.ndarray:
        """As `task.Users.curvatures`."""
        from streamdp.optim.curvature_loops import accumulate_averages

        def add(starts: np.ndarray, total: np.ndarray) -> None:
            accumulate_averages(curvature.factor, self._spec, theta, self._X, self._y, starts, 1 / grid, total)

        return self._added(add, curvature.size, grid)

    def squares(self, curvature: Curvature, theta: np.ndarray, grid: float) -> np.ndarray:
        """As `task.Users.squares`."""
        from streamdp.optim.curvature_loops import accumulate_squares

        bounds = curvature.squares
        factors = 1 / bounds[0], 1 / bounds[-1]

        def add(starts: np.ndarray, total: np.ndarray) -> None:
            accumulate_squares(self._spec, theta, self._X, self._y, starts, *factors, 1 / grid, total)

        return self._added(add, len(bounds) * curvature.columns * (curvature.columns + 1) // 2, grid)

    def _added(self, add_users: Callable[[np.ndarray, np.ndarray], None], size: int, grid: float) -> np.ndarray:
        """The sum (size,) over all users: `add_users` adds those of some starts to a part, in units of the grid."""
        users = len(self._starts) - 1
        threads = max(1, min(processors(), users // CHUNK))
        ends, total = np.arange(threads + 1) * users // threads, np.zeros((threads, size), dtype=np.int64)

        def add(part: int) -> None:
            add_users(self._starts[ends[part] : ends[part + 1] + 1], total[part])

        try:
            if threads == 1:
                add(0)
            else:
                with ThreadPoolExecutor(threads, "streamdp-window") as pool:
                    list(pool.map(add, range(threads)))
            for part in total[1:]:  # whole numbers: their sum is the same for any number of threads
                total[0] += part
            exact: np.ndarray = total[0] * grid
        finally:
            total[:] = 0
        return exact

    def parts(self, theta: np.ndarray, count: int, grid: float) -> tuple[np.ndarray, np.ndarray]:
        """As `task.Users.parts`."""
        total, users_of = np.zeros((count, len(theta))), np.zeros(count)
        for users in self._blocks():
            part = (self._places[users[0] : users[-1]] * count).astype(np.int64)
            new = np.diff(part, prepend=-1) != 0
            new[users[:-1] - users[0]] = True
            begins = np.flatnonzero(new)  # of the records that a user has in one part
            starts, of = np.append(begins, len(part)) + users[0], part[begins]
            shares = np.diff(starts) / np.diff(users)[np.searchsorted(users, starts[:-1], side="right") - 1]
            np.add.at(users_of, of, shares)
            for at in range(0, len(begins), CHUNK):
                chosen = np.arange(at, min(at + CHUNK, len(begins)))
                found = average_gradients(self._spec, self._loss, theta, self._X, self._y, starts, chosen)
                found *= shares[chosen, None] / grid
                np.rint(found, out=found)
                for sums, column in zip(total.T, found.T, strict=True):
                    sums += np.bincount(of[chosen], column, count)  # whole numbers: exact
                found[:] = 0.0
        total *= grid
        return total, users_of

    def keep_from(self, place: float) -> int:
        """As `task.Users.keep_from`."""
        records = self._X, self._y, np.diff(self._starts), self._places
        self._X, self._y, sizes, self._places = records_from(place, *records)
        self._starts = np.append(0, np.cumsum(sizes))
        return len(sizes)

    def moments(self, columns: np.ndarray, table: np.ndarray, grid: float) -> np.ndarray:
        """As `window_moments.WindowColumns.moments`."""
        total = np.zeros(2 * len(columns))
        for starts in self._blocks():
            place = np.zeros(starts[-1] - starts[0])
            for j, column in enumerate(columns):
                np.subtract(self._column(column)[starts[0] : starts[-1]], table[0, j], out=place)
                place /= table[1, j]
                np.clip(place, -1.0, 1.0, out=place)
                for moment in (j, len(columns) + j):
                    total[moment] += _sum(place, starts, grid)
                    place *= place
            place[:] = 0.0
        return total

    def sizes(self, columns: np.ndarray, grid: float) -> np.ndarray:
        """As `window_moments.WindowColumns.sizes`."""
        total = np.zeros((len(columns), CELLS))
        for j, column in enumerate(columns):
            values = self._column(column)
            cell = np.where(values == 0, CELLS, np.clip(-np.frexp(values)[1], 0, CELLS - 1))
            cell = np.minimum(cell, CELLS - 1)
            for c in np.unique(cell).tolist():
                total[j, c] = _sum((cell == c).astype(float), self._starts, grid)
            cell[:] = 0
        return total.ravel()

    def rescale(self, columns: np.ndarray, table: np.ndarray, link: Link) -> None:
        """As `WindowUsers.rescale`, in place."""
        from streamdp.optim.loops import LINK, ORIGIN

        self.link = self._spec[LINK], self._spec[ORIGIN] = link
        far = FAR if self._loss.keeps_tails else FAR / WIDTH
        for starts in self._blocks():
            for column, (centre, scale) in zip(columns, table.T, strict=True):
                values = self._column(column)[starts[0] : starts[-1]]
                values -= centre
                values /= scale
                if column < self._X.shape[1]:  # without an own scale nothing is so far out
                    np.clip(values, -far, far, out=values)

    def _blocks(self) -> Iterator[np.ndarray]:
        """The starts of some users and the end of the last, block by block: the rows of one stay in the cache."""
        for at in range(0, len(self._starts) - 1, CHUNK):
            yield self._starts[at : at + CHUNK + 1]

    def _column(self, column: int) -> np.ndarray:
        """A view (N,) of a column; of the target for p."""
        return self._y if column == self._X.shape[1] else self._X[:, column]

    def _smoothed(self, theta: np.ndarray, users: np.ndarray, radius: float) -> np.ndarray:
        from streamdp.optim.loops import INTERCEPT
        from streamdp.optim.smoothing import smoothed_gradients

        out = np.zeros((len(users), len(theta)))
        sizes = self._starts[users + 1] - self._starts[users]
        begins = np.cumsum(sizes) - sizes
        rows = np.repeat(self._starts[users] - begins, sizes) + np.arange(int(sizes.sum()))
        intercept = bool(self._spec[INTERCEPT])
        single = smoothed_gradients(self._loss, intercept, theta, self._X[rows], self._y[rows], radius)
        if len(users):
            out[:] = np.add.reduceat(single, begins, axis=0) / sizes[:, None]
        single[...] = 0.0
        return within_bound(out, self._loss)

    def wipe(self) -> None:
        """As `WindowUsers.wipe`."""
        self._X[...] = 0.0
        self._y[...] = 0.0


def _sum(values: np.ndarray, starts: np.ndarray, grid: float) -> float:
    """The sum over users of their averages of values (N,), each rounded to the grid: it is exact.

    `starts` (n + 1,) are those of the users, and the end of the last.
    """
    if len(values) < len(starts):  # each user has one record
        averages = values / grid
    else:
        averages = np.add.reduceat(values, starts[:-1] - starts[0])
        averages /= np.diff(starts)
        averages /= grid
    np.rint(averages, out=averages)
    total = float(averages.sum()) * grid
    averages[:] = 0.0
    return total


def records_from(
    place: float, X: np.ndarray, y: np.ndarray, sizes: np.ndarray, places: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Those of the records from a `place` on, and how many each of their users has; all given ones are overwritten.

    `X`, `y`, `sizes` and `places` are as for `WindowRecords`.
    """
    kept = places >= place
    left = np.add.reduceat(kept, np.cumsum(sizes) - sizes, dtype=np.int64)
    found = X[kept], y[kept], left[left > 0], places[kept]
    X[:] = y[:] = 0.0
    return found
