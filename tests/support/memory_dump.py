"""What remains of raw records in the memory of a process: a child learns, and its parent reads all of its memory.

`python -m tests.support.memory_dump CASE` is the child: it learns `SECRETS` records with unique bit patterns, and waits
at each stage until its parent has read its memory. Linux only: /proc/<pid>/mem of a child process. `measure` is the
parent. The control makes the same records in the same way and learns none: what remains then comes from the caller.
"""

import gc
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from streamdp import GaussianDP, PanPrivateRegressor
from streamdp.privacy.samplers import normals
from tests.support.paths import ROOT
from tests.support.states import noise_of, open_sum, words_of

SECRETS, MORE, FEATURES, SEED = 200, 1000, 8, 20
NAMES = [f"x{j}" for j in range(FEATURES)]
STAGES = ("within the batch", "batch ended", "1,000 records later", "after gc.collect()")
KEPT = "arrays that are kept"
CASES = ("control: dicts", "learn_one", "control: arrays", "learn_arrays", "csv")
_LOW = 0.71093750  # all secrets are within 2^-13 above it: the first 24 bits of the doubles are the same
_SIGN = int(np.float64(_LOW).view(np.uint64)) >> 40


def secret(place: int) -> float:
    """The value at a place (record times columns, plus column), computed afresh, so that no table is in memory."""
    return _LOW + (place * 0.6180339887498949 % 1.0) * 2.0**-13


def ordinary(place: int) -> float:
    return (place * 0.7548776662466927 % 1.0) - 1.0


def all_secrets() -> np.ndarray:
    return np.array([secret(place) for place in range(1, SECRETS * (FEATURES + 1) + 1)])


# --- the child


def values(value: Callable[[int], float], record: int) -> Iterator[float]:
    """The features of a record and its target."""
    return (value(record * (FEATURES + 1) + column + 1) for column in range(FEATURES + 1))


def estimator() -> PanPrivateRegressor:
    return PanPrivateRegressor(budget=GaussianDP(1), features=NAMES, seed=SEED, batch_size=SECRETS + 1)


def wait(stage: str) -> None:
    print(stage, flush=True)
    sys.stdin.readline()


def learn_dicts(model: PanPrivateRegressor | None, value: Callable[[int], float], count: int) -> None:
    for record in range(count):
        *x, y = values(value, record)
        features = dict(zip(NAMES, x, strict=True))
        if model is not None:
            model.learn_one(features, y)


_kept: list[Any] = []


def learn_arrays(model: PanPrivateRegressor | None, value: Callable[[int], float], count: int) -> None:
    rows = np.empty((count, FEATURES + 1))
    for record in range(count):
        for column, number in enumerate(values(value, record)):
            rows[record, column] = number
    X, y = rows[:, :FEATURES].copy(), rows[:, FEATURES].copy()
    rows[:] = 0
    if sys.argv[1] == KEPT:
        _kept.append((X, y))
    if model is not None:
        model.learn_arrays(X, y)


def by_calls(learn: Callable[..., None], learns: bool) -> None:
    model = estimator()
    learn(model, ordinary, SECRETS + 1)  # everything is compiled and allocated
    target = model if learns else None
    learn(target, secret, SECRETS)
    wait(STAGES[0])
    learn(target, ordinary, 1)
    wait(STAGES[1])
    learn(target, ordinary, MORE)
    wait(STAGES[2])
    gc.collect()
    wait(STAGES[3])


def by_runner() -> None:
    """`streamdp run` on a CSV file: source, runner and store. It polls whole batches, so none is open in between."""
    from connectors.files import CSVSource
    from streamdp.data.schema import Schema
    from streamdp.runtime.runner import Progress, Runner
    from streamdp.store.store import Store

    folder = Path(sys.argv[2])
    due = [(2 * (SECRETS + 1), STAGES[1]), (2 * (SECRETS + 1) + MORE, STAGES[2])]

    def pause(progress: Progress) -> None:
        if due and progress.counts.learned >= due[0][0] and progress.committed == progress.counts:
            wait(due.pop(0)[1])

    def run() -> None:
        with Store(folder / "job.db", "job", "f") as store:
            source = CSVSource(folder / "records.csv", Schema(dict.fromkeys(NAMES, (-1.0, 1.0)), "y"))
            Runner(source, estimator(), store, commit_records=SECRETS + 1, on_progress=pause).run()
            source.close()

    run()
    gc.collect()
    wait(STAGES[3])


def main() -> None:
    case = sys.argv[1]
    if case == "csv":
        by_runner()
    else:
        by_calls(learn_dicts if case in ("learn_one", "control: dicts") else learn_arrays, "control" not in case)


# --- the parent


class Found(NamedTuple):
    """What was found when the memory was read once."""

    values: int
    """How many of the secret values remain as doubles."""
    copies: int
    texts: int
    """How many of them remain as decimal text."""
    noise: int
    """Sequences of three coordinates of the noise that opened the batch, or of the words that it was made from."""


def mappings(pid: int) -> Iterator[bytes]:
    """The writable memory of a process, one mapping after another. Raises `OSError` if it may not be read."""
    with open(f"/proc/{pid}/maps") as maps, open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
        for line in maps:
            span, rights = line.split()[:2]
            if rights.startswith("rw"):
                low, high = (int(end, 16) for end in span.split("-"))
                for start in range(low, high, _PIECE):
                    memory.seek(start)
                    try:
                        yield memory.read(min(_PIECE, high - start))
                    except OSError:  # never touched, or memory of a device
                        break


_PIECE = 1 << 26


def opening_noise(draws: int) -> list[np.ndarray]:
    """The `draws`-th noise of the child's estimator, and its words."""
    model = estimator()
    noise = np.zeros(len(open_sum(model)), dtype=np.int64)
    for _ in range(draws):
        words = words_of(model).draw(2 * len(noise) + 64)
    assert normals(words, noise_of(model).scale, noise)
    return [noise, words[: len(noise)]]


def traces(words: np.ndarray, part: np.ndarray) -> int:
    """How often three consecutive numbers of this part occur in sequence."""
    found = 0
    for k in range(len(part) - 2):
        at = np.flatnonzero(words[:-2] == part[k])
        found += int(np.count_nonzero((words[at + 1] == part[k + 1]) & (words[at + 2] == part[k + 2])))
    return found


def look(pid: int, secrets: np.ndarray, noise: list[np.ndarray]) -> Found:
    scaled = np.clip((secrets + 1.0) / 2.0 * 2.0 - 1.0, -1.0, 1.0)
    number_of = {int(w): i for values in (secrets, scaled) for i, w in enumerate(values.view(np.uint64))}
    text_of = {repr(float(v)).encode(): i for i, v in enumerate(secrets)}
    seen: set[int] = set()
    texts: set[int] = set()
    copies = times = 0
    for data in mappings(pid):
        words = np.frombuffer(data[: len(data) // 8 * 8], np.uint64)
        for word in words[(words >> np.uint64(40)) == _SIGN].tolist():
            if word in number_of:
                seen.add(number_of[word])
                copies += 1
        texts.update(text_of[t] for t in re.findall(rb"0\.71[01]\d{10,16}", data) if t in text_of)
        filled = words[words != 0]  # most of memory is zeros, and no noise is
        times += sum(traces(filled, part.view(np.uint64)) for part in noise)
    return Found(len(seen), copies, len(texts), times)


def measure(case: str) -> dict[str, Found]:
    """What is found at each stage of a case. Raises `OSError` if the memory of a child may not be read."""
    root = ROOT
    secrets, noise = all_secrets(), opening_noise(3)
    with tempfile.TemporaryDirectory() as folder:
        if case == "csv":
            write_file(Path(folder) / "records.csv")
        child = subprocess.Popen(
            [sys.executable, "-m", "tests.support.memory_dump", case, folder],
            cwd=root,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        with child:
            assert child.stdout is not None
            found = {}
            try:
                for line in child.stdout:
                    found[line.strip()] = look(child.pid, secrets, noise)
                    child.stdin.write("\n")
                    child.stdin.flush()
            except BaseException:
                child.kill()
                raise
        if child.returncode:
            raise RuntimeError(f"the child ended with {child.returncode}")
    return found


def write_file(path: Path) -> None:
    def lines() -> Iterator[str]:
        yield ",".join([*NAMES, "y"])
        for value, count in ((ordinary, SECRETS + 1), (secret, SECRETS), (ordinary, 1 + 2 * MORE)):
            for record in range(count):
                yield ",".join(repr(v) for v in values(value, record))

    path.write_text("\n".join(lines()) + "\n")


if __name__ == "__main__":
    main()
