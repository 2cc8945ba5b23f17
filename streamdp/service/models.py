"""The routes that read models: the list, one model, and its weights or statistics."""

from typing import Annotated

from fastapi import APIRouter, Path, Request, Response

from streamdp.service import documents, schemas
from streamdp.service.problems import ProblemError, responses
from streamdp.service.requests import Route, job_for, readable

router = APIRouter(prefix="/v1/models", tags=["models"], route_class=Route, default_response_class=Response)

JobName = Annotated[str, Path(description="The name of the job.", examples=["delays"])]


@router.get("", responses=schemas.answers(schemas.Models) | responses(400, 401, 403))
async def models(request: Request) -> Response:
    """The jobs of the service, and what they have learned."""
    jobs = readable(request)
    unusable = [{"job": name, "trouble": why} for name, why in request.app.state.unusable.items()]
    return documents.answer({"models": [documents.summary(job) for job in jobs], "unusable": unusable})


@router.get("/{job}", responses=schemas.answers(schemas.ModelAnswer) | responses(400, 401, 403, 404))
async def model(request: Request, job: JobName) -> Response:
    """One model: its schema, its guarantee and its privacy statement."""
    return documents.answer(documents.description(job_for(request, job, "read")))


@router.get("/{job}/weights", responses=schemas.answers(schemas.Weights) | responses(400, 401, 403, 404))
async def weights(request: Request, job: JobName) -> Response:
    """The weights in original units, with 95 % intervals where the estimator has them."""
    found = job_for(request, job, "read").model
    if not found.definition.has_model:
        raise ProblemError(404, "no-weights", f"this job has statistics and no model: GET /v1/models/{job}/statistics")
    shown = {"version": found.snapshot.seq, "weights": documents.weight_rows(found), "doubts": found.doubts}
    return documents.answer(shown)


@router.get("/{job}/statistics", responses=schemas.answers(schemas.StatisticsAnswer) | responses(400, 401, 403, 404))
async def statistics(request: Request, job: JobName) -> Response:
    """The statistics, with 95 % intervals."""
    found = job_for(request, job, "read").model
    if found.definition.statistics is None:
        raise ProblemError(404, "no-statistics", f"this job has a model: GET /v1/models/{job}/weights")
    return documents.answer({"version": found.snapshot.seq, "statistics": found.estimator.estimated.rows()})
