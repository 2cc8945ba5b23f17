"""Two jobs that read one topic of a real broker at the same time, in one PostgreSQL schema or one file.

In most cases the cap renews, by the times of the records. What is learned is counted from the input alone.
"""

import contextlib
import json
import random
import time
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from streamdp.cli.kafka_job import produce
from streamdp.ledger.subject_key import ENVIRONMENT
from streamdp.store.report import export_rows, ledger_status
from tests.support.commands import Command, Quick
from tests.support.kafka_job import counts

pytestmark = pytest.mark.slow
JOB = """job: {job}
source: {{type: kafka, topic: {topic}, options: {{session_timeout_ms: 2000, heartbeat_interval_ms: 400}}}}
schema:
  features: {{delay: [-30, 60]}}
  target: {{column: late, classes: ["False", "True"]}}
  subject: tail{time}
model: {{estimator: LDPASGDClassifier, budget: eps=1}}
cap: {cap}
commit: {{seconds: 0.2}}
store: {store}
"""
NAMES, TOTAL, IN_A_DAY, DAY = 211, 20, 4, 86_400
PLAIN = f"eps={TOTAL}"
RENEWING = f"eps={IN_A_DAY} per 1 day, late 9 days, total eps={TOTAL}"
DATED = {PLAIN: "", RENEWING: "\n  time: {column: at, unit: iso}"}
PROMISE = {
    PLAIN: f"the person's total over all jobs with a cap in its database would pass eps={TOTAL}",
    RENEWING: f"in its database in one period of 1 day would pass eps={IN_A_DAY}, or over all time eps={TOTAL}",
}


def most(cap: str, days: Counter[int]) -> int:
    """How many records of a person two jobs learn together, who has so many of a day for each."""
    return min(TOTAL, sum(min(IN_A_DAY, 2 * n) if cap == RENEWING else 2 * n for n in days.values()))


def day_of(i: int) -> int:
    """How many days ago record i was. A few are too old, and a few are to come."""
    return 30 if i % 70 == 3 else -2 if i % 70 == 5 else 1 + (i // 7) % 7


def written(days: int) -> str:
    """A time at noon, with the offset of one of several zones."""
    noon = datetime.fromtimestamp(time.time() // DAY * DAY + DAY / 2, UTC) - timedelta(days=days)
    return noon.astimezone(timezone(timedelta(hours=days % 5 - 2))).isoformat()


def counted(place: str, job: str) -> int:
    found = counts(place, job)
    return found.learned + found.refused + found.left_out + found.dead_letters


@pytest.mark.parametrize(
    ("place", "cap", "kills"),
    [
        ("postgresql", RENEWING, 0),
        pytest.param("sqlite", PLAIN, 0, marks=pytest.mark.campaign),
        pytest.param("postgresql", RENEWING, 50, marks=pytest.mark.campaign),
        pytest.param("sqlite", RENEWING, 50, marks=pytest.mark.campaign),
        pytest.param("sqlite", PLAIN, 50, marks=pytest.mark.campaign),
    ],
    indirect=["place"],
)
def test_two_jobs_on_one_topic_share_the_cap(
    tmp_path: Path,
    broker: Any,
    make_topic: Callable[..., str],
    place: str,
    quick: Quick,
    cap: str,
    kills: int,
) -> None:
    topic = make_topic(2)
    tails = [f"person{(i * i) % NAMES}" for i in range(1500)]
    days = [day_of(i) for i in range(1500)]
    rows = [
        f"{i % 90 - 30},{i % 3 == 0},{tail},{'' if i % 70 == 7 else written(day)}"
        for i, (tail, day) in enumerate(zip(tails, days, strict=True))
    ]
    there: dict[str, Counter[int]] = {tail: Counter() for tail in tails}
    dead: Counter[str] = Counter()
    for i, (tail, day) in enumerate(zip(tails, days, strict=True)):
        if cap == RENEWING and (i % 70 == 7 or day not in range(1, 8)):
            dead["missing" if i % 70 == 7 else "too_late" if day > 0 else "too_early"] += 1
        else:
            there[tail][day] += 1
    jobs = ("late", "slow")
    for job in jobs:
        text = JOB.format(job=job, topic=topic, store=place, cap=cap, time=DATED[cap])
        (tmp_path / f"{job}.yaml").write_text(text)
    rng, rounds, killed = random.Random(5), kills // 2 + 1, Counter[str]()
    with contextlib.ExitStack() as stack:
        for part in range(rounds):
            lines = ["delay,late,tail,at", *rows[part::rounds]]
            (tmp_path / "data.csv").write_text("\n".join(lines) + "\n")
            assert produce(str(tmp_path / "data.csv"), topic, broker.bootstrap, "tail") == len(lines) - 1
            workers = [
                stack.enter_context(
                    Command(tmp_path, broker.bootstrap, "run", f"{job}.yaml", **{ENVIRONMENT: "5a" * 32})
                )
                for job in jobs
            ]
            for worker in [] if part == rounds - 1 else rng.sample(workers, len(workers)):
                worker.until(lambda worker=worker: worker.of("assigned"))
                time.sleep(rng.uniform(0, 1))
                worker.process.kill()
                worker.end()
                killed["after a commit" if worker.of("commit") else "before its first commit"] += 1
        print(f"\n{killed.total()} kills: {dict(killed)}")
        for job, worker in zip(jobs, workers, strict=True):
            worker.until(lambda job=job, worker=worker: worker.of("commit") and counted(place, job) == len(rows))
            worker.process.terminate()
        assert [worker.end() for worker in workers] == [0, 0], [worker.errors for worker in workers]
    found = {job: counts(place, job) for job in jobs}
    assert all(count.dead_letters == dead.total() for count in found.values())
    assert all(counted(place, job) == len(rows) for job in jobs)
    learned = sum(count.learned for count in found.values())
    assert learned == sum(most(cap, of_days) for of_days in there.values())
    assert learned > 500
    status = ledger_status(place)
    assert {job.job: job.learned for job in status.jobs} == {job: count.learned for job, count in found.items()}
    _, *spends = export_rows(place)
    in_days, over_all = ([row[1] for row in spends if (row[-1] != "") == dated] for dated in (True, False))
    assert (sum(over_all), max(over_all), len(over_all)) == (learned, TOTAL, sum(n.total() > 0 for n in there.values()))
    assert (sum(in_days), max(in_days)) == (learned, IN_A_DAY) if cap == RENEWING else in_days == []
    assert [set(job.shards) for job in status.jobs] == [{f"{topic}/0", f"{topic}/1"}] * 2
    shown = quick("statement", place, "--job", "late")[1]
    assert PROMISE[cap] in shown
    out = quick.output("ledger", "status", place)
    assert f"{topic}/1: commit" in out
    for text in (out, json.dumps([w.events for w in workers]), *(e for w in workers for e in w.errors)):
        assert "person" not in text
