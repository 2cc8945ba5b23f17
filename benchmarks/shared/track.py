"""Speed from run to run: a line of a file for each run, and what became slower since an earlier one.

A rate is compared as a part of its rival's where it has one, because both ran on one machine in turns; another rate
only with that of a run on the same machine.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

SLOWER = 0.8
"""A rate below this part of the earlier one is worth a warning; less is within what a busy machine changes."""


@dataclass(frozen=True)
class Run:
    """The rates of one run: those beside a rival as a part of its rate, the others in records a second."""

    date: str
    commit: str
    version: str
    machine: str
    beside: Mapping[str, float]
    rates: Mapping[str, float]


def run_of(version: str, machine: str, beside: Mapping[str, float], rates: Mapping[str, float]) -> Run:
    """A run that ended now, of the code that is checked out."""
    command = ["git", "rev-parse", "--short=9", "HEAD"]
    found = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True, check=False)
    date = datetime.now(UTC).isoformat(timespec="seconds")
    return Run(date, found.stdout.strip() or "unknown", version, machine, beside, rates)


def runs(path: Path) -> list[Run]:
    """The runs of a file, the oldest first."""
    return [Run(**json.loads(line)) for line in path.read_text().splitlines()] if path.exists() else []


def track(run: Run, path: Path) -> list[str]:
    """Add a run to a file. Returns each rate beside the newest earlier one, and first a warning for each slowdown."""
    earlier = runs(path)
    with path.open("a") as file:
        file.write(json.dumps(asdict(run)) + "\n")
    pairs: dict[str, tuple[float, float, Run]] = {}
    for old in earlier:  # the newest comes last
        known = [(run.beside, old.beside)] + [(run.rates, old.rates)] * (old.machine == run.machine)
        pairs |= {what: (now[what], then[what], old) for now, then in known for what in now.keys() & then.keys()}
    lines = [
        (now / then, f"{what}: {now / then:.2f} times the speed of {old.date[:10]} ({old.commit})")
        for what, (now, then, old) in sorted(pairs.items())
    ]
    warned = [f"warning: slower: {line}" for ratio, line in lines if ratio < SLOWER]
    return [*warned, *(line for ratio, line in lines if ratio >= SLOWER)]
