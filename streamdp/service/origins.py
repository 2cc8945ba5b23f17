"""Web pages of other origins (CORS): each job names those that may use it."""

from collections.abc import Mapping, Sequence

from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send


class Origins:
    """Adds the headers of CORS to the answers of jobs that name origins (`by_job`)."""

    def __init__(self, app: ASGIApp, by_job: Mapping[str, Sequence[str]]) -> None:
        self._app = app
        self._by_job = {
            job: CORSMiddleware(
                app,
                allow_origins=origins,
                allow_methods=["GET", "POST"],
                allow_headers=["Authorization", "Content-Type", "Idempotency-Key", "If-None-Match"],
                expose_headers=["ETag", "Retry-After"],
            )
            for job, origins in by_job.items()
            if origins
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request; see the ASGI specification."""
        parts = scope["path"].split("/") if scope["type"] == "http" else []
        job = parts[3] if parts[:3] == ["", "v1", "models"] and len(parts) > 3 else ""
        await self._by_job.get(job, self._app)(scope, receive, send)
