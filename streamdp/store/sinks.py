"""Writes which commit each sink of a job has, and since when and why one fails: outside any commit.

`reading.sinks` reads it. It is public: a commit is published, and a reason has no value of a record. So is what a
public holdout says against the model, which comes with its snapshots.
"""

import os
import time
from contextlib import closing

from streamdp.database.opening import open_database
from streamdp.store.reading import read_job
from streamdp.store.tables import STORE_FORMAT

_NOTE = (
    "INSERT INTO sinks AS old VALUES (:job, :place, :name, :seq, :committed_at, :failing_since, :reason)"
    " ON CONFLICT (job, place) DO UPDATE SET name = excluded.name, reason = excluded.reason,"
    " seq = CASE WHEN excluded.committed_at > old.committed_at THEN excluded.seq ELSE old.seq END,"
    " committed_at = CASE WHEN excluded.committed_at > old.committed_at THEN excluded.committed_at"
    " ELSE old.committed_at END,"
    " failing_since = CASE WHEN excluded.reason = '' THEN 0.0 WHEN old.failing_since > 0 THEN old.failing_since"
    " ELSE excluded.failing_since END"
)
_FORGET = "DELETE FROM sinks WHERE job = :job AND (place >= :places OR place = :place AND name <> :name)"


def note_sink(
    url_or_path: str | os.PathLike[str],
    job: str,
    place: tuple[int, int],
    name: str,
    sent: tuple[int, float],
    reason: str,
) -> None:
    """Note of a sink that it has the commit `sent`, or the `reason` why it has not taken one. Raises `StoreError`.

    `url_or_path`, `job`: see `Store`. `place`: the index of the sink in the job, and the number of sinks there. `name`:
    what messages call the sink. `sent`: the number and the time of the commit; (0, 0) if it was not taken. `reason`: ""
    if it was taken. A sink fails since the first reason after a commit that it took.
    """
    database = open_database(url_or_path, job)
    with closing(database.open_for_writing(STORE_FORMAT)) as connection, database.errors(), connection.begin():
        key = {"job": job, "place": place[0], "name": name}
        connection.change(_FORGET, key | {"places": place[1]})
        since = time.time() if reason else 0.0
        values = {"seq": sent[0], "committed_at": sent[1], "failing_since": since, "reason": reason}
        connection.change(_NOTE, key | values)


def note_doubt(url_or_path: str | os.PathLike[str], job: str, doubt: str) -> None:
    """Note a `doubt` about the committed model of a `job`, or "" for none; the rest is as for `note_sink`.

    Nothing is written if it is noted already, by whichever worker.
    """
    database = open_database(url_or_path, job)
    with database.reading(STORE_FORMAT) as reading:
        if read_job(reading, job, database.name).doubt == doubt:
            return
    with closing(database.open_for_writing(STORE_FORMAT)) as connection, database.errors(), connection.begin():
        connection.change("UPDATE jobs SET doubt = :doubt WHERE job = :job", {"job": job, "doubt": doubt})
