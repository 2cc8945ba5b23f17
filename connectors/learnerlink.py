"""The learner of a job as its shuffler sees it: a service that shows a document and takes reports."""

from urllib.parse import quote

from streamdp.errors import SourceUnavailableError

_ANSWER_S = 30.0
_MOST_BYTES = 8 << 20


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
        """Return the randomizer document. Raises `SourceUnavailableError` if it does not come."""
        return self._call("GET", "/randomizer")

    def send(self, key: str, body: bytes) -> bytes:
        """Send a `body` with reports under an idempotency `key`; return the answer. Raises as `document`."""
        return self._call("POST", "/reports", body, {"Content-Type": "application/json", "Idempotency-Key": key})

    def _call(self, method: str, path: str, body: bytes | None = None, headers: dict[str, str] | None = None) -> bytes:
        found, trouble = bytearray(), ""
        try:
            with self._client.stream(method, path, content=body, headers=headers) as response:
                trouble = "" if response.status_code == 200 else f"it answered {response.status_code}"
                for part in response.iter_bytes():
                    found += part
                    if len(found) > _MOST_BYTES:
                        trouble = "its answer is too long"
                        break
        except self._errors as error:
            trouble = type(error).__name__
        if trouble:
            raise SourceUnavailableError(f"the learner's service: {trouble}")
        return bytes(found)

    def close(self) -> None:
        """Close the connections."""
        self._client.close()
