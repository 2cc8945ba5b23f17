"""Schemas of a registry that has the HTTP API of Confluent's, as Karapace has, and Apicurio. Extra `avro`.

Confluent's own client needs four more packages, for tokens, rules and encryption; two calls are used here.
"""

from typing import Any
from urllib.parse import quote

from connectors.avroschemas import AvroSchema, parsed
from streamdp.errors import ConfigError, SourceError, SourceUnavailableError, needing

with needing("a schema registry", "avro"):
    import httpx

TIMEOUT_S, CONNECT_TIMEOUT_S = 5.0, 1.0
_ABSENT = (40401, 40402, 40403)
"""The registry's codes for a subject, a version and a schema that it does not have."""


class SchemaRegistry:
    """Asks a registry for schemas by their ids, at `/schemas/ids/{id}` under the address `url`.

    A user and a password are for basic authentication. `proxy` is the address of a proxy to ask it through; None: no
    proxy.
    """

    def __init__(
        self, url: str, user: str | None = None, password: str | None = None, proxy: str | None = None
    ) -> None:
        self._url = url
        self._http = httpx.Client(
            base_url=url,
            auth=None if user is None else (user, password or ""),
            timeout=httpx.Timeout(TIMEOUT_S, connect=CONNECT_TIMEOUT_S),
            limits=httpx.Limits(max_keepalive_connections=0),  # a schema is asked for once
            headers={"Accept": "application/vnd.schemaregistry.v1+json, application/json"},
            verify=httpx.create_ssl_context(),
            trust_env=False,  # no proxy and no password of the environment
            proxy=proxy,
        )

    def __call__(self, number: int) -> AvroSchema | None:
        """Return the schema with an id, `number`, with the named types of the schemas that it refers to.

        Returns None if the registry does not know the id. Raises `ConfigError` if the schema is not an Avro schema,
        `SourceUnavailableError` if the registry does not answer or fails, and `SourceError` if it refuses the call, or
        the address is not that of a registry.
        """
        if (found := self._ask(f"schemas/ids/{number}")) is None:
            return None
        if (kind := found.get("schemaType") or "AVRO") != "AVRO":
            raise ConfigError(f"it is of the type {kind!r:.20}, not an Avro schema")
        return parsed("it is", self._texts(found, set()))

    def _texts(self, found: dict[str, Any], asked: set[str]) -> list[str]:
        """The texts of the schemas that a schema refers to, each of them once, and its own as the last one."""
        texts: list[str] = []
        for reference in found.get("references") or ():
            try:
                path = f"subjects/{quote(reference['subject'], safe='')}/versions/{int(reference['version'])}"
            except (KeyError, TypeError, ValueError):
                raise self._not_a_registry(200) from None
            if path not in asked:
                asked.add(path)
                if (other := self._ask(path)) is None:
                    raise ConfigError("it refers to a schema that the registry does not have")
                texts += self._texts(other, asked)
        return [*texts, found["schema"]]

    def _ask(self, path: str) -> dict[str, object] | None:
        try:
            answer = self._http.get(path)
        except httpx.HTTPError as error:
            kind = type(error).__name__
            raise SourceUnavailableError(f"the schema registry {self._url} does not answer ({kind})") from None
        try:
            found = answer.json()
        except ValueError:
            found = None
        if answer.status_code == 200 and isinstance(found, dict) and isinstance(found.get("schema"), str):
            return found
        if answer.status_code == 404 and isinstance(found, dict) and found.get("error_code") in _ABSENT:
            return None
        if answer.status_code >= 500 or answer.status_code in (408, 429):
            raise SourceUnavailableError(f"the schema registry {self._url} answers with status {answer.status_code}")
        if answer.status_code in (401, 403):
            raise SourceError(f"the schema registry {self._url} refuses the call: check user and password")
        raise self._not_a_registry(answer.status_code)

    def _not_a_registry(self, status: int) -> SourceError:
        return SourceError(
            f"{self._url} does not answer as a schema registry (status {status}): check source.schema_registry"
        )
