"""The pages of the service, and what they show beyond the routes of models. They load nothing from anywhere else.

A page sees what its token allows. It is sent with a policy that lets it talk to this service only, so no script could
send an answer elsewhere.
"""

import asyncio
import gzip
import math
import time
from functools import lru_cache
from importlib.resources import files
from typing import Any
from weakref import WeakKeyDictionary

from fastapi import APIRouter, Request, Response

from streamdp.config.http import ReportsSourceConfig
from streamdp.config.kafka import KafkaSourceConfig
from streamdp.data.records import Position, Shard
from streamdp.errors import StreamDPError
from streamdp.service import documents
from streamdp.service.jobs import Job
from streamdp.service.problems import ProblemError
from streamdp.service.requests import Route, job_for, no_such_job
from streamdp.store.report import SHARES, ledger_status
from streamdp.store.snapshot import counts_sum
from streamdp.store.store import Store

HISTORY = 500
"""The commits that a page shows at first."""

_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
    "Vary": "Accept-Encoding",
}
_PAGE, _SCRIPT, _STYLE, _TEXT = (f"text/{kind}; charset=utf-8" for kind in ("html", "javascript", "css", "plain"))
_FILES = {
    **dict.fromkeys(("docs.js", "live.js", "join.js", "uPlot.iife.min.js", "swagger-ui-bundle.js"), _SCRIPT),
    **dict.fromkeys(("style.css", "uPlot.min.css", "swagger-ui.css"), _STYLE),
    **dict.fromkeys(("uPlot.LICENSE", "swagger-ui.LICENSE", "swagger-ui.NOTICE"), _TEXT),
}

PEOPLE_S = 10.0
"""The time between two looks at the spends of all people of a job, in seconds."""
ASK_S = 5.0
"""The least time between two questions to brokers about the lag of one job, in seconds."""

router = APIRouter(include_in_schema=False, route_class=Route)

_people: WeakKeyDictionary[Job, tuple[float, list[dict[str, float]] | None]] = WeakKeyDictionary()


@lru_cache
def _packed(name: str) -> bytes:
    own = files("streamdp.service") / "static"
    packed, vendored = own / "vendor" / f"{name}.gz", own / "vendor" / name
    if packed.is_file():
        return packed.read_bytes()
    return gzip.compress((vendored if vendored.is_file() else own / name).read_bytes())


def _file(request: Request, name: str, media_type: str) -> Response:
    text, headers = _packed(name), _HEADERS
    if "gzip" in ",".join(request.headers.getlist("accept-encoding")):
        headers = headers | {"Content-Encoding": "gzip"}
    else:
        text = gzip.decompress(text)
    return Response(text, media_type=media_type, headers=headers)


@router.get("/")
async def live(request: Request) -> Response:
    """What the jobs of this service learn, live."""
    return _file(request, "live.html", _PAGE)


@router.get("/openapi.json")
async def description(request: Request) -> Response:
    """All calls, as an OpenAPI document."""
    return documents.answer(request.app.openapi())


@router.get("/docs")
async def docs(request: Request) -> Response:
    """All calls, described by Swagger UI."""
    return _file(request, "docs.html", _PAGE)


@router.get("/join/{job}")
async def join(request: Request, job: str) -> Response:
    """A form whose answers become a noisy report in the browser."""
    if job not in request.app.state.jobs:
        raise no_such_job()
    return _file(request, "join.html", _PAGE)


@router.get("/device.js")
async def device(request: Request) -> Response:
    """The device as one ES module: clients/js/streamdp.min.js."""
    return _file(request, "streamdp.min.js", _SCRIPT)


@router.get("/static/{name}")
async def static(request: Request, name: str) -> Response:
    """A file of the pages."""
    if name not in _FILES:
        raise ProblemError(404, "not-found", "there is no such file")
    return _file(request, name, _FILES[name])


@router.get("/page/words/{job}")
async def words(request: Request, job: str) -> Response:
    """What people read about the columns, for the form of a job."""
    return documents.answer(job_for(request, job, "report", "read").config.schema_.words())


@router.get("/page/job/{job}")
async def about(request: Request, job: str) -> Response:
    """What the live page shows beside the model: commits, what waits, why records were unusable, the best constant."""
    found = job_for(request, job, "read")
    return documents.answer(
        {
            "history": await found.ask(_history, found),
            "waiting": found.uncommitted,
            "lag": await asyncio.to_thread(lag, found),
            "trouble": found.trouble,
            "reasons": dict(found.reasons),
            "reasons_over_time": [{"at": at, "reasons": reasons} for at, reasons in found.reasons_over_time],
            "spent": await found.ask(_spent, found),
            "constant": await asyncio.to_thread(lambda: found.constant),
            "words": found.config.schema_.words(),
        }
    )


def _history(job: Job) -> list[dict[str, Any]]:
    """The last commits of a job. Over several shards, counts are added up as they were at each time."""
    shards: dict[Any, Any] = {}
    rows = []
    for commit in Store.history(job.config.store_path, HISTORY, job.name) if job.snapshot.seq else []:
        shards[commit.shard] = commit.counts
        rows.append({"at": commit.committed_at} | documents.shown(counts_sum(shards.values())))
    return rows


def _spent(job: Job) -> list[dict[str, float]] | None:
    """How many people have spent which share of their cap: the upper end of each class, and the people in it."""
    config = job.config
    if config.cap_budget is None or not job.snapshot.seq:
        return None
    at, known = _people.get(job, (-math.inf, None))
    if time.monotonic() - at >= PEOPLE_S:
        counts = ledger_status(config.store_path).spent
        known = [{"share": share, "people": people} for share, people in zip(SHARES, counts, strict=True)]
        _people[job] = time.monotonic(), known
    return known


def lag(job: Job) -> int | None:
    """The number of messages after the last commit, at most `ASK_S` old. Any thread may call it; it waits for a broker.

    Returns None if the job reads no topic, or if the brokers do not answer for all partitions.
    """
    source = job.config.source
    if not isinstance(source, KafkaSourceConfig | ReportsSourceConfig):
        return None
    if time.monotonic() - job.lag_asked_at >= ASK_S:
        job.lag_asked_at = math.inf  # others get the last answer meanwhile: silent brokers hold one thread of a job
        try:
            job.lag = _unread(job, source)
        except (StreamDPError, ImportError):  # the extra `kafka` may not be installed where the service follows
            job.lag = None
        finally:
            job.lag_asked_at = time.monotonic()
    return job.lag


def _unread(job: Job, source: KafkaSourceConfig | ReportsSourceConfig) -> int | None:
    from connectors.topicwatch import unread

    positions: dict[Shard, Position]
    if isinstance(source, ReportsSourceConfig):
        place = job.snapshot.position.get("place", {})
        positions = {Shard(source.topic, int(n)): {"offset": at} for n, at in place.items() if n.isdigit()}
    else:
        snapshots = Store.snapshots(job.config.store_path, job.name) if job.snapshot.seq else []
        positions = {snapshot.shard: snapshot.position for snapshot in snapshots}
    found = unread(source.servers, source.client_options(), positions, (source.topic,)).values()
    known = [lag for lag in found if lag is not None]
    return sum(known) if len(known) == len(found) else None
