"""A campaign in blocks of seeds: each block is noted when it is done, and the next run goes on where this one ended."""

import json
import subprocess
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any


def run_blocks(
    notes: Path, blocks: Iterable[int], seconds: float, run: Callable[[int], dict[str, Any]]
) -> list[dict[str, Any]]:
    """Run those of the blocks that are not noted, and note what each found; begin none after this many seconds."""
    began = time.monotonic()
    noted = [json.loads(line) for line in notes.read_text().splitlines()] if notes.exists() else []
    described = subprocess.run(["git", "describe", "--always", "--dirty"], capture_output=True, text=True, check=True)
    for block in sorted(set(blocks) - {note["block"] for note in noted}):
        if time.monotonic() - began > seconds:
            break
        before = time.process_time()
        found = run(block)
        used = round(time.process_time() - before, 1)
        noted.append({"block": block, **found, "commit": described.stdout.strip(), "cpu_seconds": used})
        with notes.open("a") as file:
            file.write(json.dumps(noted[-1]) + "\n")
    return noted
