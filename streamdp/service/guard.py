"""What surrounds every request: its time, the host that it names, the shutdown, and errors without values.

`Origins` lets web pages of other origins (CORS) that a job names in.
"""

import asyncio
import contextlib
import logging
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from streamdp.runtime.tracing import span
from streamdp.service.access import is_loopback
from streamdp.service.metrics import ServiceMetrics
from streamdp.service.problems import ProblemError, busy, problem_of

_HOST = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([^][:@/?#\s]+))(?::[0-9]*)?")
_METHODS = {"GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH"}
_ONCE = {
    b"access-control-request-method",
    b"authorization",
    b"content-encoding",
    b"content-length",
    b"content-type",
    b"host",
    b"idempotency-key",
    b"origin",
    b"transfer-encoding",
}
"""The headers that the service reads and that are no list: two readers of a request could choose different values."""
PROBES = ("/healthz", "/readyz")
"""What is answered beyond the limit of connections, too."""
LINGER_SECONDS = 5.0
"""How long the rest of a body is read, and not kept, after an answer that closes the connection.

If a connection is closed with bytes that were not read, TCP resets it, and the sender may lose the answer. It is
shorter than `server.STOP_SECONDS`.
"""

access_log = logging.getLogger("streamdp.service.access")


class Guard:
    """The outermost part of the application.

    The access log has method, path template, status and duration, and neither path, query, body nor token. Requests are
    refused once `stopping` is set. With `only_loopback` they must name this machine as their host: without tokens, a
    page of another origin could otherwise reach the service by a name that it points to this machine. A request whose
    end two readers could see at different places (RFC 9112, 6.1) is refused, and its connection closed.
    """

    def __init__(self, app: ASGIApp, metrics: ServiceMetrics, stopping: asyncio.Event, only_loopback: bool) -> None:
        self._app = app
        self._metrics = metrics
        self._stopping = stopping
        self._only_loopback = only_loopback

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request; see the ASGI specification."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        with span("request") as current:
            await self._answer(scope, receive, send, current)

    async def _answer(self, scope: Scope, receive: Receive, send: Send, current: Any) -> None:
        began, status = time.perf_counter(), 0
        method = scope["method"] if scope["method"] in _METHODS else "_OTHER"  # a caller may send any word
        receive, send = _lingering(receive, send)
        if method == "HEAD":
            scope, send = {**scope, "method": "GET"}, _without_body(send)

        async def noted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            if (refused := self._refused(scope)) is None:
                await self._app(scope, receive, noted)
            else:
                await refused.response()(scope, receive, noted)
        except Exception as error:  # noqa: BLE001 - its text may quote a record, so nobody else may log it
            problem = problem_of(error)
            if not status:
                await problem.response()(scope, receive, noted)
        finally:
            seconds = time.perf_counter() - began
            path = getattr(scope.get("route"), "path", "(none)")
            self._metrics.answered(method, path, status, seconds)
            access_log.info("%s %s %d %.6f", method, path, status, seconds)
            if current is not None:
                current.update_name(f"{method} {path}")
                current.set_attributes(
                    {"http.request.method": method, "http.route": path, "http.response.status_code": status}
                )

    def _refused(self, scope: Scope) -> ProblemError | None:
        """The answer to a request that no route gets; None if its route answers it."""
        if self._stopping.is_set():
            return busy("the service is stopping")
        if scope["path"] not in PROBES and scope.get("state", {}).get("is_spare", bool)():
            return busy("the service has no place for further connections")
        if self._only_loopback and not _names_loopback(scope["headers"]):
            return ProblemError(400, "host", "without tokens, the host of a request must be this machine")
        if (fault := _fault(scope)) is not None:
            return ProblemError(400, "header", fault, headers={"Connection": "close"})
        return None


def _without_body(send: Send) -> Send:
    """Send the head of an answer, and leave out its body."""

    async def head(message: Message) -> None:
        if message["type"] == "http.response.start":
            await send(message)
            await send({"type": "http.response.body"})

    return head


def _fault(scope: Scope) -> str | None:
    """Say what is wrong with the headers of a request as a whole; None if nothing is."""
    names = [name for name, _ in scope["headers"]]
    repeated = next((name for name in names if name in _ONCE and names.count(name) > 1), None)
    if repeated is not None:
        return f"the header {repeated.decode()} comes twice: expected one value"
    if b"transfer-encoding" in names and (b"content-length" in names or scope["http_version"] == "1.0"):
        return "expected a body with Content-Length, or with Transfer-Encoding in HTTP/1.1, and not with both"
    return None


def _lingering(receive: Receive, send: Send) -> tuple[Receive, Send]:
    """Before an answer that closes the connection ends, read the rest of the body, for at most `LINGER_SECONDS`."""
    more, closes = True, False

    async def reading() -> Message:
        nonlocal more
        message = await receive()
        more = message["type"] == "http.request" and message.get("more_body", False)
        return message

    async def sending(message: Message) -> None:
        nonlocal closes
        if message["type"] == "http.response.start":
            closes = (b"connection", b"close") in message.get("headers", ())
        if not (closes and more and message["type"] == "http.response.body" and not message.get("more_body", False)):
            await send(message)
            return
        await send({**message, "more_body": True})  # the whole answer: its length is known
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LINGER_SECONDS):
                while more:
                    await reading()
        await send({"type": "http.response.body"})

    return reading, sending


def _names_loopback(headers: Iterable[tuple[bytes, bytes]]) -> bool:
    """Whether the host that a request names is this machine; its port does not matter."""
    host = next((value for name, value in headers if name == b"host"), b"").decode("latin-1")
    found = _HOST.fullmatch(host)
    return found is not None and is_loopback((found[1] or found[2]).lower())


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
