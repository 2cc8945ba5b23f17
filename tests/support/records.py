"""Records for a source in memory."""

from typing import Any

from tests.support.memory import BAD


def items(n: int, people: int, *, bad_every: int = 0) -> list[Any]:
    """Records of interleaved people."""
    out: list[Any] = []
    for i in range(n):
        bad = bad_every and i % bad_every == 3
        out.append(BAD if bad else ({"a": (i % 7) / 7, "b": (i % 3) - 1.0}, i % 5 / 5, f"s{i % people}", None))
    return out
