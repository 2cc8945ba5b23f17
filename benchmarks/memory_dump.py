"""What memory still holds of raw records. `python -m benchmarks.memory_dump [--write]`; Linux only.

The measurement is that of tests/support/memory_dump.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from benchmarks.shared.pages import command, table
from tests.support.memory_dump import CASES, STAGES, measure


def measured() -> str:
    """A row for each case and stage."""
    rows = []
    for case in CASES:
        for stage, f in ((stage, f) for stage, f in measure(case).items() if stage in STAGES):
            rows.append([case, stage, f"{f.values:,} ({f.copies:,})", f"{f.texts:,}", str(f.noise)])
    return table(["case", "when", "as numbers (copies)", "as text", "noise"], rows)


PARTS: dict[str, Callable[[], str]] = {"memory": measured}


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print, and with --write save."""
    command(__file__, PARTS, arguments)


if __name__ == "__main__":
    main()
