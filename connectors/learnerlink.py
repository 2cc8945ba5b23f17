"""The learner of a job as its shuffler sees it: a service that shows a document and takes reports."""

from http import HTTPStatus
from urllib.parse import quote

import orjson

from streamdp.errors import SourceError, SourceUnavailableError

_ANSWER_S = 30.0
_MOST_BYTES = 8 << 20
_MOST_SHOWN = 300
_LATER = {HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_EARLY, HTTPStatus.TOO_MANY_REQUESTS}


class LearnerLink:
    """The service at `url`, for one `job`; `token` is its bearer token, `proxy` the address of a proxy; None: neither.

    It tells the learner how many `people` a batch has at least. Nothing follows redirections.
    """

    def __init__(self, url: str, job: str, people: int, token: str | None = None, proxy: str | None = None) -> None:
        import httpx

        self._errors = httpx.HTTPError
        self._client = httpx.Client(
            base_url=f"{url.rstrip('/')}/v1/models/{quote(job, safe='')}",
            headers={"Mixed-People": str(people)} | ({} if token is None else {"Authorization": f"Bearer {token}"}),
            timeout=_ANSWER_S,
            verify=httpx.create_ssl_context(),
            trust_env=False,  # no proxy and no password of the environment
            proxy=proxy,
        )

    def document(self) -> bytes:
        """Return the randomizer document.

        Raises `SourceUnavailableError` if the service does not answer or asks to come later, and `SourceError` with
        its own sentence if it refuses the call.
        """
        return self._call("GET", "/randomizer")

    def send(self, key: str, body: bytes) -> int:
        """Send a `body` with reports under an idempotency `key`; return how many could not be used.

        Raises as `document`.
        """
        headers = {"Content-Type": "application/json", "Idempotency-Key": key}
        answer = _parsed(self._call("POST", "/reports", body, headers))
        if not isinstance(dead := answer.get("dead"), list):
            raise SourceUnavailableError("the learner's service: its answer does not say what became of the reports")
        return len(dead)

    def _call(self, method: str, path: str, body: bytes | None = None, headers: dict[str, str] | None = None) -> bytes:
        found, status, trouble = bytearray(), 0, ""
        try:
            with self._client.stream(method, path, content=body, headers=headers) as response:
                status = response.status_code
                for part in response.iter_bytes():
                    found += part
                    if len(found) > _MOST_BYTES:
                        trouble = "its answer is too long"
                        break
        except self._errors as error:
            trouble = type(error).__name__
        if trouble or status in _LATER or status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            raise SourceUnavailableError(f"the learner's service: {trouble or _said(status, bytes(found))}")
        if status != HTTPStatus.OK:
            raise SourceError(f"the learner's service: {_said(status, bytes(found))}")
        return bytes(found)

    def close(self) -> None:
        """Close the connections."""
        self._client.close()


def _parsed(body: bytes) -> dict[str, object]:
    """The JSON object of an answer; empty if it is none."""
    try:
        found = orjson.loads(body)
    except orjson.JSONDecodeError:
        return {}
    return found if isinstance(found, dict) else {}


def _said(status: int, body: bytes) -> str:
    """What the service answered in place of 200, with the sentence of its problem document."""
    sentence = _parsed(body).get("detail")
    shown = "".join(c if c.isprintable() else " " for c in str(sentence)[:_MOST_SHOWN])
    return f"it answered {status}" + ("" if sentence is None else f": {shown}")
