"""A damaged bit of SQLite's schema is an error of the store, or changes nothing that is read."""

import random
import shutil
import sqlite3
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from streamdp.data.records import WHOLE
from streamdp.errors import StoreError
from streamdp.store.reading import sinks, snapshots
from streamdp.store.snapshot import Counts, Part
from streamdp.store.store import Store

PAGE_BYTES = 4096
FLIPS = 120


def _schema_bytes(path: Path) -> list[int]:
    """The places in the file of the texts of its schema, which all are on the first page."""
    page = path.read_bytes()[:PAGE_BYTES]
    with sqlite3.connect(path) as driver:
        texts = [sql for (sql,) in driver.execute("SELECT sql FROM sqlite_schema WHERE sql IS NOT NULL")]
    driver.close()
    return [at for text in texts if (start := page.find(text.encode())) >= 0 for at in range(start, start + len(text))]


def _open(path: Path) -> None:
    with Store(path, "job", "f") as store:
        store.load()


def test_a_damaged_bit_of_the_schema_is_an_error_of_the_store(tmp_path: Path) -> None:
    path, copy = tmp_path / "a.db", tmp_path / "copy.db"
    with Store(path, "job", "f") as store:
        store.commit_parts({WHOLE: Part({}, {"row": 1}, Counts(learned=1))})
    whole, places = path.read_bytes(), _schema_bytes(path)
    assert len(places) > 1000
    reads: tuple[Callable[[], Any], ...] = (partial(snapshots, copy), partial(sinks, copy, "job"), partial(_open, copy))
    rng, outcomes = random.Random(1), Counter[str]()
    # Most faults of this kind were in the table of snapshots, and in bytes that are no text.
    flips = [(at, bit) for at in rng.sample(places, FLIPS) for bit in (rng.randrange(7), 7)]
    for at, bit in flips:
        for read in reads:
            damaged = bytearray(whole)
            damaged[at] ^= 1 << bit
            copy.write_bytes(damaged)
            shutil.copy(f"{path}.last", f"{copy}.last")
            try:
                read()
                outcomes["read"] += 1
            except StoreError as error:  # any other one fails the test
                outcomes["refused" if str(copy) in str(error) else "without its name"] += 1
    assert outcomes["refused"] > FLIPS
    assert outcomes["read"] > 0
    assert not outcomes["without its name"]
