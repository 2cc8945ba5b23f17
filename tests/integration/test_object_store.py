"""A folder of Parquet in an object store: a run that is killed goes on after its last commit.

The store is a server of the few calls of S3 that are needed; with STREAMDP_S3, the address of another server, such as
moto's, which is not among the packages of the tests because it needs an older python-dateutil.
"""

import os
import re
import time
import urllib.request
import uuid
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import polars as pl
import pytest
import yaml

from streamdp.config.job import make_config
from streamdp.store.store import Store
from tests.support.commands import Quick, environment
from tests.support.serving import Answering, serving
from tests.support.waiting import wait_until
from tests.support.zygote import Forked

FILES, ROWS = 4, 5_000


class Objects(Answering):
    """Keeps objects: PUT, GET of a range, and lists of a prefix. The rows of the file `held` wait."""

    protocol_version = "HTTP/1.1"
    kept: dict[str, bytes] = {}  # noqa: RUF012
    held = "none"

    def do_PUT(self) -> None:
        self.kept[self.path] = self.body()
        self.answer(200, b"")

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        if url.query:
            start = f"{url.path}/{parse_qs(url.query)['prefix'][0]}"
            found = "".join(
                f"<Contents><Key>{name.removeprefix(url.path + '/')}</Key><Size>{len(data)}</Size>"
                '<LastModified>2026-01-01T00:00:00.000Z</LastModified><ETag>"e"</ETag></Contents>'
                for name, data in self.kept.items()
                if name.startswith(start)
            )
            self.answer(200, f"<ListBucketResult><IsTruncated>false</IsTruncated>{found}</ListBucketResult>".encode())
            return
        data = self.kept[self.path]
        first, last = re.fullmatch(r"bytes=(\d*)-(\d*)", self.headers["Range"]).groups()  # type: ignore[union-attr]
        while self.path.endswith(Objects.held) and first not in ("", "0"):
            time.sleep(0.01)
        begin = int(first) if first else max(0, len(data) - int(last))
        end = min(int(last), len(data) - 1) if first and last else len(data) - 1
        self.answer(206, data[begin : end + 1], {"Content-Range": f"bytes {begin}-{end}/{len(data)}"})

    def answer(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        kept = {"ETag": '"e"', "Last-Modified": "Thu, 01 Jan 2026 00:00:00 GMT"}
        super().answer(status, body, kept | (headers or {}))


@pytest.fixture
def objects() -> Iterator[str]:
    """The address of a server of objects."""
    if given := os.environ.get("STREAMDP_S3"):
        yield given
        return
    with serving(Objects) as url:
        yield url


def put(address: str, data: bytes = b"") -> None:
    request = urllib.request.Request(address, data=data, method="PUT", headers={"Content-Type": "application/x"})
    urllib.request.urlopen(request).close()


def credentials(objects: str) -> dict[str, str]:
    """The variables of the environment that name the server and its user."""
    aws = {"ENDPOINT_URL": objects, "ALLOW_HTTP": "true", "REGION": "us-east-1"}
    aws |= {"ACCESS_KEY_ID": "key", "SECRET_ACCESS_KEY": "secret"}
    return {f"AWS_{name}": value for name, value in aws.items()}


@pytest.mark.parametrize("address", ["in/", "in/0.parquet"])
def test_init_and_check_read_what_run_reads(objects: str, tmp_path: Path, quick: Quick, address: str) -> None:
    bucket = f"b{uuid.uuid4().hex[:12]}"
    put(f"{objects}/{bucket}")
    file = BytesIO()
    pl.DataFrame({"x": [i % 9 / 9 for i in range(400)], "y": [i % 5 / 5 for i in range(400)]}).write_parquet(file)
    put(f"{objects}/{bucket}/in/0.parquet", file.getvalue())
    given = credentials(objects)
    quick.error(0, "init", f"s3://{bucket}/{address}", "--target", "y", "--public", **given)
    assert yaml.safe_load((tmp_path / "job.yaml").read_text())["source"]["path"] == f"s3://{bucket}/{address}"
    assert "400 of 400 records fit the schema (100.0 %)" in quick.output("check", "job.yaml", **given)


def test_kills_lose_and_repeat_no_record(objects: str, tmp_path: Path) -> None:
    bucket = f"b{uuid.uuid4().hex[:12]}"
    put(f"{objects}/{bucket}")
    for name in range(FILES):
        file = BytesIO()
        pl.DataFrame({"x": [i % 9 / 9 for i in range(ROWS)], "y": [i % 5 / 5 for i in range(ROWS)]}).write_parquet(file)
        put(f"{objects}/{bucket}/in/{name}.parquet", file.getvalue())
    put(f"{objects}/{bucket}/in/_SUCCESS")
    settings = {
        "job": "far",
        "source": {"type": "parquet", "path": f"s3://{bucket}/in/"},
        "schema": {"features": {"x": [-1, 1]}, "target": {"column": "y", "bounds": [-2, 2]}},
        "model": {"trust": "nobody", "budget": "eps=1"},
        "commit": {"records": 250},
    }
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(settings))
    given = environment(None, **credentials(objects))
    written = tmp_path / "out"
    for held in ("1.parquet", "3.parquet", "none"):
        Objects.held = held
        with written.open("wb") as out:
            run = Forked(["run", "job.yaml"], cwd=tmp_path, env=given, stdout=out, stderr=out)
            if held != "none":
                wait_until(lambda run=run: run.poll() is not None or written.read_bytes().count(b'"commit"') > 3)
                run.kill()
            code = run.wait()
        assert code == (0 if held == "none" else -9), written.read_text()
    with Store(tmp_path / "far.db", "far", make_config(settings).fingerprint()) as store:
        snapshot = store.load()
        assert (snapshot.counts.learned, snapshot.counts.refused, snapshot.counts.dead_letters) == (FILES * ROWS, 0, 0)
