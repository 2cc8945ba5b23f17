"""What batches of records hold, and the integers of Avro."""

from typing import Any

from streamdp.data.records import Batch


def contents(batch: Batch) -> tuple[Any, ...]:
    """All that a batch holds, floats as their bits."""
    budgets = None if batch.budgets is None else batch.budgets.tobytes()
    numbers = batch.X.shape, batch.X.tobytes(), batch.y.tobytes(), batch.positions.tolist()
    return (batch.features, *numbers, batch.position, batch.subjects, budgets, batch.dead)


def varint(n: int) -> bytes:
    """A long of Avro; more than 64 bits are cut off."""
    n, out = (n << 1 ^ n >> 63) & (1 << 64) - 1, b""
    while n > 127:
        out, n = out + bytes([n & 127 | 128]), n >> 7
    return out + bytes([n])
