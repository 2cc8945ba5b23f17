"""The application: jobs, tokens and routes put together."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from fastapi import FastAPI
from starlette.types import Receive, Scope, Send

from streamdp import __version__
from streamdp.config.http import CallsConfig, TokenConfig
from streamdp.config.job import NOTHING, Accepted, JobConfig
from streamdp.errors import ConfigError
from streamdp.service import events, health, learning, models, pages, predicting, reports
from streamdp.service.access import Access
from streamdp.service.guard import Guard
from streamdp.service.jobs import FollowedJob, Job
from streamdp.service.learning_job import LearningJob
from streamdp.service.metrics import Metrics
from streamdp.service.origins import Origins
from streamdp.service.problems import add_handlers

ROUTERS = (
    predicting.router,
    learning.router,
    reports.router,
    events.router,
    models.router,
    health.router,
    pages.router,
)


class _Application(FastAPI):
    """An application without FastAPI's own telemetry, which may export paths, queries and headers of callers."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        assert self.middleware_stack is not None, "create_app sets it"
        scope["app"] = self
        await self.middleware_stack(scope, receive, send)


def create_app(
    configs: Sequence[JobConfig], tokens: Sequence[TokenConfig] = (), *, accepted: Accepted = NOTHING
) -> FastAPI:
    """Build the application; its lifespan opens the stores and starts the learners.

    Its `state` has `jobs` (`Job` by name), `access`, `metrics`, `stopping` (an event, set when the service stops),
    `stop` (sets it, from any thread) and `failure` (the error that kept it from starting).

    Raises `ConfigError` for two jobs of one name or a name with /, and the errors of a public holdout file.
    """
    jobs: dict[str, Job] = {}
    for config in configs:
        if config.job in jobs:
            raise ConfigError(f"job {config.job!r} is given twice")
        if "/" in config.job:
            raise ConfigError(f"job {config.job!r}: expected a name without /, because it is a part of paths")
        http = isinstance(config.source, CallsConfig)
        jobs[config.job] = LearningJob(config, accepted) if http else FollowedJob(config)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        loop, state = asyncio.get_running_loop(), app.state
        state.stop = lambda: loop.call_soon_threadsafe(state.stopping.set)
        started: list[Job] = []
        try:
            try:
                for job in jobs.values():
                    await job.start()
                    started.append(job)
            except Exception as error:  # noqa: BLE001 - the server raises it; uvicorn would log it with a traceback
                state.failure = error
                state.stopping.set()
            yield
        finally:
            state.stop = lambda: None
            state.stopping.set()
            for job in started:
                await job.stop()

    app = _Application(title="streamdp", version=__version__, lifespan=lifespan, docs_url=None, redoc_url=None)
    state = app.state
    state.jobs = jobs
    state.access = Access(tokens, {config.job: config.service.tokens for config in configs})
    state.metrics = Metrics(jobs)
    state.stopping, state.stop, state.failure = asyncio.Event(), lambda: None, None
    add_handlers(app)
    for router in ROUTERS:
        app.include_router(router)
    origins = Origins(app.build_middleware_stack(), {config.job: config.service.origins for config in configs})
    app.middleware_stack = Guard(origins, state.metrics, state.stopping, state.access.open)
    return app
