"""Tables of one estimate: noisy counts made consistent, and records drawn from them, by a graphical model.

Tables that were counted with noise contradict each other: rows of one do not sum to those of another, and some are
below 0. The distribution over all columns that is nearest to the noisy counts, among those in which columns depend on
each other only as the tables say, has none of this (McKenna, Sheldon, Miklau, "Graphical-model based estimation and
inference for differential privacy", 2019). It follows from what was released, so it spends nothing.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import Any

import numpy as np

from streamdp.data.late import pl
from streamdp.errors import ConfigError, NotAvailableError, check_whole, needing
from streamdp.reading.estimates import as_lists

_MOST_CELLS = 1 << 24
"""The most cells of the tables that the model needs: those of columns that depend on each other."""
_STEPS, _ENOUGH = 5_000, 1e-7


@dataclass(frozen=True)
class Counted:
    """One table: noisy counts (k,), the last column changes first, and the `deviation` of each by noise."""

    name: str
    columns: tuple[str, ...]
    counts: np.ndarray
    deviation: float


@contextmanager
def _exact() -> Iterator[Any]:
    """The library of the graphical model, in doubles."""
    with needing("a table that is consistent with others", "tables", NotAvailableError):
        import jax
    with jax.enable_x64(True), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import mbi

        yield mbi


class Tables:
    """Consistent tables of `records` people, and synthetic records.

    `values` has the categories of each column, or its bins (low, high); `counted` the tables, of these columns. Raises
    `ConfigError` if columns that the tables join have too many cells together.
    """

    def __init__(self, values: Mapping[str, Sequence[object]], counted: Sequence[Counted], records: int) -> None:
        self._values, self._counted, self._records = values, counted, records

    @cached_property
    def _model(self) -> Any:
        with _exact() as mbi:
            domain = mbi.Domain([*self._values], [len(values) for values in self._values.values()])
            measured = [mbi.LinearMeasurement(one.counts, one.columns, one.deviation) for one in self._counted]
            joined, _ = mbi.junction_tree.make_junction_tree(domain, [one.columns for one in self._counted])
            cells = sum(math.prod(len(self._values[column]) for column in clique) for clique in joined.nodes)
            if cells > _MOST_CELLS:
                need = "columns that several tables join depend on each other; declare fewer tables of two columns"
                raise ConfigError(f"these tables need {cells:,} cells together, of at most {_MOST_CELLS:,}: {need}")
            return mbi.estimation.MirrorDescent().estimate(
                domain, measured, known_total=float(self._records), iters=_STEPS, tol=_ENOUGH
            )

    def counts(self) -> dict[str, np.ndarray]:
        """Return by table the consistent counts (k,), in the order of the noisy ones: at least 0, sum `records`."""
        model = self._model
        with _exact():
            return {one.name: np.asarray(model.project(one.columns).datavector()) for one in self._counted}

    def rows(self) -> list[dict[str, Any]]:
        """Return `counts` as rows of `statistic`, `item` and `value`, as `Statistics.rows`, but without groups."""
        found, counts = [], self.counts()
        for one in self._counted:
            kinds = product(*(self._values[column] for column in one.columns))
            for kind, value in zip(kinds, counts[one.name].tolist(), strict=True):
                item = as_lists(kind if len(kind) > 1 else kind[0])
                found.append({"statistic": one.name, "item": item, "value": value})
        return found

    def draw(self, records: int | None = None, seed: int | None = None) -> pl.DataFrame:
        """Draw synthetic records from the distribution of the tables: a column of texts, or of numbers, by column.

        A number is uniform within its bin. `records`: how many; None: as many as were counted. `seed` sets the draw,
        which protects nobody: the tables do. Raises `ConfigError` for other than whole numbers.
        """
        check_whole("records", count := self._records if records is None else records, 1, 10**9)
        if seed is not None:
            check_whole("seed", seed, 0, 2**32 - 1)
        model, before = self._model, np.random.get_state()
        np.random.seed(seed)  # the library draws by the global generator
        try:
            with _exact():
                drawn = model.synthetic_data(count)
            columns = {}
            for column, values in self._values.items():
                at = np.asarray(drawn.to_dict()[column])
                if isinstance(values[0], tuple):
                    low, high = np.array(values).T
                    columns[column] = pl.Series(low[at] + (high - low)[at] * np.random.random(count))
                else:
                    columns[column] = pl.Series(np.array(values, dtype=object)[at].tolist())
        finally:
            np.random.set_state(before)
        return pl.DataFrame(columns)
