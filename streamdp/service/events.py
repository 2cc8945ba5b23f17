"""Server-sent events: one for each commit."""

import asyncio
from collections.abc import AsyncIterator

import orjson

from streamdp.service import documents
from streamdp.service.jobs import Job
from streamdp.store.snapshot import Snapshot

KEEP_ALIVE_S = 15.0
"""The time after which an empty comment shows that the connection still holds."""
_MOST_WAITING = 256


async def event_stream(job: Job, stopping: asyncio.Event) -> AsyncIterator[bytes]:
    """The commits of a job as events, until `stopping` is set."""
    waiting: asyncio.Queue[bytes] = asyncio.Queue(_MOST_WAITING)

    def committed(snapshot: Snapshot, measures: dict[str, object] | None) -> None:
        if waiting.full():
            waiting.get_nowait()
        waiting.put_nowait(_event(job))

    job.listeners.add(committed)
    stopped, following = asyncio.create_task(stopping.wait()), asyncio.create_task(waiting.get())
    try:
        yield _event(job)
        while not stopping.is_set():
            await asyncio.wait({following, stopped}, timeout=KEEP_ALIVE_S, return_when=asyncio.FIRST_COMPLETED)
            if following.done():
                yield following.result()
                following = asyncio.create_task(waiting.get())
            else:
                yield b":\n\n"
    finally:  # also when the reader is cut off: a task that is left would be destroyed while it is pending
        job.listeners.discard(committed)
        stopped.cancel()
        following.cancel()
        await asyncio.wait({stopped, following})


def _event(job: Job) -> bytes:
    """The last commit as an event. Several readers share it."""
    commit, event = job.event
    if commit != job.snapshot.commit:
        document: dict[str, object] = {"version": job.snapshot.seq, **documents.shown(job.snapshot.counts)}
        if job.measures is not None:
            document["measure"] = job.measures
        document |= documents.shown_of_stream(job)
        if job.model.definition.has_model:
            document["weights"] = documents.weight_rows(job.model)
        if job.model.definition.statistics is not None:
            document["statistics"] = job.model.estimator.estimated.rows()
        event = b"id: %d\nevent: commit\ndata: %s\n\n" % (job.snapshot.seq, orjson.dumps(document))
        job.event = job.snapshot.commit, event
    return event
