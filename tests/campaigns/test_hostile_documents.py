"""Hostile randomizer documents: both devices accept the same ones, and every accepted one gives finite reports.

`python -m tests.campaigns.test_hostile_documents` runs 100,000 random and 10,000 mutated documents of models, and
20,000 about statistics.
"""

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support import hostile

_AT_ONCE = 2_000


def tried(kind: str, n: int, seed: int, records: int = 5) -> Counter[str]:
    """Try n documents in both languages; returns the counts. Raises `AssertionError` for a difference or a failure."""
    made, words, counts = hostile.Hostile(seed), hostile.pool(seed), Counter[str]()
    for begin in range(0, n, _AT_ONCE):
        asked: list[dict[str, Any]] = []
        ours: list[hostile.Made] = []
        documents = [getattr(made, kind)() for _ in range(min(_AT_ONCE, n - begin))]
        for document in documents:
            text, at = made.text(document), int(made.rng.integers(hostile.POOL - hostile.DRAW))
            pinned = document.get("agreement") if made.chance(0.5) else None
            given: list[list[Any]] = []
            asked.append(
                {"text": text, "pinned": pinned if isinstance(pinned, str) else None, "records": given, "at": at}
            )

            def records_of(given: list[list[Any]] = given, document: dict[str, Any] = document) -> list[list[Any]]:
                given += made.records(document, records)
                return given

            ours.append(hostile.in_python(text, asked[-1]["pinned"], records_of, words, at))
        for document, one, two, told in zip(documents, ours, hostile.in_javascript(asked, words), asked, strict=True):
            assert (one is None) == (two is None), ("accepted by one language", told["text"], one, two)
            counts["refused" if one is None else "accepted"] += 1
            if not one or not two:
                continue
            cell, steady = 0.0, True
            if "ask" in document:
                cell, steady = hostile.cell_of(document), document["ask"] != "gradient" or hostile.steady(document)
            for record, mine, other in zip(told["records"], one, two, strict=True):
                assert hostile.is_finite(mine), (mine, record, told["text"])
                assert hostile.is_finite(other), (other, record, told["text"])
                assert not steady or hostile.agree(mine, other, cell), (mine, other, cell, record, told["text"])
                counts["vectors" if isinstance(mine, list) else "bits"] += 1
                counts["compared"] += steady
    return counts


def test_hostile_documents_in_both_languages() -> None:
    random, mutated = tried("random", 300, 1, 3), tried("mutated", 300, 2, 3)
    assert random["accepted"] > 100
    assert mutated["accepted"] > 15
    assert mutated["refused"] > 100


def test_hostile_documents_about_statistics_in_both_languages() -> None:
    counts = tried("statistics", 400, 11, 4)
    assert counts["accepted"] > 80
    assert counts["refused"] > 50


def campaign(pieces: int = 10) -> Iterator[tuple[str, Counter[str]]]:
    """The counts of the campaign, piece by piece."""
    for piece in range(pieces):
        yield "statistics", tried("statistics", 20_000 // pieces, 2010 + piece, 2)
        yield "random", tried("random", 100_000 // pieces, 10 + piece, 2)
        yield "mutated", tried("mutated", 10_000 // pieces, 1010 + piece, 2)


@pytest.mark.campaign
def test_many_hostile_documents_in_both_languages() -> None:
    total = Counter[str]()
    for _, counts in campaign():
        total += counts
    assert total["accepted"] > 30_000


if __name__ == "__main__":
    totals: dict[str, Counter[str]] = {"statistics": Counter(), "random": Counter(), "mutated": Counter()}
    for kind, counts in campaign():
        totals[kind] += counts
        print(kind, dict(totals[kind]), flush=True)
