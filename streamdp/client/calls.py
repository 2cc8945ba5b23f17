"""The client of a program that predicts and learns by a service. A retry never counts twice."""

import gzip
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any
from urllib.parse import quote

import httpx
import orjson

from streamdp.client.connection import connect
from streamdp.errors import SchemaError, ServiceError

PACK_FROM_BYTES = 1 << 16
"""Longer bodies are packed by gzip."""
_TRANSIENT = (429, 502, 503, 504)
_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 5.0

Record = Mapping[str, object]


class Client(AbstractContextManager["Client"]):
    """Calls a service. Threads may share it.

    `url` is the address of the service, such as `https://learn.example.org`, and `token` the bearer token, if it needs
    one. It may take `timeout_s` seconds for an answer. A call that gets none, or the answer to come back later, is
    repeated for `retry_s` seconds; 0: never. A call of `learn` is repeated with the same idempotency key, so that its
    records count once. `proxy` is the address of a proxy to call it through; None: no proxy, whatever the environment
    says.

    >>> client = Client("http://127.0.0.1:8000")
    >>> client.close()
    """

    def __init__(
        self,
        url: str,
        token: str | None = None,
        *,
        retry_s: float = 60.0,
        timeout_s: float = 30.0,
        proxy: str | None = None,
    ) -> None:
        self._http = connect(url, token, timeout_s, proxy, retry_s=retry_s)
        self._retry_s = retry_s

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections. Idempotent."""
        self._http.close()

    def predict(
        self, job: str, records: Sequence[Record], ids: Sequence[str | int | None] | None = None
    ) -> dict[str, Any]:
        """Predict `records`, raw features by name, with the last committed model of a `job`.

        `ids` has one for each record whose label comes later by this client's token, and None for the others. None: no
        labels. Returns `version`, `predictions` (None each while nothing is learned), and `probabilities` by class or
        None. Raises `ServiceError`.
        """
        return self._json(
            "POST", job, "/predict", {"records": list(records)} | ({} if ids is None else {"ids": list(ids)})
        )

    def learn(self, job: str, records: Sequence[Record], key: str | None = None) -> dict[str, Any]:
        """Learn `records` in a `job`, and return after their commit.

        Each record has `x` and `y`, and may have `subject`, `budget` and `id`; or `id` and `y` of an earlier
        prediction. Those of a job with statistics have no `y`. `key` is the idempotency key: give one if this program
        may repeat the call after a crash. None: a new one.

        Returns `version`, `learned`, `refused`, `left_out`, and `dead`: index and reason of each record that does not
        fit. Raises `ServiceError`.
        """
        return self._json("POST", job, "/learn", {"records": list(records)}, key or uuid.uuid4().hex)

    def weights(self, job: str) -> dict[str, Any]:
        """The `version` and `weights` of the last committed model of a `job`, in original units, or `ServiceError`."""
        return self._json("GET", job, "/weights")

    def statistics(self, job: str) -> dict[str, Any]:
        """The `version` and the committed `statistics` of a `job`, with their limits, or `ServiceError`."""
        return self._json("GET", job, "/statistics")

    def events(self, job: str) -> Iterator[dict[str, Any]]:
        """The present version of a `job`, then each commit as it comes, until the service stops, or `ServiceError`."""
        trouble = ""
        try:
            with self._http.stream("GET", _path(job, "/events"), timeout=httpx.Timeout(30.0)) as response:
                if response.status_code != 200:
                    response.read()
                    raise _error(response, "")
                for line in response.iter_lines():
                    if line.startswith("data: "):
                        yield orjson.loads(line[6:])
        except httpx.HTTPError as error:
            trouble = type(error).__name__
        if trouble:
            raise ServiceError(f"the service does not answer ({trouble})")

    def _json(self, method: str, job: str, path: str, body: object = None, key: str | None = None) -> dict[str, object]:
        headers = {} if key is None else {"Idempotency-Key": key}
        content = None
        if body is not None:
            content, headers["Content-Type"] = _dumped(body), "application/json"
            if len(content) >= PACK_FROM_BYTES:
                content, headers["Content-Encoding"] = gzip.compress(content, 1), "gzip"
        left, pause = self._retry_s, _PAUSE_S
        while True:
            response, trouble = None, ""
            try:
                response = self._http.request(method, _path(job, path), headers=headers, content=content)
            except httpx.HTTPError as error:
                trouble = type(error).__name__
            if response is not None and response.is_success:
                return orjson.loads(response.content)
            if left <= 0 or (response is not None and response.status_code not in _TRANSIENT):
                raise _error(response, trouble)
            time.sleep(pause)
            left, pause = left - pause, min(2 * pause, _LONGEST_PAUSE_S)


def _dumped(body: object) -> bytes:
    """JSON text of plain values and of scalars and arrays of numpy. The error shows no value."""
    try:
        return orjson.dumps(body, option=orjson.OPT_SERIALIZE_NUMPY)
    except TypeError:
        pass
    raise SchemaError("records: expected values of JSON or numpy: texts, numbers, truth values and None")


def _path(job: str, path: str) -> str:
    return f"/{quote(job, safe='')}{path}"


def _error(response: httpx.Response | None, trouble: str) -> ServiceError:
    if response is None:
        return ServiceError(f"the service does not answer ({trouble})")
    detail = ""
    if response.headers.get("content-type") == "application/problem+json":
        problem = orjson.loads(response.content)
        place = f"record {problem['index']}: " if "index" in problem else ""
        detail = f": {place}{problem['detail']}"
    return ServiceError(f"the service answered with status {response.status_code}{detail}", response.status_code)
