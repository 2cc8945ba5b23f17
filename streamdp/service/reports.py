"""The routes of people's devices: the randomizer document, and the reports that answer it."""

from typing import Any

from fastapi import APIRouter, Request, Response

from streamdp.protocol.reports import Document, StatisticsDocument
from streamdp.service import calls, documents, schemas
from streamdp.service.jobs import no_reports
from streamdp.service.learning import OUTCOMES, idempotency_key, learning_job, nothing
from streamdp.service.mixing import MixingJob
from streamdp.service.models import JobName
from streamdp.service.problems import ProblemError, responses
from streamdp.service.requests import Route, caller_of, job_for, read_json, work_on

router = APIRouter(prefix="/v1/models", tags=["reports"], route_class=Route, default_response_class=Response)


@router.get(
    "/{job}/randomizer",
    responses={
        200: {"model": Document | StatisticsDocument},
        304: {"description": "The document is the one of the ETag."},
        **responses(400, 401, 403, 404, 409),
    },
)
async def randomizer(request: Request, job: JobName) -> Response:
    """All that a device needs for a report. It changes with the commits; see docs/reports.md."""
    text, etag = await job_for(request, job, "report", "read").document()
    headers = {"ETag": etag, "Cache-Control": "no-cache"}
    known = {tag.strip().removeprefix("W/") for tag in ",".join(request.headers.getlist("if-none-match")).split(",")}
    if known & {etag, "*"}:
        return Response(status_code=304, headers=headers)
    return Response(text, media_type="application/json", headers=headers)


@router.post("/{job}/reports", responses=OUTCOMES, openapi_extra=schemas.body(schemas.ReportsCall) | schemas.IDEMPOTENT)
async def reports(request: Request, job: JobName) -> Response:
    """Learn reports of devices. The answer comes after their commit."""
    found = job_for(request, job, "report")
    if isinstance(found, MixingJob):
        body = await read_json(request)
        items = await work_on(body, _items, body)
        return documents.answer(found.after_reports(len(items), await work_on(body, found.mixer.take, items)))
    found = learning_job(request, job, "report")
    if (desk := found.desk) is None:
        raise no_reports()
    body = await read_json(request)
    key = idempotency_key(request)
    items = await work_on(body, _items, body)
    if not items:
        return nothing(found)
    checked = await work_on(body, desk.receive_all, items)
    call = calls.of_reports(found.answers, caller_of(request), body, key, len(items), *checked)
    return documents.answer(await found.submit(call))


def _items(body: bytes) -> list[object]:
    form, items = '{"reports": [...]}', list[Any]()
    for i, part in enumerate(calls.read_pieces(body, "reports", form)):
        listed = part if i else isinstance(part, dict) and part.keys() == {"reports"} and part["reports"]
        if not isinstance(listed, list):
            raise ProblemError(400, "malformed", f"expected {form}")
        items += listed
    return items
