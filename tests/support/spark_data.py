"""Files for tests of Spark."""

import csv
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def write_csv(path: Path, records: Mapping[str, list[Any]]) -> None:
    """Write records by column to a CSV file, which appears when it is complete."""
    draft = path.with_name(f".{path.name}")
    with draft.open("w", newline="") as file:
        out = csv.writer(file)
        out.writerow(records)
        out.writerows(zip(*records.values(), strict=True))
    draft.rename(path)
