"""A schema registry on loopback: two calls of the HTTP API of Confluent's, with its codes."""

import base64
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.support.serving import Answering, serving

BASE = "/apis/ccompat/v7"
USER, PASSWORD = "reader", "p:ä"


class Registry:
    """What the registry answers. Tests change it.

    Attributes
    ----------
    documents
        The answers of addresses below the base.
    failures
        How many calls will be answered with 503.
    asked
        The addresses that were asked for.
    """

    url: str

    def __init__(self) -> None:
        self.documents: dict[str, Any] = {}
        self.failures = 0
        self.asked: list[str] = []
        self.secured = False

    def put(self, number: int, schema: Any, **more: Any) -> None:
        self.documents[f"/schemas/ids/{number}"] = {"schema": json.dumps(schema), **more}

    def answer(self, path: str, authorization: str | None) -> tuple[int, Any]:
        self.asked.append(path)
        if self.failures:
            self.failures -= 1
            return 503, {"error_code": 50301, "message": "no leader"}
        allowed = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
        if self.secured and authorization != f"Basic {allowed}":
            return 401, {"error_code": 401, "message": "Unauthorized"}
        if not path.startswith(BASE):
            return 404, {"error_code": 404, "message": "HTTP 404 Not Found"}
        found = self.documents.get(path.removeprefix(BASE))
        return (404, {"error_code": 40403, "message": "Schema not found"}) if found is None else (200, found)


@contextmanager
def registry(port: int = 0) -> Iterator[Registry]:
    """A registry that answers until the end of the block."""

    found = Registry()

    class Handler(Answering):
        def do_GET(self) -> None:
            status, document = found.answer(self.path, self.headers.get("Authorization"))
            body = document if isinstance(document, bytes) else json.dumps(document).encode()
            self.answer(status, body)

    with serving(Handler, port) as url:
        found.url = url + BASE
        yield found
