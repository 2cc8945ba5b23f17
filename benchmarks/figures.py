"""All studies of the papers, at full size. Run with `make figures`, or `python -m benchmarks.figures`.

Two parts run at a time, the longest first. A part that is done is not run again: its mark is a file in build/figures,
beside the log of each part. Delete the folder to begin anew. Minutes of processor are estimates from measured runs.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "build" / "figures"
AT_ONCE = 2


@dataclass(frozen=True)
class Part:
    """A command of Python, and how many minutes of processor it takes."""

    name: str
    arguments: tuple[str, ...]
    minutes: float


def _module(name: str, minutes: float, *more: str) -> Part:
    return Part(" ".join((name, *more)), ("-m", f"benchmarks.{name}", *more), minutes)


def _notebook(name: str, minutes: float, *records: str) -> Part:
    return Part(name, ("-m", "benchmarks.notebooks", name, *records), minutes)


PAPER = ("--size", "paper", "--only")
PARTS = (
    _module("figures_ldp", 71, *PAPER, "5", "6", "3"),
    _module("figures_ldp", 27, *PAPER, "A1"),
    _module("figures_ldp", 30, *PAPER, "A2"),
    _module("figures_ldp", 20, *PAPER, "4"),
    _module("figures_ldp", 12, *PAPER, "2"),
    _module("figures_ldp", 5, *PAPER, "1"),
    _module("figures_insurance", 37, "--size", "paper"),
    _module("theory", 26, "--write"),
    _module("windowed", 19, "--write"),
    _module("user_level", 11, "--write"),
    _module("rates", 5, "--write"),
    _module("powers", 1, "--write"),
    _module("user_rates", 1, "--write"),
    _module("noisy_rates", 1, "--write"),
    _module("subquadratic", 5, "--write"),
    _module("shuffle_cost", 5, "--write"),
    _module("trust", 2, "--write"),
    _module("few_users", 1, "--write"),
    _module("outliers", 1, "--write"),
    _notebook("02_ldp_sgd_figures", 3, "300000"),
    _notebook("03_insurance", 2),
    _notebook("09_service_and_devices", 1),
    _notebook("06_subquadratic", 1),
    _notebook("07_kafka_checkpoint_resume", 1),
    _notebook("01_first_model", 1),
    _notebook("04_shuffle_and_pan", 1),
    _notebook("05_user_level", 1),
    _notebook("08_audit_a_claim", 1),
)


class Progress:
    """Says what begins and ends, how long it has taken, and how long the rest takes by the estimates."""

    def __init__(self, parts: Sequence[Part]) -> None:
        self._lock, self._started = threading.Lock(), time.monotonic()
        self._open, self._all = {part: part.minutes for part in parts}, len(parts)

    def say(self, what: str, part: Part, *, ended: bool = False) -> None:
        """Print a line."""
        with self._lock:
            if ended:
                del self._open[part]
            done, spent = self._all - len(self._open), (time.monotonic() - self._started) / 60
            left = sum(self._open.values()) / AT_ONCE
            print(f"[{done} of {self._all}, {spent:.0f} min, about {left:.0f} left] {part.name}: {what}", flush=True)


def run(parts: Sequence[Part], folder: Path) -> list[str]:
    """Run the parts that are not done; return the names of those that failed.

    Parameters
    ----------
    parts
        In any order.
    folder
        For marks and logs.
    """
    folder.mkdir(parents=True, exist_ok=True)
    progress, failed = Progress(parts), []

    def one(part: Part) -> None:
        mark = folder / f"{part.name}.done"
        if mark.exists():
            progress.say(f"was done before, in {mark.read_text(encoding='utf-8')}", part, ended=True)
            return
        progress.say("begins", part)
        started, log = time.monotonic(), folder / f"{part.name}.log"
        with log.open("wb") as file:
            code = subprocess.run([sys.executable, *part.arguments], cwd=ROOT, stdout=file, stderr=file).returncode
        if code:
            failed.append(part.name)
            progress.say(f"failed, see {log}", part, ended=True)
            return
        took = f"{(time.monotonic() - started) / 60:.1f} min"
        mark.write_text(took, encoding="utf-8")
        progress.say(f"done in {took}", part, ended=True)

    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(one, sorted(parts, key=lambda part: -part.minutes)))
    return failed


def main() -> None:
    """Run all parts."""
    if failed := run(PARTS, FOLDER):
        raise SystemExit(f"failed: {', '.join(failed)}. Run it again: what is done is not run again.")


if __name__ == "__main__":
    main()
