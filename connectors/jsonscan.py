"""Flat JSON objects to columns: the fast way, compiled, without a Python object for each field.

The scanner finds the bytes of the declared fields of each record and checks them against JSON's grammar. It writes
them to a table, and polars reads the table: the scanner computes no number. It takes a record only if its meaning is
certain: a flat object without escapes, with numbers in the numeric columns. `jsonrows` decodes the other records.

Reason: a worker decodes in one thread while its client polls in another. A library that makes Python objects holds
the interpreter's lock during that time. The scanner and polars release the lock.
"""

import numpy as np
import polars as pl

from connectors.jsonscan_loop import CELL, scan
from connectors.recordblocks import Records
from streamdp.data.records import Encoder

_MORE_KEYS, _KEY_BYTES = 64, 4096
"""The number of undeclared keys that a scan remembers, and their bytes in all. Records with further keys are not
certain.
"""


def read(records: Records, encoder: Encoder) -> tuple[pl.DataFrame | None, np.ndarray]:
    """Read the records whose meaning is certain.

    Records with a flaw are not certain, and none is if the text is not UTF-8. Returns the encoder's columns for the
    certain records, None if there are none; and (n,) bool, True for the certain records.
    """
    n, data = len(records.ends), records.data
    certain = np.zeros(n, dtype=bool)
    try:
        data.isascii() or data.decode()
    except UnicodeDecodeError:
        return None, certain
    numeric = [c for c in encoder.columns if c in encoder.numeric_columns]
    other = [c for c in encoder.columns if c not in encoder.numeric_columns]
    names = [c.encode(errors="surrogatepass") for c in (*numeric, *other)]
    keys = bytearray(b"".join(names)) + bytes(_KEY_BYTES)
    bounds = np.zeros(len(names) + _MORE_KEYS + 1, dtype=np.int64)
    np.cumsum([len(name) for name in names], out=bounds[1 : len(names) + 1])
    starts = records.starts
    starts[list(records.flaws)] = records.ends[list(records.flaws)] - 1
    table = np.empty(len(data) + n * (len(names) + 2), dtype=np.uint8)
    size = scan(data, starts, records.ends - 1, keys, bounds, len(numeric), len(names), certain.view(np.uint8), table)
    if not size:
        return None, certain
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
