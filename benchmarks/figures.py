"""All studies of the papers, and the benchmarks whose figures depend on no machine, at full size.

Run with `make figures`, or `python -m benchmarks.figures [STEP ...]`.

Two steps run at a time, the longest first. figures.jsonl beside this file has a line for each step that has ended: the
commit, how long it took, and a hash of what it needs (its arguments, its module or the code of its notebook, the
modules that these import, without docstrings, and all compiled loops). A step whose hash is still the same is not run
again, so a run may be stopped at any time and goes on where it ended. Logs are in build/figures. `--minutes` begins
only what ends in time by the records, `--again` runs what is up to date too, `--list` prints the records and runs
nothing.

Records name commits on main, so steps run only if the code is that of one. `--check`, which `make check` runs, fails if
a page is older than the code that it measures, unless older.yaml beside this file says why.
"""

from __future__ import annotations

import argparse
import ast
import fcntl
import hashlib
import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import cache, cached_property
from pathlib import Path

import grimp
import nbformat
import yaml

import streamdp
from benchmarks.shared.pages import table

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "build" / "figures"
FILE = Path(__file__).with_suffix(".jsonl")
LIST = Path(__file__).with_name("older.yaml")
FOLDERS = ("benchmarks", "studies")
PACKAGES = ("streamdp", "connectors", "servers", "notebooks", *FOLDERS)
AT_ONCE = 2


@cache
def _imports() -> grimp.ImportGraph:
    return grimp.build_graph(*PACKAGES, cache_dir=None, exclude_type_checking_imports=True)


@cache
def compiled() -> tuple[Path, ...]:
    return tuple(path for name in PACKAGES for path in (ROOT / name).rglob("*.p[yx][xd]"))


def _file(module: str) -> Path:
    path = ROOT / module.replace(".", "/")
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def _late(code: str) -> set[str]:
    """The modules that code gets on first use: of public names of the library, and those that texts name."""
    names = re.findall(r"^\s*from streamdp import (\([^)]*\)|.*)", code, flags=re.MULTILINE)
    public = set(re.findall(r"\w+", " ".join(names))) & set(streamdp.__all__)
    homes = {getattr(streamdp, name).__module__ for name in public}
    whole = {"streamdp"} if re.search(r"^\s*import streamdp$", code, flags=re.MULTILINE) else set()
    whole |= {"streamdp.estimators"} if "from streamdp.estimators import" in code else set()
    texts = set(re.findall(r"\"(streamdp\.[\w.]+)", code)) & _imports().modules
    return homes.union(texts, *(_imports().find_descendants(package) for package in whole))


def _needed(modules: set[str]) -> set[str]:
    """The modules with all that they import."""
    graph, found, new = _imports(), set[str](), modules
    while new:
        found |= new
        later = [graph.find_upstream_modules(name) for name in new]
        # The package itself has all public names; those that are used are found where they are imported.
        later += [_late(_file(name).read_text(encoding="utf-8")) for name in new - {"streamdp"}]
        new = set[str]().union(*later) - found
    return found


@cache
def _without_docstrings(text: bytes, suffix: str) -> bytes:
    """A file of Python without the lines of its docstrings, which change no number; another file as it is."""
    if suffix != ".py":
        return text
    lines = text.splitlines(keepends=True)
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            lines[node.lineno - 1 : node.end_lineno] = [b""] * len(lines[node.lineno - 1 : node.end_lineno])
    return b"".join(lines)


@dataclass(frozen=True)
class Step:
    """A command of Python. `module`: what it imports begins there; None for a notebook.

    `minutes`: how long it is taken to need as long as it has no record.
    """

    name: str
    arguments: tuple[str, ...]
    module: str | None = None
    minutes: float = 5

    @cached_property
    def inputs(self) -> str:
        """The hash of what the step needs."""
        digest = hashlib.sha256(" ".join(self.arguments).encode())
        if self.module:
            needed = {self.module}
        else:
            cells = nbformat.read(ROOT / "notebooks" / f"{self.name}.ipynb", as_version=4).cells
            code = "\n".join(cell.source for cell in cells if cell.cell_type == "code")
            digest.update(code.encode())
            needed = _late(code)
            for package, names in re.findall(
                r"^\s*(?:from|import) ([\w.]+)(?: import (.+))?", code, flags=re.MULTILINE
            ):
                named = {package, *(f"{package}.{name.strip()}" for name in names.split(","))}
                needed |= named & _imports().modules
        for path in sorted([*map(_file, _needed(needed)), *compiled()]):
            digest.update(
                path.relative_to(ROOT).as_posix().encode() + _without_docstrings(path.read_bytes(), path.suffix)
            )
        return digest.hexdigest()[:16]


def _module(module: str, *more: str, minutes: float = 5) -> Step:
    return Step(" ".join((module.rpartition(".")[2], *more)), ("-m", module, *more), module, minutes)


def _notebook(name: str) -> Step:
    return Step(name, ("-m", "benchmarks.notebooks", name, "--write"))


def _parts(module: str, *parts: str, minutes: float = 5) -> tuple[Step, ...]:
    """A step for each part of a page, or for several parts that share their runs, in one word each."""
    return tuple(_module(module, "--write", "--only", *names.split(), minutes=minutes) for names in parts)


LEARNING = ("flights", "real", "simulations", "price", "intervals", "probabilities", "many", "worst")
VALIDATION = ("ordinary", "held", "batches", "drift", "quiet", "costs", "intervals")
RUNS = "wide strong strong_net new across sparse ridge_columns lasso_new ridge_new"
STEPS = (
    *_parts("studies.figures_ldp", "1", "2", "3", "4", "4b bounds", "5", "6", "A1", "A2"),
    *_parts("studies.figures_insurance", "law 7", "7b", "8 9", "7c 8c 9c"),
    *_parts("studies.theory", "clt", "rates", "records check"),
    _module("studies.coverage", "--write"),
    *_parts("studies.rates", "slopes excess", "powers"),
    *_parts("studies.subquadratic", "equal growth columns convex", RUNS),
    *_parts("studies.user_claims", "smoothing", "concentrated unlike", "local law", "descent"),
    _module("studies.user_level", "--write"),
    _module("studies.user_rates", "--write"),
    _module("studies.noisy_rates", "--write"),
    _module("studies.shuffle_cost", "--write"),
    _module("studies.few_users", "--write"),
    _module("studies.printed", "--write"),
    *(_module(f"benchmarks.{name}", "--write") for name in ("trust", "shards", "statistics", "transforms")),
    *_parts("benchmarks.drift", "flip", "told", "losses", "river", "weekdays"),
    *_parts("benchmarks.users", "n", "m", "d", "unlike", "local"),
    *_parts("benchmarks.batches", "flights", "simulated"),
    *_parts("benchmarks.learning", *LEARNING, minutes=11),
    *_parts("benchmarks.groups", "diamonds", "flights", "simulated", minutes=10),
    *_parts("benchmarks.validation", *VALIDATION, minutes=9),
    *_parts("benchmarks.intervals", "short", "long", "million", minutes=10),
    *_parts("benchmarks.user_scaling", "flights", "price", "steps"),
    *_parts("benchmarks.raw_targets", "every", "few"),
    *_parts("benchmarks.least_records", "constant", "ratio"),
    *_parts("benchmarks.synthetic", "tables chosen", minutes=15),
    _module("benchmarks.counts", "--write", minutes=10),
    _module("benchmarks.ordinary", "--write", minutes=19),
    _module("benchmarks.unseen", "--write", minutes=10),
    _module("benchmarks.shuffled", "--write"),
    *(_notebook(path.stem) for path in sorted((ROOT / "notebooks").glob("*.ipynb"))),
)


@dataclass(frozen=True)
class Record:
    """A step that has ended. `commit` is on main; times are seconds."""

    step: str
    commit: str
    inputs: str
    seconds: int
    processor: int


def records(path: Path) -> dict[str, Record]:
    """The last record of each step."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return {record.step: record for record in (Record(**json.loads(line)) for line in lines)}


def note(record: Record, path: Path) -> None:
    """Replace the record of the step."""
    path.touch()
    with path.open("r+", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # runs of other steps may go on beside this one
        known = records(path) | {record.step: record}
        file.truncate()
        file.write("".join(json.dumps(asdict(known[name])) + "\n" for name in sorted(known)))


def _git(*words: str) -> str | None:
    """What git prints; None if it fails."""
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True)
    return None if done.returncode else done.stdout.strip()


def commit() -> str:
    """The commit on main whose code this is. Raises `SystemExit` if there is none."""
    changed = _git("status", "--porcelain", "--", *(f"{name}/*.p[yx]*" for name in PACKAGES))
    if changed != "" or _git("merge-base", "--is-ancestor", "HEAD", "main") is None:
        raise SystemExit("records name commits on main: commit the code and merge it into main, then run the studies")
    return str(_git("rev-parse", "--short=9", "HEAD"))


def older(
    steps: Sequence[Step], path: Path = FILE, folders: Sequence[Path] = tuple(ROOT / name for name in FOLDERS)
) -> set[str]:
    """The pages and notebooks that are not known to have the figures of today's code.

    That is every page that no step writes, and what a step writes if its inputs have changed since its record, or if
    the commit of the record is not among those of HEAD.
    """
    known, writes = records(path), {step: step.name.partition(" ")[0] for step in steps}
    found = {page.stem for folder in folders for page in folder.glob("*.md")} - set(writes.values())
    for step, page in writes.items():
        record = known.get(step.name)
        if (
            not record
            or record.inputs != step.inputs
            or _git("merge-base", "--is-ancestor", record.commit, "HEAD") is None
        ):
            found.add(page)
    return found


def differences(found: set[str], listed: Mapping[str, str]) -> list[str]:
    """A line for each page that is older and not listed, or listed and not older."""
    return [
        *(
            f"{page} is older than the code that it measures: run its steps, or say why in {LIST.name}"
            for page in sorted(found - set(listed))
        ),
        *(f"{page} is up to date: take it off {LIST.name}" for page in sorted(set(listed) - found)),
    ]


class Run:
    """One run of some steps, with a line for what begins and what ends."""

    def __init__(self, steps: Sequence[Step], path: Path, folder: Path, minutes: float) -> None:
        self._path, self._folder, self._seconds = path, folder, 60 * minutes
        self._commit = commit()
        self._lock, self._started, self._known = threading.Lock(), time.monotonic(), records(path)
        self._all, self._open = len(steps), {step: self._expected(step) for step in steps}
        self.failed: list[str] = []
        folder.mkdir(parents=True, exist_ok=True)

    def _expected(self, step: Step) -> float:
        return float(self._known[step.name].seconds) if step.name in self._known else 60 * step.minutes

    def _say(self, what: str, step: Step, *, ended: bool = False) -> None:
        with self._lock:
            if ended:
                del self._open[step]
            done, spent = self._all - len(self._open), (time.monotonic() - self._started) / 60
            left = sum(self._open.values()) / AT_ONCE / 60
            print(f"[{done} of {self._all}, {spent:.0f} min, about {left:.0f} left] {step.name}: {what}", flush=True)

    def one(self, step: Step) -> None:
        """Run a step and note it."""
        started, log = time.monotonic(), self._folder / f"{step.name}.log"
        if started - self._started + self._expected(step) > self._seconds:
            self._say("left for another run", step, ended=True)
            return
        self._say("begins", step)
        inputs = step.inputs
        with log.open("wb") as file:
            alone = os.environ | {"OMP_NUM_THREADS": "1"}
            process = subprocess.Popen([sys.executable, *step.arguments], cwd=ROOT, stdout=file, stderr=file, env=alone)
            _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            self.failed.append(step.name)
            self._say(f"failed, see {log}", step, ended=True)
            return
        seconds = time.monotonic() - started
        note(Record(step.name, self._commit, inputs, round(seconds), round(used.ru_utime + used.ru_stime)), self._path)
        self._say(f"done in {seconds / 60:.1f} min", step, ended=True)


def run(
    steps: Sequence[Step], path: Path = FILE, folder: Path = FOLDER, minutes: float = float("inf"), again: bool = False
) -> list[str]:
    """Run the steps that are not up to date; return the names of those that failed.

    Parameters
    ----------
    steps
        In any order.
    path
        The records.
    folder
        For logs.
    minutes
        No step begins that would end later, by the records.
    again
        Whether steps that are up to date are run, too.
    """
    known = records(path)
    due = [step for step in steps if again or step.name not in known or known[step.name].inputs != step.inputs]
    now = Run(due, path, folder, minutes)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(now.one, sorted(due, key=now._expected, reverse=True)))
    return now.failed


def summary(steps: Sequence[Step], path: Path = FILE) -> str:
    """A table of the records, and their sum."""
    known, rows = records(path), []
    for step in steps:
        if record := known.get(step.name):
            state = "up to date" if record.inputs == step.inputs else "its inputs have changed"
            rows.append([step.name, state, record.commit, f"{record.seconds:,}", f"{record.processor:,}"])
        else:
            rows.append([step.name, "never run", "", "", ""])
    found = [known[step.name] for step in steps if step.name in known]
    seconds, processor = sum(record.seconds for record in found), sum(record.processor for record in found)
    said = f"{len(found)} of {len(steps)} steps have a record: {seconds / 60:.0f} minutes one after the other, "
    said += f"{seconds / 60 / AT_ONCE:.0f} by {AT_ONCE} at a time, {processor / 60:.0f} minutes of processor."
    return table(["step", "state", "commit", "seconds", "of processor"], rows) + "\n\n" + said


def main(arguments: Sequence[str] | None = None) -> None:
    """Run what is not up to date, and print the records."""
    parser = argparse.ArgumentParser(description="Make all studies, and the benchmarks that depend on no machine.")
    parser.add_argument("steps", nargs="*", help="names, or how they begin; without any, all steps")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="how long this run may take")
    parser.add_argument("--again", action="store_true", help="run steps that are up to date, too")
    parser.add_argument("--check", action="store_true", help="fail if a page is older than its code and not listed")
    parser.add_argument("--list", action="store_true", help="print the records, and run nothing")
    given = parser.parse_args(arguments)
    if given.check:
        wrong = differences(older(STEPS), yaml.safe_load(LIST.read_text(encoding="utf-8")) or {})
        raise SystemExit("\n".join(wrong) or None)
    steps = [step for step in STEPS if not given.steps or step.name.startswith(tuple(given.steps))]
    if not steps:
        parser.error("no step has such a name; see --list")
    failed = [] if given.list else run(steps, minutes=given.minutes, again=given.again)
    print(summary(steps))
    if failed:
        raise SystemExit(f"failed: {', '.join(failed)}. Run it again: what is done is not run again.")


if __name__ == "__main__":
    main()
