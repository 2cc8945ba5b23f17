"""100,000 short schedules of a group of workers: faults and interleavings from a seed.

`python -m tests.campaigns.test_schedules --seconds 500` runs blocks of 1,000 seeds, notes each in
`benchmarks/schedules.jsonl`, and goes on where it ended. It skips the blocks that were noted, of any commit: remove
the file to begin anew.
"""

import json
import logging
import subprocess
import time
from pathlib import Path
from typing import Annotated

import pytest
import typer

from tests.support.schedules import short_schedule

pytestmark = pytest.mark.campaign

BLOCK, BLOCKS = 1_000, 100
NOTES = Path(__file__).parents[2] / "benchmarks/schedules.jsonl"


def run_block(block: int) -> None:
    for seed in range(BLOCK * block, BLOCK * (block + 1)):
        short_schedule(seed, workers=2 + seed % 2)


@pytest.mark.parametrize("block", range(BLOCKS))
def test_a_hundred_thousand_short_schedules(block: int) -> None:
    run_block(block)


def main(seconds: Annotated[float, typer.Option(help="Begin no block after this many seconds.")] = 1e9) -> None:
    """Run the blocks that are not noted, and note them. A failure ends the command with the error of its seed."""
    logging.disable(logging.WARNING)  # the workers tell each fault
    began = time.monotonic()
    noted = [json.loads(line) for line in NOTES.read_text().splitlines()] if NOTES.exists() else []
    commit = subprocess.run(["git", "describe", "--always", "--dirty"], capture_output=True, text=True, check=True)
    for block in sorted(set(range(BLOCKS)) - {note["block"] for note in noted}):
        if time.monotonic() - began > seconds:
            break
        before = time.process_time()
        run_block(block)
        used = round(time.process_time() - before, 1)
        note = {"block": block, "seeds": BLOCK, "commit": commit.stdout.strip(), "cpu_seconds": used}
        noted.append(note)
        with NOTES.open("a") as file:
            file.write(json.dumps(note) + "\n")
    print(f"{BLOCK * len(noted):,} of {BLOCK * BLOCKS:,} schedules, 0 failed")


if __name__ == "__main__":
    typer.run(main)
