"""What every route does: it reads the request by itself, and answers with a problem document if it cannot.

It finds the job, checks the token, and reads the body within its limits.
"""

import asyncio
import zlib
from collections.abc import Callable, Iterable
from typing import Any, ParamSpec, TypeVar

from fastapi import Request
from fastapi.routing import APIRoute
from starlette.types import Receive, Scope, Send

from streamdp.errors import suggestion
from streamdp.service.access import Access
from streamdp.service.jobs import Job
from streamdp.service.problems import ProblemError, problem_of

MAX_BODY_BYTES = 8 << 20
FEW_BYTES = 16_384
"""A body of at most so many bytes is read in the event loop; a thread of its own would take longer."""
BODY_SECONDS = 10.0
"""How long a body may take to arrive."""

P = ParamSpec("P")
T = TypeVar("T")


class Route(APIRoute):
    """A route that FastAPI describes. Its function gets the request and the parameters of the path, and nothing else.

    FastAPI would parse them again, and each error would pass its handlers: see record 10 of docs/decisions.
    """

    def __init__(self, path: str, endpoint: Callable[..., object], **given: Any) -> None:
        said = " ".join((endpoint.__doc__ or "").split())
        first = said.partition(". ")[0].removesuffix(".")
        super().__init__(path, endpoint, **given | {"summary": first, "description": said})

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request; see the ASGI specification."""
        try:
            methods = self.methods or set()
            if scope["method"] not in methods:
                allow = ", ".join(sorted(methods))
                said = f"the path does not have this method: use {allow}"
                raise ProblemError(405, "method", said, headers={"Allow": allow})
            request = Request(scope, receive)
            if scope["query_string"] and self.include_in_schema:  # links to pages may get parameters on their way
                self._check_query(request.query_params)
            response = await self.endpoint(request, **scope["path_params"])
        except Exception as error:  # noqa: BLE001 - every error is answered, with the headers of `Origins`
            response = problem_of(error).response()
        await response(scope, receive, send)

    def _check_query(self, given: Iterable[str]) -> None:
        """Raise `ProblemError` 400 if one of the `given` parameters is not described."""
        described = (self.openapi_extra or {}).get("parameters", ())
        known = [one["name"] for one in described if one["in"] == "query"]
        for name in given:
            if name not in known:
                takes = ", ".join(known) or "none"
                said = f"unknown query parameter: this path takes {takes}{suggestion(name, known)}"
                raise ProblemError(400, "unknown-parameter", said)


async def no_such_path(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer a request that has no route; see the ASGI specification."""
    await ProblemError(404, "not-found", "there is no such path; /docs lists all").response()(scope, receive, send)


def allowed(request: Request, job: str | None, *scopes: str) -> None:
    """Raise `ProblemError` 401 or 403 unless the token of a request has one of the `scopes` for `job` (None: all)."""
    request.app.state.access.check(request.headers.get("authorization"), job, *scopes)


def readable(request: Request) -> list[Job]:
    """The jobs that the token of a request may read. Raises `ProblemError` 401 or 403 if there is none."""
    jobs: dict[str, Job] = request.app.state.jobs
    found, refused = [], None
    for name, job in jobs.items():
        try:
            allowed(request, name, "read")
            found.append(job)
        except ProblemError as error:
            refused = error
    if refused is not None and not found:
        raise refused
    return found


def job_for(request: Request, job: str, *scopes: str) -> Job:
    """Return the `job` of this name if `allowed` permits one of the `scopes`. Raises `ProblemError` 401, 403 or 404."""
    allowed(request, job, *scopes)
    found: Job | None = request.app.state.jobs.get(job)
    if found is None:
        raise no_such_job()
    return found


def no_such_job() -> ProblemError:
    """The problem of a job that is not there."""
    return ProblemError(404, "no-such-job", "there is no job of this name; GET /v1/models lists them")


def caller_of(request: Request) -> str:
    """Who sends a request, whose token was checked: see `Access.caller`."""
    access: Access = request.app.state.access
    return access.caller(request.headers.get("authorization"))


async def read_json(request: Request) -> bytes:
    """Read the body of a request. It is not parsed.

    Raises `ProblemError` 415 if it does not say that it is JSON, so that no page of another origin can send it
    unasked, or is packed otherwise than by gzip; 413 over `MAX_BODY_BYTES`, also unpacked; 408 after `BODY_SECONDS`;
    400 if the client left.
    """
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise ProblemError(415, "not-json", "expected Content-Type: application/json")
    too_large = ProblemError(
        413, "too-large", f"expected a body of at most {MAX_BODY_BYTES >> 20} MiB", headers={"Connection": "close"}
    )
    if int(request.headers.get("content-length", "0")) > MAX_BODY_BYTES:  # h11 has checked that it is a number
        raise too_large
    parts: list[bytes] = []
    size, more = 0, True
    try:
        async with asyncio.timeout(BODY_SECONDS):
            while more:
                message = await request.receive()
                if message["type"] == "http.disconnect":
                    raise ProblemError(
                        400, "unfinished", "the client closed the connection before the body was complete"
                    )
                part, more = message.get("body", b""), message.get("more_body", False)
                size += len(part)
                if size > MAX_BODY_BYTES:
                    raise too_large
                parts.append(part)
    except TimeoutError:
        raise ProblemError(
            408, "too-slow", f"the body took longer than {BODY_SECONDS:g} s", headers={"Connection": "close"}
        ) from None
    body = b"".join(parts)
    match request.headers.get("content-encoding", "identity").lower():
        case "identity":
            return body
        case "gzip":
            return _unpacked(body)
    raise ProblemError(415, "unknown-encoding", "expected Content-Encoding: gzip, or none")


def _unpacked(body: bytes) -> bytes:
    """The unpacked bytes of a body by gzip. Raises `ProblemError` 400 or 413."""
    unpacker = zlib.decompressobj(31)
    try:
        found = unpacker.decompress(body, MAX_BODY_BYTES + 1)
    except zlib.error:
        found = b""
    if len(found) > MAX_BODY_BYTES:
        raise ProblemError(413, "too-large", f"expected a body of at most {MAX_BODY_BYTES >> 20} MiB when unpacked")
    if not unpacker.eof or unpacker.unused_data:
        raise ProblemError(400, "not-gzip", "the body is not the gzip stream that Content-Encoding says")
    return found


async def work_on(body: bytes, work: Callable[P, T], *given: P.args, **named: P.kwargs) -> T:
    """Call `work` with what is `given` and `named`: in the event loop if the `body` is small, else in a thread."""
    if len(body) <= FEW_BYTES:
        return work(*given, **named)
    return await asyncio.to_thread(work, *given, **named)
