"""A job that reads a topic of flights, its data, and what its store has counted."""

from pathlib import Path

import numpy as np

from streamdp.store.snapshot import Counts
from streamdp.store.store import Store

SECRET = "4711.25"
"""A value of a record. Only a payload that the user keeps may show it."""
PEOPLE = 97
TOTAL = 2040
"""Messages that `rows(2000)` makes."""
DEAD = 40
"""Those of them that cannot be decoded."""

JOB = """job: JOBNAME
source:
  type: kafka
  topic: TOPIC
  dead_letter_topic: DEADTOPIC
  publish_topic: MODELS
  options:
    session_timeout_ms: 10000
    heartbeat_interval_ms: 500
schema:
  features:
    delay: [-30, 60]
    origin: [EWR, JFK]
  target: {column: late, classes: ["False", "True"]}
  subject: tail
  budget: eps
model:
  estimator: LDPASGDClassifier
  budget: eps=1
cap: eps=3
commit: {seconds: 0.3}
store: STORE
publish: model.json
holdout: data.csv
"""


def rows(n: int, people: int = PEOPLE) -> str:
    """A CSV file of n good rows, with a bad row after every 50th of them."""
    rng = np.random.default_rng(0)
    lines = ["delay,origin,late,tail,eps"]
    for i in range(n):
        delay = rng.uniform(-30, 60)
        late = delay + rng.normal(0, 10) > 15
        lines.append(f"{delay:.2f},{('EWR', 'JFK')[i % 2]},{late},t{i % people},{('', '0.5')[i % 2]}")
        if i % 50 == 7:
            lines.append(f"{SECRET},XXX,False,t1,1")
    return "\n".join(lines) + "\n"


def counts(store: str | Path, job: str | None = None) -> Counts:
    """What the shards of a job have counted, in all."""
    found = [snapshot.counts for snapshot in Store.snapshots(store, job)]
    return Counts(
        *(sum(getattr(c, name) for c in found) for name in ("learned", "refused", "dead_letters", "left_out"))
    )
