"""The route that learns: records are answered after their commit."""

from fastapi import APIRouter, Request, Response

from streamdp.service import documents, schemas
from streamdp.service.calls import of_records
from streamdp.service.learning_job import LearningJob
from streamdp.service.models import JobName
from streamdp.service.problems import ProblemError, responses
from streamdp.service.requests import Route, caller_of, job_for, read_json, work_on

MOST_KEY_BYTES = 256
OUTCOMES = schemas.answers(schemas.LearnAnswer)
OUTCOMES |= responses(400, 401, 403, 404, 408, 409, 413, 415, 422, 429, 503)
"""What a route that learns answers, for its description."""

router = APIRouter(prefix="/v1/models", tags=["models"], route_class=Route, default_response_class=Response)


@router.post("/{job}/learn", responses=OUTCOMES, openapi_extra=schemas.body(schemas.LearnCall) | schemas.IDEMPOTENT)
async def learn(request: Request, job: JobName) -> Response:
    """Learn records. The answer comes after their commit."""
    found = learning_job(request, job, "learn")
    if found.config.shuffled is not None:
        raise ProblemError(409, "shuffled", "this job learns reports that come through its shuffler, and no records")
    body = await read_json(request)
    key = idempotency_key(request)
    call, labels = await work_on(
        body, of_records, found.answers, found.features, caller := caller_of(request), body, key
    )
    if not call.size:
        return nothing(found)
    return documents.answer(await found.learn(call, caller, labels))


def learning_job(request: Request, job: str, scope: str) -> LearningJob:
    """As `requests.job_for`; `ProblemError` 409 for a job that learns elsewhere."""
    found = job_for(request, job, scope)
    if not isinstance(found, LearningJob):
        raise ProblemError(409, "learns-elsewhere", "this job learns from its own source, and not from requests")
    return found


def nothing(job: LearningJob) -> Response:
    """The answer to a call without records or reports."""
    return documents.answer({"version": job.snapshot.seq, "learned": 0, "refused": 0, "left_out": 0, "dead": []})


def idempotency_key(request: Request) -> str | None:
    """The `Idempotency-Key` of a request; None without one. Raises `ProblemError` 400 if it is empty or too long."""
    key = request.headers.get("idempotency-key")
    if key is not None and not 0 < len(key) <= MOST_KEY_BYTES:
        raise ProblemError(400, "bad-key", f"expected an Idempotency-Key of 1 to {MOST_KEY_BYTES} characters")
    return key
