"""What memory still holds of raw records. `python -m benchmarks.memory_dump [--write]`; Linux only.

`--write` replaces memory_dump.md beside this file. The measurement is that of tests/support/memory_dump.py.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from tests.support.memory_dump import CASES, FEATURES, MORE, SECRETS, STAGES, measure

PAGE = Path(__file__).parent / "memory_dump.md"
ABOUT = """# What memory still holds of raw records

A pan-private estimator keeps no record: `tests/statistical/test_intruder.py` looks at every object that can be
reached from it. The
process around it is another matter. `python -m benchmarks.memory_dump --write` lets a child process learn {records}
records, {values} values in all, that have patterns nothing else has, and reads the whole of its writable memory from
outside: in memory that was freed, in Python's free lists and in what a file is read into, raw values stay until
something else is written there. The control makes the same records and learns none, so what it leaves is the caller's.

{table}

"Within the batch" is right after the last of these records, and {more} further ones follow once it has ended. "As
numbers" counts the values of which a copy is left (and all copies), "as text" those whose decimal text is. The runner
polls whole batches, so a file has no moment within one; it reads up to 4 MiB of a file ahead. "Noise" counts traces of
Z_a and of the random words it was made from: with the sum, Z_a would give the gradients of an open batch away. The
tests ask that it is 0, which is what our code can see to.

What follows: pan-privacy is promised for the estimator's objects, and is not for freed memory of Python, NumPy and
polars. Who must survive a dump of the whole process should learn from a source in another process and keep swap and
core dumps off.
"""


def table() -> str:
    rows = ["| case | when | as numbers (copies) | as text | noise |", "| --- | --- | --- | --- | --- |"]
    for case in CASES:
        found = measure(case)
        for stage in STAGES:
            if stage in found:
                f = found[stage]
                rows.append(f"| {case} | {stage} | {f.values:,} ({f.copies:,}) | {f.texts:,} | {f.noise} |")
    return "\n".join(rows)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.memory_dump", description="Read a learner's memory.")
    parser.add_argument("--write", action="store_true", help=f"replace {PAGE.name}")
    write = parser.parse_args().write
    found = table()
    print(found)
    if write:
        values = f"{SECRETS * (FEATURES + 1):,}"
        PAGE.write_text(ABOUT.format(records=SECRETS, values=values, more=f"{MORE:,}", table=found), encoding="utf-8")


if __name__ == "__main__":
    main()
