"""Times stay with their records where a message's key is the subject."""

import numpy as np
import polars as pl

from connectors.kafka import _with_subjects
from streamdp.data.schema import Schema
from streamdp.data.times import TimeColumn


def test_a_record_without_a_key_takes_its_time_along() -> None:
    schema = Schema({"a": (0, 1)}, "y", time=TimeColumn("at", "seconds"))
    frame = pl.DataFrame({"a": [0.5] * 3, "y": [1.0] * 3, "at": ["10", "20", "30"]})
    batch = _with_subjects(schema.encode(frame, np.arange(3), {}), [b"ann", None, b"bob"])
    assert (batch.subjects, batch.times.tolist()) == ([b"ann", b"bob"], [10.0, 30.0])
