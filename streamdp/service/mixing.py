"""A job whose reports are shuffled here, and learned by another service. See `protocol.report_mixer`."""

import asyncio
import logging

from streamdp.config.job import JobConfig
from streamdp.config.shuffle import MixerSourceConfig
from streamdp.errors import ConfigError, SchemaError, SourceError, SourceUnavailableError, reason_of
from streamdp.protocol.report_mixer import ReportMixer
from streamdp.protocol.reports import Issued, agreement_of
from streamdp.service.jobs import ANSWER_S, Job
from streamdp.service.problems import busy

RETRY_S = 1.0
"""The time after which a learner that did not answer is called again, in seconds."""
REFUSED_S = 30.0
"""The time after which a learner that refused a call is called again: somebody has to change something first."""
_STOP_S = 5.0
_log = logging.getLogger("streamdp.service.mixing")


class MixingJob(Job):
    """A job whose source is a mixer. It keeps no store: see `ReportMixer`."""

    def __init__(self, config: JobConfig) -> None:
        super().__init__(config)
        assert isinstance(config.source, MixerSourceConfig)
        assert config.shuffled is not None, "the configuration needs it"
        self.mixer = ReportMixer(agreement_of(config.job, config), config.shuffled.people)
        self._link = config.source.build(config.job, config.shuffled.people)
        self._opening = asyncio.Lock()
        self._forwarding: asyncio.Task[None] | None = None

    @property
    def waiting(self) -> int:
        return self.mixer.waiting

    async def start(self) -> None:
        """See `Job.start`. The learner is asked when the first device comes."""

    async def stop(self) -> None:
        """See `Job.stop`. A closed batch is forwarded, for some seconds; an open one is forgotten."""
        self._calls.shutdown(wait=False)
        if self._forwarding is not None:
            await asyncio.wait([self._forwarding], timeout=_STOP_S)
            self._forwarding.cancel()
        if self.mixer.next_call() is not None:
            _log.warning("job %r: reports of a closed batch are lost: the learner has not taken them", self.name)
        if self.mixer.waiting:
            _log.warning("job %r: %d reports of an open batch are lost", self.name, self.mixer.waiting)
        await asyncio.to_thread(self._link.close)

    async def document(self) -> Issued:
        if self._forwarding is not None:
            await asyncio.wait([self._forwarding], timeout=ANSWER_S)
        async with self._opening:
            if self.mixer.next_call() is not None:
                raise busy(self.trouble or "the shuffler forwards a batch")
            if not self.mixer.is_open:
                try:
                    self.mixer.open(await asyncio.to_thread(self._link.document))
                except (SourceError, SchemaError, ConfigError) as error:
                    self.trouble = reason_of(error)
                    raise busy(self.trouble) from None
                self.trouble = None
        return self.mixer.document()

    def after_reports(self, size: int, dead: dict[int, str]) -> dict[str, object]:
        """Forward a batch that was closed, and return what a device is told of `size` reports, some of them `dead`."""
        self.note_reasons(dead.values())
        if self.mixer.next_call() is not None and (self._forwarding is None or self._forwarding.done()):
            self._forwarding = asyncio.create_task(self._forward())
        told = [{"index": i, "reason": reason} for i, reason in dead.items()]
        return {"version": 0, "learned": size - len(dead), "refused": 0, "left_out": 0, "dead": told}

    async def _forward(self) -> None:
        while (call := self.mixer.next_call()) is not None:
            try:
                unusable = await asyncio.to_thread(self._link.send, *call)
            except SourceError as error:
                self.trouble = reason_of(error)
                await asyncio.sleep(RETRY_S if isinstance(error, SourceUnavailableError) else REFUSED_S)
                continue
            self.trouble = None
            if unusable:
                _log.warning("job %r: the learner could not use %d reports of a batch", self.name, unusable)
            self.mixer.sent()
