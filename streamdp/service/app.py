"""The application: jobs, tokens and routes put together."""

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from types import MappingProxyType

from fastapi import FastAPI
from starlette.types import Receive, Scope, Send

from streamdp import __version__
from streamdp.config.http import CallsConfig, TokenConfig
from streamdp.config.job import NOTHING, Accepted, JobConfig
from streamdp.config.shuffle import MixerSourceConfig
from streamdp.errors import ConfigError, StreamDPError
from streamdp.service import pages
from streamdp.service.access import Access
from streamdp.service.guard import Guard, Origins
from streamdp.service.jobs import Job
from streamdp.service.learning_job import LearningJob
from streamdp.service.metrics import ServiceMetrics
from streamdp.service.mixing import MixingJob
from streamdp.service.requests import no_such_path
from streamdp.service.routes import ROUTES

_log = logging.getLogger("streamdp.service.app")

_INTRODUCTION = """
Private models that learn from calls, and predict for them. Send records to `learn`: the answer comes after the commit
that counted them. Ask `predict` with the same features. `weights` or `statistics` have what was learned, and a job's
own page has its privacy statement. Devices that do not trust this service get a `randomizer`, and send `reports` of it
in place of records.

A name such as `delays` is that of a job; `/v1/models` lists all of them. If the service has tokens, send one as
`Authorization: Bearer TOKEN`. A problem is answered as `application/problem+json`, whose `detail` says what to do.
"""


class _Application(FastAPI):
    """An application whose `middleware_stack` is ours alone.

    FastAPI's own telemetry may export paths, queries and headers of callers, and its handlers of errors would do what
    `Route` and `Guard` do.
    """

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        assert self.middleware_stack is not None, "create_app sets it"
        scope["app"] = self
        await self.middleware_stack(scope, receive, send)


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Start all jobs, and stop them. The service starts if one of them does; the others go on trying."""
    loop, state = asyncio.get_running_loop(), app.state
    jobs: list[Job] = list(state.jobs.values())

    def end() -> None:
        state.stopping.set()
        for job in jobs:
            job.end()

    state.stop = lambda: loop.call_soon_threadsafe(end)
    try:
        found = await asyncio.gather(*(job.start() for job in jobs), return_exceptions=True)
        if all(isinstance(error, Exception) for error in found):
            state.failure = next(iter(found), None)  # the server raises it; uvicorn would log it with a traceback
        if state.failure is not None:
            state.stopping.set()
        yield
    finally:
        state.stop = lambda: None
        state.stopping.set()
        for error in await asyncio.gather(*(job.stop() for job in jobs), return_exceptions=True):
            state.failure = state.failure or error


def create_app(
    configs: Sequence[JobConfig],
    tokens: Sequence[TokenConfig] = (),
    *,
    accepted: Accepted = NOTHING,
    unusable: Mapping[str, StreamDPError] = MappingProxyType({}),
) -> FastAPI:
    """Build the application; its lifespan opens the stores and starts the learners.

    Its `state` has `jobs` (`Job` by name), `unusable` (why other jobs are not served, by name), `access`, `metrics`,
    `stopping` (an event, set when the service stops), `stop` (sets it, from any thread) and `failure` (the error that
    kept it from starting, or from committing at its end).

    A job that cannot be served says why, and the others are served. If no job can, the first error is raised, here or
    as `failure`.

    Raises `ConfigError` for two jobs of one name or a name with /.
    """
    jobs: dict[str, Job] = {}
    wrong = dict(unusable)
    for config in configs:
        if config.job in jobs:
            raise ConfigError(f"job {config.job!r} is given twice")
        if "/" in config.job:
            raise ConfigError(f"job {config.job!r}: expected a name without /, because it is a part of paths")
        try:
            if isinstance(config.source, MixerSourceConfig):
                jobs[config.job] = MixingJob(config)
            else:
                http = isinstance(config.source, CallsConfig)
                jobs[config.job] = LearningJob(config, accepted) if http else Job(config)
        except StreamDPError as error:  # of a public holdout file
            wrong[config.job] = error
    if wrong and not jobs:
        raise next(iter(wrong.values()))
    for name, why in wrong.items():
        _log.error("job %r is not served: %s", name, why)

    app = _Application(
        title="streamdp",
        version=__version__,
        description=_INTRODUCTION,
        lifespan=_lifespan,
        openapi_url=None,
        routes=[*ROUTES, *pages.router.routes],
    )
    app.router.default = no_such_path
    state = app.state
    state.jobs = jobs
    state.unusable = {name: str(why) for name, why in wrong.items()}
    state.access = Access(tokens, {config.job: config.service.tokens for config in configs})
    state.metrics = ServiceMetrics(jobs, wrong)
    state.stopping, state.stop, state.failure = asyncio.Event(), lambda: None, None
    origins = Origins(app.router, {config.job: config.service.origins for config in configs})
    app.middleware_stack = Guard(origins, state.metrics, state.stopping, state.access.open)
    return app
