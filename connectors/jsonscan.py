"""Flat JSON objects to columns: the fast way, compiled, without a Python object for each field.

The scanner finds the bytes of the declared fields of each record and checks them against JSON's grammar. It writes
them to a table, and polars reads the table: the scanner computes no number. It takes a record only if its meaning is
certain: a flat object without escapes, with numbers in the numeric columns. `jsonrows` decodes the other records.

Reason: a worker decodes in one thread while its client polls in another. A library that makes Python objects holds
the interpreter's lock during that time. The scanner and polars release the lock.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from connectors.jsonscan_loop import CELL, scan
from connectors.recordblocks import Records
from streamdp.data.records import Encoder

_MORE_KEYS, _KEY_BYTES = 64, 4096
"""The number of undeclared keys that a scan remembers, and their bytes in all. Records with further keys are not
certain.
"""
_WORTH = 100
"""With fewer certain records than this, a second batch costs more than the exact way for all records."""

_PLAIN = bytes(c >= 32 and c not in b'"\\' for c in range(256))
_ASCII = _PLAIN[:128] + bytes(128)


def read(records: Records, encoder: Encoder) -> tuple[pl.DataFrame | None, np.ndarray]:
    """Read the records whose meaning is certain.

    Records with a flaw are not certain. Returns the encoder's columns for the certain records, and (n,) bool, True for
    the certain records. If there are too few of them for a batch of their own, returns None and no True.
    """
    n, data = len(records.ends), records.data
    numeric = [c for c in encoder.columns if c in encoder.numeric_columns]
    other = [c for c in encoder.columns if c not in encoder.numeric_columns]
    names = [c.encode(errors="surrogatepass") for c in (*numeric, *other)]
    keys = bytearray(b"".join(names)) + bytes(_KEY_BYTES)
    bounds = np.zeros(len(names) + _MORE_KEYS + 1, dtype=np.int64)
    np.cumsum([len(name) for name in names], out=bounds[1 : len(names) + 1])
    starts = records.starts
    starts[list(records.flaws)] = records.ends[list(records.flaws)] - 1
    plain = _PLAIN if data.isascii() or _is_utf8(data) else _ASCII
    certain, table = np.zeros(n, dtype=bool), np.empty(len(data) + n * (len(names) + 2), dtype=np.uint8)
    found, size = scan(
        data, starts, records.ends - 1, plain, keys, bounds, len(numeric), len(names), certain.view(np.uint8), table
    )
    if found < max(1, min(n, _WORTH)):
        return None, np.zeros(n, dtype=bool)
    types = [pl.String, *[pl.Float64] * len(numeric), *[pl.String] * len(other)]
    cells = pl.read_csv(
        table[:size].tobytes(),
        has_header=False,
        separator=chr(CELL),
        quote_char=None,
        schema={str(k): kind for k, kind in enumerate(types)},
    )
    columns = dict(zip((*numeric, *other), cells.get_columns()[1:], strict=True))
    return pl.DataFrame({name: columns[name] for name in encoder.columns}), certain


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True
