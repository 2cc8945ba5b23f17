"""Errors of the service as problem documents (RFC 9457). They never contain a value of a record."""

import logging
from collections.abc import Mapping
from http import HTTPStatus

import orjson
from fastapi import Response

from streamdp.errors import place_of

MEDIA_TYPE = "application/problem+json"

_log = logging.getLogger("streamdp.service.errors")


class ProblemError(Exception):
    """An answer with an HTTP `status` that says what went wrong.

    `kind` is the last part of `type`, such as `too-large`. `detail` says what was expected and what to do, without a
    value of a record. `index` is the place of the record in the call; None: the call as a whole. `headers` are those of
    the answer.
    """

    def __init__(
        self, status: int, kind: str, detail: str, *, index: int | None = None, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.kind = kind
        self.detail = detail
        self.index = index
        self.headers = headers

    def response(self) -> Response:
        """The problem document."""
        document: dict[str, object] = {
            "type": f"urn:streamdp:problem:{self.kind}",
            "title": HTTPStatus(self.status).phrase,
            "status": self.status,
            "detail": self.detail,
        }
        if self.index is not None:
            document["index"] = self.index
        headers = None if self.headers is None else dict(self.headers)
        return Response(orjson.dumps(document), self.status, headers, media_type=MEDIA_TYPE)


def busy(detail: str) -> ProblemError:
    """The problem of a call that is refused now, as `detail` says, and may be repeated in a second."""
    # The next call comes on another connection, which a balancer may give to another service.
    return ProblemError(503, "unavailable", detail, headers={"Retry-After": "1", "Connection": "close"})


def problem_of(error: Exception) -> ProblemError:
    """The problem of a call that ended with an `error`. The log gets the kind and the place of an unexpected one."""
    if isinstance(error, ProblemError):
        return error
    _log.error("unexpected %s at %s", type(error).__name__, place_of(error))  # its text may quote a record
    return ProblemError(500, "unexpected", "an unexpected error; the log names its kind and place")


RESPONSES: dict[int | str, dict[str, object]] = {
    status: {
        "description": description,
        "content": {
            MEDIA_TYPE: {
                "schema": {
                    "type": "object",
                    "properties": {
                        "type": {"type": "string"},
                        "title": {"type": "string"},
                        "status": {"type": "integer"},
                        "detail": {"type": "string"},
                        "index": {"type": "integer"},
                    },
                    "required": ["type", "title", "status", "detail"],
                }
            }
        },
    }
    for status, description in (
        (400, "The body, a header or the query is malformed."),
        (401, "A token is missing or unknown."),
        (403, "The token does not allow this."),
        (404, "There is no such job."),
        (408, "The body did not arrive in time."),
        (409, "The job does not learn from requests."),
        (413, "The body or the number of records is over the limit."),
        (415, "The body is not JSON."),
        (422, "A record does not fit, or a key was used with another body."),
        (429, "The queue is full."),
        (503, "The job cannot answer now."),
    )
}


def responses(*statuses: int) -> dict[int | str, dict[str, object]]:
    """The problems of a route, for its description; each of the HTTP `statuses` is a key of `RESPONSES`."""
    return {status: RESPONSES[status] for status in statuses}
