"""The bodies of calls, `{"records": [...]}`, cut into flat JSON records that `jsonrows` decodes.

The scanner is compiled and makes no Python object for a record. It checks the JSON around the records and around their
outermost members, and copies values as they are: `jsonrows` checks those.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from connectors import jsoncalls_loop as loop
from connectors.recordblocks import Records
from streamdp.errors import SchemaError

TARGET, SUBJECT, BUDGET = "$y", "$subject", "$budget"
"""The columns of `y`, `subject` and `budget` in the flat records. No feature may have such a name."""
FIELDS = {TARGET: "y", SUBJECT: "subject", BUDGET: "budget"}
"""The fields of a call that these columns are."""

REASONS = {
    loop.UNKNOWN: "unknown_field",
    loop.DUPLICATE: "duplicate_key",
    loop.NO_OBJECT: "not_an_object",
    loop.BAD_ID: "bad_id",
}
"""The reasons of records that are dead already, by code."""


@dataclass(frozen=True, slots=True)
class Cut:
    """The n records of a call.

    Parameters
    ----------
    body
        The call.
    flat
        The flat records.
    spans
        (n, 2) int64: where each record is in the body.
    ids
        (n, 2) int64: where the id of each record is in the body; both are 0 for none.
    labels
        The indices of records without `x`: labels of earlier predictions.
    named
        The indices of records with an id.
    """

    body: bytes
    flat: Records
    spans: np.ndarray
    ids: np.ndarray
    labels: list[int]
    named: list[int]

    def __len__(self) -> int:
        return len(self.spans)

    def texts(self, places: np.ndarray) -> list[bytes]:
        """The texts at some places of the body.

        Parameters
        ----------
        places
            (m, 2) int64, rows of `spans` or `ids`.
        """
        return [self.body[start:stop] for start, stop in places.tolist()]


def cut(body: bytes, learn: bool, most: int) -> Cut:
    """Cut a call into records. If there are more than `most`, returns the first most + 1.

    Parameters
    ----------
    body
        JSON text.
    learn
        Whether records are `{"x": {...}, "y": ...}` with `subject`, `budget` and `id` beside them. Otherwise they are
        flat, and only `id` is taken out of them.
    most
        The most records.

    Raises `SchemaError` if it is no call.
    """
    out = np.empty(2 * len(body) + 64, dtype=np.uint8)
    places = np.empty((min(most + 1, len(body) // 2 + 1), 5), dtype=np.int64)
    labels: list[int] = []
    named: list[int] = []
    flawed: list[tuple[int, int]] = []
    n, size = loop.cut_into(body, learn, most, out, places, labels, named, flawed)
    if n < 0:
        raise SchemaError('expected a JSON object {"records": [{...}, ...]} and nothing else')
    places = places[:n].copy()
    flat = Records(out[:size].tobytes(), places[:, 0], {i: REASONS[code] for i, code in flawed})
    return Cut(body, flat, places[:, 1:3], places[:, 3:], labels, named)
