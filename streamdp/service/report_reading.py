"""The second way in for reports: a Kafka topic, which the service that learns the job reads beside its calls.

A report is checked and learned as one that came by a call. The commit that learns it also commits the position after
it, so that it counts once, whatever fails. Its id is remembered as that of a call is: a device may send it both ways.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

import orjson

from streamdp.data.records import Position
from streamdp.errors import QueueFullError, SourceUnavailableError, reason_of

if TYPE_CHECKING:
    from connectors.http import Call
    from connectors.reporttopic import Polled, ReportTopic

MOST_MESSAGES = 1000
"""The most reports of a poll."""
POLL_S = 0.2
"""How long a poll waits for reports, in seconds."""
RETRY_S = 1.0
"""The time after which a full queue, or a topic that cannot be read, is tried again, in seconds."""

_log = logging.getLogger("streamdp.service.learning")


async def read_reports(
    build: Callable[[Position], ReportTopic],
    position: Position,
    call_of: Callable[[list[object], Position], Call],
    submit: Callable[[Call], object],
    tell: Callable[[str | None], None],
) -> None:
    """Read a topic from a position until `submit`, as `HTTPSource.submit`, refuses for good.

    `build` opens the topic at a position. `call_of` makes a call of reports, as JSON values, and of the position after
    them, in the thread of the event loop. `tell` gets the reason why the topic cannot be read, None if it can.
    """
    while True:
        topic: ReportTopic | None = None
        try:
            topic = await asyncio.to_thread(build, position)
            tell(None)
            while True:
                polled: Polled = await asyncio.to_thread(topic.poll, MOST_MESSAGES, POLL_S)
                if polled.values and not await _submitted(call_of(_values(polled), polled.position), submit):
                    return
                position = polled.position
        except Exception as error:  # noqa: BLE001 - it is reported, and the next attempt begins at the same position
            _log.error("the topic of reports: %s", why := reason_of(error))
            tell(f"the topic of reports cannot be read: {why}")
        finally:
            if topic is not None:
                await asyncio.shield(asyncio.to_thread(topic.close))
        await asyncio.sleep(RETRY_S)


async def _submitted(call: Call, submit: Callable[[Call], object]) -> bool:
    """Whether the source took the call; it waits while the queue is full."""
    while True:
        try:
            submit(call)
        except QueueFullError:
            await asyncio.sleep(RETRY_S)
        except SourceUnavailableError:  # the learner has stopped; the next one reads from its last commit
            return False
        else:
            return True


def _values(polled: Polled) -> list[object]:
    """The reports as JSON values; None, which is malformed, for what is no JSON."""
    found: list[object] = []
    for value in polled.values:
        item = None
        with contextlib.suppress(orjson.JSONDecodeError):
            item = orjson.loads(value or b"")
        found.append(item)
    return found
