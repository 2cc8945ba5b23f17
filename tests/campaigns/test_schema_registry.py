"""A real schema registry, Apicurio's with the API of Confluent's. `test_avroschemas.py` has the fast twin."""

import io
import json
import signal
import tarfile
from pathlib import Path
from typing import Any

import fastavro
import httpx
import numpy as np
import pytest

from connectors.avrorows import AvroDecoder
from connectors.schemaregistry import SchemaRegistry
from servers.jars import jars, program
from servers.process import START_TIMEOUT_S, Process, free_ports
from streamdp.data.schema import Schema
from streamdp.errors import SourceUnavailableError

pytestmark = pytest.mark.campaign


def record(**fields: Any) -> dict[str, Any]:
    listed = [{"name": name, "type": kind} for name, kind in fields.items()]
    return {"type": "record", "name": "R", "namespace": "some.space", "fields": listed}


def answers(url: str) -> bool:
    try:
        return httpx.get(f"{url}/subjects").status_code == 200
    except httpx.HTTPError:
        return False


def test_a_real_registry_has_the_schemas_of_messages(tmp_path: Path) -> None:
    (archive,) = jars("registry.xml", "apicurio-2.6.13").iterdir()
    with tarfile.open(archive) as packed:
        packed.extractall(tmp_path, filter="data")
    (jar,) = tmp_path.glob("*-runner.jar")
    port = free_ports(tmp_path, ["registry"])["registry"]
    url = f"http://127.0.0.1:{port}/apis/ccompat/v7"
    settings = {"http.host": "127.0.0.1", "http.port": port}
    command = [program("java"), "-Xmx300m", *(f"-Dquarkus.{name}={value}" for name, value in settings.items())]
    decoder = AvroDecoder(writers=SchemaRegistry(url))
    with pytest.raises(SourceUnavailableError):
        decoder([b"\0\0\0\0\1"], np.arange(1), {}, Schema({"a": (-10, 10)}, "t"))
    server = Process([*command, "-jar", str(jar)], tmp_path / "registry.log")
    try:
        server.wait_until(lambda: answers(url), "the registry", START_TIMEOUT_S)

        def put(subject: str, schema: Any, references: tuple[dict[str, Any], ...] = ()) -> bytes:
            document = {"schema": json.dumps(schema), "schemaType": "AVRO", "references": references}
            number = httpx.post(f"{url}/subjects/{subject}/versions", json=document).raise_for_status().json()["id"]
            return b"\0" + int(number).to_bytes(4, "big")

        def written(schema: Any, item: Any) -> bytes:
            out = io.BytesIO()
            fastavro.schemaless_writer(out, fastavro.parse_schema(schema), item)
            return out.getvalue()

        first, other = record(a="int", t="int"), record(t="int", note=["null", "string"], a="int")
        raw = [
            put("first", first) + written(first, {"a": 5, "t": 2}),
            put("other", other) + written(other, {"a": 5, "t": 2, "note": "x"}),
        ]
        put("place", {"type": "record", "name": "some.Place", "fields": [{"name": "c", "type": "int"}]})
        reference = {"name": "some.Place", "subject": "place", "version": 1}
        raw.append(put("far", record(a="int", p="some.Place", t="int"), (reference,)) + b"\x0a\x06\x04")
        raw.append(b"\0\x0f\0\0\0" + raw[0][5:])
        batch = decoder(raw, np.arange(4), {}, Schema({"a": (-10, 10)}, "t"))
    finally:
        server.end(signal.SIGTERM)
    assert (batch.X.ravel().tolist(), batch.y.tolist()) == ([0.5] * 3, [2.0] * 3)
    assert [(d.position, d.reason, d.column) for d in batch.dead] == [(3, "unknown_schema", None)]
