"""The README's examples run as they stand, pasted into an empty folder."""

from pathlib import Path

import pytest

from tests.support.documents import Block, Shell, blocks
from tests.support.paths import ROOT

TEXT = (ROOT / "README.md").read_text()
BLOCKS = blocks(TEXT)
IDS = ["first lines", "command line", "Kafka", "River", "randomizer", "service"]
SAID = {
    "first lines": ["'smoker=yes': ", "'(error spread)': "],
    "command line": [
        '"learned": 50000',
        '"reason": "done"',
        "Who must be trusted: the operator",
        "smoker=yes",
        "(epsilon, delta) = (1, ",
        "prediction",
    ],
    "Kafka": ["origin=JFK"],
    "River": ["Accuracy: ", "epsilon = 4"],
    "randomizer": [],
    "service": ['"learned":1'],
}


def test_there_are_five_uses() -> None:
    assert [block.language for block in BLOCKS] == ["python", "sh", "sh", "python", "python", "sh"]
    assert len(TEXT.splitlines()) <= 120


@pytest.mark.parametrize(
    "use", [0, pytest.param(1, marks=pytest.mark.campaign), 2, 3, 4, 5], ids=IDS
)  # `make dist` runs the first one, the tutorial has the same commands
def test_a_use_runs_as_it_stands(use: int, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    block: Block = BLOCKS[use]
    environment = {}
    if "streamdp produce" in block.code:
        environment["STREAMDP_KAFKA"] = request.getfixturevalue("broker").bootstrap
    folder = tmp_path / "empty"
    folder.mkdir()
    with Shell(folder, environment) as shell:
        out, err = shell.run(block)
    assert "Warning" not in err
    for said in SAID[IDS[use]]:
        assert said in out + err
