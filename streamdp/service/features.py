"""The records of calls as arrays: features that are predicted or learned, and what goes with those that are learned."""

from collections.abc import Sequence

import numpy as np
import polars as pl

from connectors.http import CallRecords, Flaw
from connectors.jsonrows import encode_objects
from streamdp.config.schema import SchemaConfig, TargetConfig
from streamdp.data.columns import text_of
from streamdp.data.records import Batch, DeadLetter, Position


class RecordReader:
    """Encodes records of calls. Features, target, subject and budget never share a mapping. Threads may share it.

    `coded`: as for `Schema`.
    """

    def __init__(self, declared: SchemaConfig, coded: bool = False) -> None:
        self._of_features = declared.model_copy(
            update={"target": TargetConfig(column=""), "subject": None, "budget": None}
        ).build(coded=coded)
        self._levels = len(self._of_features.feature_names)
        columns = self._of_features.feature_columns
        self._keys = frozenset(columns) | {column.partition(".")[0] for column in columns}
        self._encoder = self._of_features.encoder()
        more = "$" * max(map(len, columns))  # so that no feature has the name of a field
        self._fields = {f"{field}{more}": field for field in ("y", "subject", "budget")}
        y, subject, budget = self._fields
        person = declared.subject and declared.subject.model_copy(update={"column": subject})
        update: dict[str, object] = {"subject": person, "budget": budget}
        self.has_target = bool(declared.target.column)
        if self.has_target:
            update["target"] = declared.target.model_copy(update={"column": y})
        self._of_records = declared.model_copy(update=update).build(coded=coded)

    def unknown(self, records: Sequence[dict[str, object]]) -> int | None:
        """The index of the first of `records` with a key that no feature has; None if there is none."""
        return next((i for i, record in enumerate(records) if not record.keys() <= self._keys), None)

    def read(self, records: list[dict[str, object]]) -> tuple[np.ndarray, dict[int, Flaw]]:
        """Encode `records` of features by name as (n, p). Also return the flaws of those that do not fit, by index."""
        X = np.zeros((len(records), self._levels))
        if self._encoder.pack_rows(records, X):
            return X, {}
        batch = encode_objects(records, np.arange(len(records)), {}, self._of_features)
        X[batch.positions] = batch.X
        return X, {letter.position: Flaw(letter.reason, letter.column) for letter in batch.dead}

    def complete(self, rows: CallRecords, positions: np.ndarray, position: Position) -> Batch:
        """Encode what goes with the features of n records, `rows`. Those that cannot be encoded go to `Batch.dead`.

        `positions` (n,) int64 are those of the records, and `position` is the source's after the last one.
        """
        values = (rows.targets, rows.subjects, rows.budgets)
        columns = {
            name: pl.Series([text_of(value) for value in column], dtype=pl.String)
            for name, column in zip(self._fields, values, strict=True)
        }
        batch = self._of_records.encode(pl.DataFrame(columns), positions, position, rows.X)
        for i, letter in enumerate(batch.dead):
            batch.dead[i] = DeadLetter(letter.position, letter.reason, self._fields.get(letter.column or ""))
        return batch
