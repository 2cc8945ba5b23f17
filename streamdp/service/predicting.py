"""The route that predicts, with the last committed model. It never waits for a learner."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import orjson
import polars as pl
from fastapi import APIRouter, Request, Response

from streamdp.service import documents, schemas
from streamdp.service.jobs import Job
from streamdp.service.models import JobName
from streamdp.service.problems import responses
from streamdp.service.requests import job_for, read_json

FEW_RECORDS = 32
"""The probabilities of more records are written by columns."""

router = APIRouter(prefix="/v1/models", tags=["models"])


@router.post(
    "/{job}/predict",
    responses={200: {"model": schemas.Predictions}, **responses(400, 401, 403, 404, 408, 413, 415, 422, 503)},
    response_class=Response,
    openapi_extra=schemas.body(schemas.PredictCall),
)
async def predict(request: Request, job: JobName) -> Response:
    """Predict records. All must fit the schema."""
    found = job_for(request, job, "predict")
    body = await read_json(request)
    features = found.features
    if (plain := features.plain(body)) is not None:
        return documents.answer(predictions(found, plain))
    X, call = await asyncio.to_thread(features.read, body)
    found.await_labels(call)
    return documents.answer(predictions(found, X))


def predictions(job: Job, X: np.ndarray) -> dict[str, Any]:
    """The answer for encoded records.

    Parameters
    ----------
    X
        (n, p), the encoded features.
    """
    model = job.model
    estimator: Any = model.estimator
    target = model.definition.schema_.target
    classes = target.classes
    if classes is None:
        values = estimator.predict_arrays(X) * (target.scale or 1.0)
        return {"version": model.snapshot.seq, "predictions": values.tolist(), "probabilities": None}
    probabilities: Any = None
    if estimator.probabilistic:
        shares = estimator.predict_proba_arrays(X)
        found = np.argmax(shares, axis=1)
        if len(X) > FEW_RECORDS:
            probabilities = orjson.Fragment(pl.DataFrame(shares, schema=classes).write_json())
        else:
            probabilities = [dict(zip(classes, row, strict=True)) for row in shares.tolist()]
    else:
        found = estimator.predict_arrays(X)
    labels = np.array(classes, dtype=object)[found].tolist()
    return {"version": model.snapshot.seq, "predictions": labels, "probabilities": probabilities}
