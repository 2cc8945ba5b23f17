"""Records that are to be predicted: from the body of a call to encoded features."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
import orjson
import polars as pl

from connectors.jsoncalls import Cut
from connectors.jsonrows import encode_json_lines
from connectors.recordblocks import Records
from streamdp.config.schema import SchemaConfig
from streamdp.data.records import Batch, Position
from streamdp.errors import SchemaError
from streamdp.estimators.features import SchemaFeatures
from streamdp.service.calls import cut_call
from streamdp.service.limits import MAX_RECORDS
from streamdp.service.problems import ProblemError

PLAIN_BYTES = 1 << 18
"""A longer call is read in a thread that lets others run, because it takes longer than other callers should wait."""


class FeatureReader:
    """Reads the records of a call that predicts."""

    def __init__(self, declared: SchemaConfig) -> None:
        # A schema encodes whole records, so each gets an arbitrary target; predictions do not depend on it.
        column = max(declared.features, key=len) + "$"  # no feature has this name
        target = declared.target.model_copy(update={"column": column})
        self._schema = declared.model_copy(update={"target": target, "subject": None, "budget": None}).build()
        self._target = pl.lit("0" if declared.target.classes is None else declared.target.classes[0]).alias(column)
        self.columns = self._schema.feature_columns
        self.numeric_columns = tuple(c for c in self._schema.numeric_columns if c != column)
        self._packer = None
        with contextlib.suppress(SchemaError):  # bounds of 1e60 or more
            if self._schema.plain:
                self._packer = SchemaFeatures(declared.declared(), "service").packer
        self._levels = len(self._schema.feature_names)

    def encode(self, frame: pl.DataFrame, positions: np.ndarray, position: Position) -> Batch:
        """See `Encoder.encode`."""
        return self._schema.encode(frame.with_columns(self._target), positions, position)

    def encode_plain(self, *_: Any) -> None:
        """See `Encoder.encode_plain`. None: `plain` has read such calls."""

    def read(self, body: bytes) -> tuple[np.ndarray, Cut]:
        """Read a call.

        Parameters
        ----------
        body
            The call.

        Returns the encoded features (n, p), and the call. Raises `ProblemError` 400 if it is no call, 413 for too many
        records, and 422 for the first record that does not fit.
        """
        call = cut_call(body, False)
        if not len(call):
            return np.empty((0, self._levels)), call
        flat = call.flat
        if "id" in self.columns:  # a feature: no such job learns from requests, so no record has an id
            texts = call.texts(call.spans)
            flat = Records(b"\n".join([*texts, b""]), np.cumsum([len(text) + 1 for text in texts]), {})
        batch = encode_json_lines(flat, np.arange(len(call)), self)
        for letter in batch.dead[:1]:
            column = "" if letter.column is None else f", in column {letter.column!r}"
            detail = f"the record does not fit the schema: {letter.reason}{column}"
            raise ProblemError(422, "bad-record", detail, index=letter.position)
        return batch.X, call

    def plain(self, body: bytes) -> np.ndarray | None:
        """Read a call of plain records without ids and escapes as `read` does, but faster; None for any other call.

        Parameters
        ----------
        body
            The call.
        """
        if self._packer is None or len(body) > PLAIN_BYTES or b"\\" in body:
            return None
        try:
            records = orjson.loads(body)["records"]
            X = np.empty((len(records), self._levels))
            fits = len(records) <= MAX_RECORDS and self._packer.pack_rows(records, X)
        except (orjson.JSONDecodeError, LookupError, TypeError):
            return None
        # A packed record has one key for each feature. With as many colons as keys, no key occurs twice.
        return X if fits and body.count(b":") == 1 + len(records) * len(self.columns) else None
