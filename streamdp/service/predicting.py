"""The route that predicts, with the last committed model. It never waits for a learner."""

import numpy as np
import orjson
import polars as pl
from fastapi import APIRouter, Request, Response

from streamdp.service import documents, schemas
from streamdp.service.calls import read_call
from streamdp.service.features import RecordReader
from streamdp.service.learning import learning_job
from streamdp.service.models import JobName
from streamdp.service.problems import ProblemError, responses
from streamdp.service.requests import Route, caller_of, job_for, read_json, work_on
from streamdp.serving.predictor import predictions

FEW_RECORDS = 32
"""The probabilities of more records are written by columns."""

router = APIRouter(prefix="/v1/models", tags=["models"], route_class=Route, default_response_class=Response)


@router.post(
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
