"""OpenTelemetry spans of requests, polls, learning, commits and publications: off unless `tracing` is entered.

The extra `otel` is needed. Attributes are numbers, fixed words and path templates. None has a record, a subject, a key,
a token or the text of an error. The headers of callers are not read: their trace state may hold any text.
"""

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

from streamdp.errors import needing

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.export import SpanExporter

END_S = 2.0
"""How long an export may take, in seconds: the last one delays the end of the process."""

_ASKED = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_TRACES_EXPORTER")

_tracer: Any = None


def span(name: str, **attributes: int | str) -> AbstractContextManager[object]:
    """A span of this `name` within a with statement, which gets it; None while there is no tracing.

    `attributes` are numbers and fixed words, and no value of a record.
    """
    if _tracer is None:
        return nullcontext()
    return _tracer.start_as_current_span(
        name, attributes=attributes, record_exception=False, set_status_on_exception=False
    )  # the text of an error may quote a record


def note_span(name: str, began_ns: int, **attributes: int | str) -> None:
    """A span that has just ended, for calls of which only some are worth one.

    It began at `began_ns`, of `time.time_ns()`. `name` and `attributes` are as for `span`.
    """
    if _tracer is not None:
        _tracer.start_span(name, start_time=began_ns, attributes=attributes).end()


def traced(asked: bool) -> AbstractContextManager[None]:
    """`tracing`, if the option `--trace` (`asked`) or the environment asks for it; else nothing."""
    return tracing() if asked or asked_for() else nullcontext()


def asked_for() -> bool:
    """Whether OpenTelemetry's environment variables ask for traces by OTLP."""
    refused = (os.environ.get("OTEL_SDK_DISABLED", "").lower(), os.environ.get("OTEL_TRACES_EXPORTER"))
    return refused[0] != "true" and refused[1] != "none" and any(map(os.environ.get, _ASKED))


@contextmanager
def tracing(exporter: "SpanExporter | None" = None) -> Iterator[None]:
    """Export spans for as long as a with statement runs.

    They go to `exporter`, or by OTLP over HTTP, to where OpenTelemetry's environment variables say. Raises
    `ConfigError` if the extra `otel` is not installed.
    """
    global _tracer
    with needing("tracing", "otel"):
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    named = {"service.name": os.environ.get("OTEL_SERVICE_NAME", "streamdp")}
    provider = TracerProvider(resource=Resource.create(named), shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(exporter or OTLPSpanExporter(timeout=END_S)))
    _tracer = provider.get_tracer("streamdp")
    try:
        yield
    finally:
        _tracer = None
        provider.shutdown()
