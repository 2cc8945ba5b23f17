"""100,000 short schedules of a group of workers: faults and interleavings from a seed.

`python -m tests.campaigns.test_schedules --seconds 500` runs blocks of 1,000 seeds, notes each in
`benchmarks/schedules.jsonl`, and goes on where it ended. It skips the blocks that were noted, of any commit: remove
the file to begin anew.
"""

import logging
from pathlib import Path
from typing import Annotated

import pytest
import typer

from tests.support.blocks import run_blocks
from tests.support.schedules import short_schedule

pytestmark = pytest.mark.campaign

BLOCK, BLOCKS = 1_000, 100
NOTES = Path(__file__).parents[2] / "benchmarks/schedules.jsonl"


def run_block(block: int) -> dict[str, int]:
    for seed in range(BLOCK * block, BLOCK * (block + 1)):
        short_schedule(seed, workers=2 + seed % 2)
    return {"seeds": BLOCK}


@pytest.mark.parametrize("block", range(BLOCKS))
def test_a_hundred_thousand_short_schedules(block: int) -> None:
    run_block(block)


def main(seconds: Annotated[float, typer.Option(help="Begin no block after this many seconds.")] = 1e9) -> None:
    """Run the blocks that are not noted, and note them. A failure ends the command with the error of its seed."""
    logging.disable(logging.WARNING)  # the workers tell each fault
    noted = run_blocks(NOTES, range(BLOCKS), seconds, run_block)
    print(f"{BLOCK * len(noted):,} of {BLOCK * BLOCKS:,} schedules, 0 failed")


if __name__ == "__main__":
    typer.run(main)
