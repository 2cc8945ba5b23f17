"""Nobody is seen by more than the ledger has charged: 2,500 runs over all pairs of features (see `tests.support.who`).

`python -m tests.campaigns.test_who --seconds 500` runs blocks of 50 cases, notes each in `benchmarks/who.jsonl`, and
goes on where it ended. It skips the blocks that were noted, of any commit: remove the file to begin anew.
"""

import itertools
import os
from pathlib import Path
from typing import Annotated, Any

import pytest
import typer

from tests.support.blocks import run_blocks
from tests.support.who import SLACK, case, excess, run

pytestmark = pytest.mark.campaign

BLOCK, BLOCKS, FIRST = 50, 50, 1000
NOTES = Path(__file__).parents[2] / "benchmarks/who.jsonl"


def run_block(block: int) -> dict[str, Any]:
    """Run a block; return how many runs and releases it had, and the numbers of bad cases."""
    releases, bad = 0, []
    for seed in range(FIRST + BLOCK * block, FIRST + BLOCK * (block + 1)):
        given = case(seed)
        outcome = run(given)
        releases += outcome.releases
        bad += [seed] if excess(given, outcome) > SLACK else []
    return {"runs": BLOCK, "releases": releases, "bad": bad}


@pytest.mark.parametrize("block", range(BLOCKS))
def test_nobody_is_seen_by_more_in_2500_runs(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STREAMDP_TEST_SEEDS", "1")
    found = run_block(block)
    assert found["releases"] > BLOCK
    assert found["bad"] == []


def main(
    seconds: Annotated[float, typer.Option(help="Begin no block after this many seconds.")] = 1e9,
    part: Annotated[int, typer.Option(help="Run the blocks that are this one modulo `of`.")] = 0,
    of: Annotated[int, typer.Option(help="How many processes share the blocks.")] = 1,
) -> None:
    """Run the blocks that are not noted, note them, and print which pairs of features none had."""
    os.environ["STREAMDP_TEST_SEEDS"] = "1"
    noted = run_blocks(NOTES, range(part, BLOCKS, of), seconds, run_block)
    cases = [case(FIRST + BLOCK * note["block"] + i) for note in noted for i in range(BLOCK)]
    values = sorted({pair for given in cases for pair in given.features().items()})
    met = {pair for given in cases for pair in given.pairs()}
    missing = [pair for pair in itertools.combinations(values, 2) if pair[0][0] != pair[1][0] and pair not in met]
    runs, releases = (sum(note[name] for note in noted) for name in ("runs", "releases"))
    bad = sum(len(note["bad"]) for note in noted)
    print(f"{runs:,} runs, {releases:,} releases, {bad} bad; {len(met)} pairs of features")
    print("no run had: " + "; ".join(" and ".join(" ".join(one) for one in pair) for pair in missing))


if __name__ == "__main__":
    typer.run(main)
