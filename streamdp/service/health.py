"""The routes for operation: whether the process is up, whether it can work, and Prometheus metrics."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from streamdp.service import documents, schemas
from streamdp.service.problems import busy, responses
from streamdp.service.requests import allowed

router = APIRouter(tags=["operation"])


@router.get("/healthz", responses={200: {"model": schemas.Health}}, response_class=Response)
async def healthz() -> Response:
    """The process is up."""
    return documents.answer({"status": "up"})


@router.get("/readyz", responses={200: {"model": schemas.Health}, **responses(503)}, response_class=Response)
async def readyz(request: Request) -> Response:
    """Every job's store and source can be used."""
    for job in request.app.state.jobs.values():
        if job.trouble is not None:
            raise busy(f"job {job.name!r}: {job.trouble}")
    return documents.answer({"status": "ready"})


@router.get(
    "/metrics",
    responses={200: {"content": {"text/plain": {}}}, **responses(401, 403)},
    response_class=Response,
)
async def metrics(request: Request) -> Response:
    """Prometheus metrics."""
    allowed(request, None, "metrics")
    text: bytes = request.app.state.metrics.text()
    return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")
