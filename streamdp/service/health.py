"""The routes for operation: whether the process is up, whether it can work, and Prometheus metrics."""

from fastapi import APIRouter, Request, Response

from streamdp.service import documents, schemas
from streamdp.service.problems import busy, responses
from streamdp.service.requests import Route, allowed, no_such_job

_EXAMPLE = 'streamdp_records_total{job="delays",outcome="learned"} 2000.0'

router = APIRouter(tags=["operation"], route_class=Route, default_response_class=Response)


@router.get("/healthz", responses=schemas.answers(schemas.Health) | responses(400))
async def healthz(request: Request) -> Response:
    """The process is up."""
    return documents.answer({"status": "up"})


@router.get(
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


@router.get("/metrics", responses=schemas.text("text/plain", _EXAMPLE) | responses(400, 401, 403))
async def metrics(request: Request) -> Response:
    """Prometheus metrics."""
    allowed(request, None, "metrics")
    text: bytes = request.app.state.metrics.text()
    return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")
