"""What `make soak` measures and judges sees a leak of memory, threads and files."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from benchmarks.soak import LIMITS, Sample, sample, slopes

GROWS = """
import os, threading
print(flush=True)
input()
opened = [os.open(os.devnull, os.O_RDONLY) for _ in range(7)]
for _ in range(5):
    threading.Thread(target=threading.Event().wait, daemon=True).start()
held = b"x" * (64 << 20)
print(flush=True)
input()
"""


def test_a_sample_shows_memory_threads_and_files() -> None:
    """Of another process, whose threads and files are those of this test only."""
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", GROWS], **pipes) as process:
        process.stdout.readline()
        before = sample(process.pid)
        process.stdin.write(b"\n")
        process.stdin.flush()
        process.stdout.readline()
        after = sample(process.pid)
        process.communicate(b"\n")
    assert after.threads - before.threads == 5
    assert after.files - before.files == 7
    assert after.memory - before.memory > 32


@pytest.mark.parametrize("leaks", Sample._fields)
def test_a_leak_is_above_its_limit_and_noise_is_not(leaks: str) -> None:
    """Leaks of 8 bytes a record at 100,000 records a second, of a thread and of a file in ten minutes."""
    rng = np.random.default_rng(0)
    times = np.arange(1800) / 60
    steady = {"memory": 350 + rng.normal(0, 5, 1800), "threads": np.full(1800, 16.0), "files": np.full(1800, 12.0)}
    steady["memory"] += 100 * np.minimum(times / 8, 1)  # the warm-up
    steady["files"][::97] += 5  # single peaks
    grown = {"memory": 8 * 100_000 * 60 / 2**20 * times, "threads": np.floor(times / 10), "files": np.floor(times / 10)}

    def above(samples: dict[str, np.ndarray]) -> list[str]:
        found = slopes(times, np.stack([samples[name] for name in Sample._fields], axis=1))
        return [name for name, limit in LIMITS.items() if found[name] > limit]

    assert above(steady) == []
    assert above(steady | {leaks: steady[leaks] + grown[leaks]}) == [leaks]
