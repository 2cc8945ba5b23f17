"""The routes: of models, with records that are learned and predicted; of people's devices; and for operation.

Records and reports are answered after their commit. Predictions have the last committed model, and never wait for a
learner.
"""

import re
from functools import partial
from typing import Annotated

import numpy as np
import orjson
import polars as pl
from fastapi import APIRouter, Path, Request, Response
from fastapi.responses import StreamingResponse

from streamdp.protocol.reports import Document, StatisticsDocument
from streamdp.service import documents, schemas
from streamdp.service.calls import of_records, of_reports, read_call, read_pieces
from streamdp.service.events import event_stream
from streamdp.service.features import RecordReader
from streamdp.service.jobs import no_reports
from streamdp.service.learning_job import LearningJob
from streamdp.service.mixing import MixingJob
from streamdp.service.problems import ProblemError, busy, responses
from streamdp.service.requests import Route, allowed, caller_of, job_for, no_such_job, read_json, readable, work_on
from streamdp.serving.predictor import predictions

MOST_KEY_BYTES = 256
FEW_RECORDS = 32
"""The probabilities of more records are written by columns."""

_EVENT = 'data: {"version": 4, "learned": 2000, "refused": 3, "left_out": 0, "dead": 1, "weights": [...]}\n\n'
_METRICS = 'streamdp_records_total{job="delays",outcome="learned"} 2000.0'
_OUTCOMES = schemas.answers(schemas.LearnAnswer)
_OUTCOMES |= responses(400, 401, 403, 404, 408, 409, 413, 415, 422, 429, 503)

_router = partial(APIRouter, route_class=Route, default_response_class=Response)
_models, _reports = (_router(prefix="/v1/models", tags=[tag]) for tag in ("models", "reports"))
_operation = _router(tags=["operation"])

JobName = Annotated[str, Path(description="The name of the job.", examples=["delays"])]


@_models.get("", responses=schemas.answers(schemas.Models) | responses(400, 401, 403))
async def models(request: Request) -> Response:
    """The jobs of the service, and what they have learned."""
    jobs = readable(request)
    unusable = [{"job": name, "trouble": why} for name, why in request.app.state.unusable.items()]
    return documents.answer({"models": [documents.summary(job) for job in jobs], "unusable": unusable})


@_models.get("/{job}", responses=schemas.answers(schemas.ModelAnswer) | responses(400, 401, 403, 404))
async def model(request: Request, job: JobName) -> Response:
    """One model: its schema, its guarantee and its privacy statement."""
    return documents.answer(documents.description(job_for(request, job, "read")))


@_models.get("/{job}/weights", responses=schemas.answers(schemas.Weights) | responses(400, 401, 403, 404))
async def weights(request: Request, job: JobName) -> Response:
    """The weights in original units, with 95 % intervals where the estimator has them."""
    found = job_for(request, job, "read").model
    if not found.definition.has_model:
        raise ProblemError(404, "no-weights", f"this job has statistics and no model: GET /v1/models/{job}/statistics")
    shown = {"version": found.snapshot.seq, "weights": documents.weight_rows(found), "doubts": found.doubts}
    return documents.answer(shown)


@_models.get("/{job}/statistics", responses=schemas.answers(schemas.StatisticsAnswer) | responses(400, 401, 403, 404))
async def statistics(request: Request, job: JobName) -> Response:
    """The statistics, with 95 % intervals."""
    found = job_for(request, job, "read").model
    if found.definition.statistics is None:
        raise ProblemError(404, "no-statistics", f"this job has a model: GET /v1/models/{job}/weights")
    return documents.answer({"version": found.snapshot.seq, "statistics": found.estimator.estimated.rows()})


@_models.post("/{job}/learn", responses=_OUTCOMES, openapi_extra=schemas.body(schemas.LearnCall) | schemas.IDEMPOTENT)
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


@_models.post(
    "/{job}/predict",
    responses=schemas.answers(schemas.Predictions) | responses(400, 401, 403, 404, 408, 409, 413, 415, 422, 503),
    openapi_extra=schemas.body(schemas.PredictCall),
)
async def predict(request: Request, job: JobName) -> Response:
    """Predict records. All must fit the schema. With ids, the token needs the scope `learn`, too: labels will come."""
    found = job_for(request, job, "predict")
    if not found.config.has_model:
        raise ProblemError(404, "no-model", f"this job has statistics: GET /v1/models/{job}/statistics")
    body = await read_json(request)
    X, ids = await work_on(body, read_predictions, found.features, body)
    if ids is not None:
        learning_job(request, job, "learn").labels.add(caller_of(request), ids, X)
    model = found.model
    labels, shares = predictions(model, X)
    probabilities: object = None
    if shares is not None:
        classes = model.definition.schema_.target.classes or ()
        if len(X) > FEW_RECORDS:
            probabilities = orjson.Fragment(pl.DataFrame(shares, schema=classes).write_json())
        else:
            probabilities = [dict(zip(classes, row, strict=True)) for row in shares.tolist()]
    said = {"version": model.snapshot.seq, "predictions": labels, "probabilities": probabilities}
    return documents.answer(said | {"doubts": model.doubts})


def read_predictions(reader: RecordReader, body: bytes) -> tuple[np.ndarray, list[str | None] | None]:
    """The encoded features (n, p) of a call with this `body`, and its ids if it has any.

    Raises the errors of `read_call`, and `ProblemError` 422 for the first record that does not fit the schema.
    """
    call = read_call(schemas.PredictCall, body)
    if call.ids is not None and len(call.ids) != len(call.records):
        raise ProblemError(400, "malformed", "ids: expected one id or null for each record")
    X, flaws = reader.read(call.records)
    for index, flaw in sorted(flaws.items()):
        column = "" if flaw.column is None else f", in column {flaw.column!r}"
        wrapped = call.records[index].keys() == {"x"}
        hint = "; here the features are the record: leave out x" if wrapped else ""
        said = f"the record does not fit the schema: {flaw.reason}{column}{hint}"
        raise ProblemError(422, "bad-record", said, index=index)
    if (first := reader.unknown(call.records)) is not None:
        known = "expected the features of the schema and nothing else; ids are beside the records"
        raise ProblemError(422, "bad-record", known, index=first)
    return X, call.ids


@_models.get("/{job}/events", responses=schemas.text("text/event-stream", _EVENT) | responses(400, 401, 403, 404))
async def events(request: Request, job: JobName) -> Response:
    """The present version at once, then one event for each commit. A reader that is too slow misses the oldest ones."""
    found = job_for(request, job, "read")
    stream = event_stream(found, request.app.state.stopping)
    return StreamingResponse(stream, media_type="text/event-stream", headers={"Cache-Control": "no-store"})


@_reports.get(
    "/{job}/randomizer",
    responses={
        200: {"model": Document | StatisticsDocument},
        304: {"description": "The document is the one of the ETag."},
        **responses(400, 401, 403, 404, 409),
    },
)
async def randomizer(request: Request, job: JobName) -> Response:
    """All that a device needs for a report. It changes with the commits; see docs/reports.md."""
    text, etag, _ = await job_for(request, job, "report", "read").document()
    headers = {"ETag": etag, "Cache-Control": "no-cache"}
    known = {tag.strip().removeprefix("W/") for tag in ",".join(request.headers.getlist("if-none-match")).split(",")}
    if known & {etag, "*"}:
        return Response(status_code=304, headers=headers)
    return Response(text, media_type="application/json", headers=headers)


@_reports.post(
    "/{job}/reports", responses=_OUTCOMES, openapi_extra=schemas.body(schemas.ReportsCall) | schemas.IDEMPOTENT
)
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
    if (promised := found.config.shuffled) is not None and _mixed(request) < promised.people:
        said = f"expected reports of a shuffler that mixes at least {promised.people} people: give both the same job"
        raise ProblemError(409, "mixed-fewer", said)
    body = await read_json(request)
    key = idempotency_key(request)
    items = await work_on(body, _items, body)
    if not items:
        return nothing(found)
    checked = await work_on(body, desk.receive_all, items)
    call = of_reports(found.answers, caller_of(request), body, key, len(items), *checked)
    return documents.answer(await found.submit(call))


def _mixed(request: Request) -> int:
    """How many people the shuffler says that a batch has at least; 0 if it says nothing."""
    said = request.headers.get("mixed-people", "")
    return int(said) if re.fullmatch("[0-9]{1,7}", said) else 0


def _items(body: bytes) -> list[object]:
    form, items = '{"reports": [...]}', list[object]()
    for i, part in enumerate(read_pieces(body, "reports", form)):
        listed = part if i else isinstance(part, dict) and part.keys() == {"reports"} and part["reports"]
        if not isinstance(listed, list):
            raise ProblemError(400, "malformed", f"expected {form}")
        items += listed
    return items


@_operation.get("/healthz", responses=schemas.answers(schemas.Health) | responses(400))
async def healthz(request: Request) -> Response:
    """The process is up."""
    return documents.answer({"status": "up"})


@_operation.get(
    "/readyz", responses=schemas.answers(schemas.Health) | responses(400, 404, 503), openapi_extra=schemas.ONE_JOB
)
async def readyz(request: Request) -> Response:
    """Every job's store and source can be used. Otherwise the detail names each job that cannot, and why."""
    state, job = request.app.state, request.query_params.get("job")
    troubles = {name: found.trouble for name, found in state.jobs.items()} | state.unusable
    if job is not None and job not in troubles:
        raise no_such_job()
    said = [f"job {name!r}: {why}" for name, why in troubles.items() if why is not None and job in (None, name)]
    if said:
        raise busy("; ".join(said))
    return documents.answer({"status": "ready"})


@_operation.get("/metrics", responses=schemas.text("text/plain", _METRICS) | responses(400, 401, 403))
async def metrics(request: Request) -> Response:
    """Prometheus metrics."""
    allowed(request, None, "metrics")
    text: bytes = request.app.state.metrics.text()
    return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")


ROUTES = [route for router in (_models, _reports, _operation) for route in router.routes]
