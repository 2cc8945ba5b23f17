"""SIGKILL at random instants of `streamdp run`: no record is lost or counted twice, no subject goes over its cap.

The stream is replayed in plain Python with nothing of the library: after each record, how many were learned, refused
and dead, and what each subject had spent. Every commit that ever was must show exactly the replay's numbers at its
position, and whatever was published or printed must have been committed.
"""

import json
import random
import signal
import time
from itertools import accumulate
from pathlib import Path

import pytest

from streamdp import PureDP
from streamdp.config.job import load_config
from streamdp.store.snapshot import Commit, Counts, Snapshot
from streamdp.store.store import HISTORY, Store
from tests.support.paths import with_root
from tests.support.waiting import wait_until
from tests.support.zygote import Forked

ROWS, FEW = 100_000, 10_000
CAP = 3.0
JOB = """
job: crash
source: {path: stream.csv, max_bad_share: 0.2, dead_letters: dead.jsonl}
schema:
  features: {x1: [-1, 1], x2: [a, b, c]}
  target: {column: y, bounds: [-2, 2]}
  subject: person
  budget: epsilon
model: {estimator: LDPASGDRegressor, budget: eps=1}
cap: eps=3
commit: {records: %d}
publish: model.json
"""


def make_stream(path: Path, rng: random.Random, size: int) -> list[tuple[str, float] | None]:
    """Write the stream; returns subject and epsilon of each row, None for a bad one."""
    rows: list[tuple[str, float] | None] = []
    with path.open("w") as file:
        file.write("x1,x2,y,person,epsilon\n")
        for _ in range(size):
            fields = [f"{rng.uniform(-1, 1):.3f}", rng.choice("abc"), f"{rng.gauss(0, 1):.3f}"]
            person, epsilon = f"p{rng.randrange(size // 5)}", rng.choice(["", "0.1", "0.7", "1.5"])
            fields += [person, epsilon]
            rows.append((person, float(epsilon or 1)))
            if rng.random() < 0.03:
                rows[-1] = None
                match rng.randrange(5):
                    case 0:
                        fields[0] = "n/a"
                    case 1:
                        fields[1] = "d"
                    case 2:
                        fields[2] = "nan"
                    case 3:
                        fields[4] = "-1"
                    case 4:
                        fields.pop()
            file.write(",".join(fields) + "\n")
    return rows


class Replay:
    """The job by plain Python: `counts[n]` after n rows, and the spends after any number of rows."""

    def __init__(self, rows: list[tuple[str, float] | None]) -> None:
        self._rows = rows
        self.admitted: list[bool] = []
        outcomes = []
        spent: dict[str, float] = {}
        for row in rows:
            fits = row is not None and spent.get(row[0], 0.0) + row[1] <= CAP * (1 + 1e-9)
            if fits and row is not None:
                spent[row[0]] = spent.get(row[0], 0.0) + row[1]
            self.admitted.append(fits)
            outcomes.append((1, 0, 0) if fits else (0, 0, 1) if row is None else (0, 1, 0))
        add = lambda a, b: (a[0] + b[0], a[1] + b[1], a[2] + b[2])  # noqa: E731
        self.counts = [Counts(*c) for c in accumulate(outcomes, add, initial=(0, 0, 0))]

    def spent(self, n: int) -> dict[str, float]:
        spent: dict[str, float] = {}
        for row, admitted in zip(self._rows[:n], self.admitted, strict=False):
            if row is not None:
                spent[row[0]] = spent.get(row[0], 0.0) + (row[1] if admitted else 0.0)
        return spent


class Campaign:
    """A job in a folder whose runs are killed."""

    def __init__(self, folder: Path, seed: int, size: int) -> None:
        self.folder, self.size = folder, size
        self.rng = random.Random(seed)
        self.replay = Replay(make_stream(folder / "stream.csv", self.rng, size))
        self.history: dict[int, Commit] = {}

    def start(self, records: int) -> Forked:
        (self.folder / "job.yaml").write_text(JOB % records)
        with (self.folder / "out.jsonl").open("wb") as out, (self.folder / "err").open("wb") as err:
            return Forked(["run", "job.yaml"], cwd=self.folder, env=with_root(), stdout=out, stderr=err)

    def kill_once(self, records: int, early: bool) -> bool:
        """Kill a run within its start if `early`, else after some commits; whether it had committed by then."""
        process, out = self.start(records), self.folder / "out.jsonl"
        if early:
            time.sleep(self.rng.uniform(0.01, 0.5))  # start-up, loading and opening included
        else:
            commits = self.rng.randrange(1, 60)
            wait_until(lambda: process.poll() is not None or out.read_bytes().count(b'"commit"') >= commits)
            time.sleep(self.rng.uniform(0, 0.02))
        # Code 0 here: the stream was over before the kill; use fewer records a commit.
        assert process.poll() is None, f"the run ended by itself, with code {process.returncode}"
        process.send_signal(signal.SIGKILL)
        process.wait()
        self.check()
        return out.stat().st_size > 0

    def finish(self) -> Snapshot:
        """Run to the end of the stream: every row is counted once, and each bad one has one dead letter."""
        assert self.start(10_000).wait(timeout=120) == 0
        self.check()
        snapshot = Store.snapshot(self.folder / "crash.db")
        counts = snapshot.counts
        assert counts == self.replay.counts[self.size]
        assert counts.learned + counts.refused + counts.dead_letters == self.size
        assert min(counts.learned, counts.refused, counts.dead_letters) > self.size / 100
        assert snapshot.position["row"] == self.size + 1
        letters = [json.loads(line)["position"] for line in (self.folder / "dead.jsonl").read_text().splitlines()]
        assert len(letters) == len(set(letters)) == counts.dead_letters
        return snapshot

    def check(self) -> None:
        """Everything on disk, at rest after a crash."""
        path = self.folder / "crash.db"
        if not path.exists():
            return
        commits = Store.history(path, HISTORY)
        new = [commit for commit in commits if commit.seq not in self.history]
        self.history |= {commit.seq: commit for commit in new}
        for commit in new:
            n = commit.position["row"] - 1
            assert commit.counts == self.replay.counts[n]
        for line in (self.folder / "out.jsonl").read_text().splitlines(keepends=True):
            if line.endswith("\n") and (shown := json.loads(line))["event"] == "commit":
                counts = Counts(shown["learned"], shown["refused"], shown["dead_letters"])
                assert counts == self.history[shown["commit"]].counts
        if (self.folder / "model.json").exists():
            shown = json.loads((self.folder / "model.json").read_text())
            commit = self.history[shown["commit"]]
            assert Counts(**shown["counts"]) == commit.counts
            assert shown["position"] == commit.position
        self.check_spends(200)

    def check_spends(self, most: int | None = None) -> int:
        """The ledger has exactly the spends of the records up to the committed position, none over the cap."""
        config = load_config(self.folder / "job.yaml")
        with Store(config.store_path, config.job, config.fingerprint(), cap=PureDP(CAP), config=config.text()) as store:
            snapshot = store.load()
            n = 0 if snapshot is None else snapshot.position["row"] - 1
            expected = self.replay.spent(n)
            people = list(expected)
            for person in self.rng.sample(people, min(most or len(people), len(people))):
                assert store.ledger.spent(person).epsilon == expected[person] <= CAP * (1 + 1e-9)
            assert store.ledger.n_subjects == sum(value > 0 for value in expected.values())
        return n


def kill_and_finish(folder: Path, kills: int, records: tuple[int, ...], seed: int, size: int) -> None:
    campaign = Campaign(folder, seed, size)
    landed = sum(campaign.kill_once(campaign.rng.choice(records), early=i % 4 == 1) for i in range(kills))
    before = len(campaign.history)
    snapshot = campaign.finish()
    assert campaign.check_spends() == size
    assert sorted(campaign.history) == list(range(1, snapshot.seq + 1))  # every commit that ever was has been checked
    print(f"\n{kills} kills, {landed} after a commit of their run, {before} commits before the last run")
    assert landed >= kills / 2


def test_two_kills(tmp_path: Path) -> None:
    kill_and_finish(tmp_path, 2, (3, 7), seed=1, size=FEW)


@pytest.mark.campaign
def test_two_hundred_kills(tmp_path: Path) -> None:
    kill_and_finish(tmp_path, 200, (1, 2, 4), seed=2, size=ROWS)
