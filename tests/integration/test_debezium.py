"""The recipe for Debezium, as it stands on its page, learns the changes of a table from a broker."""

import base64
import json
import time
from collections import Counter
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from connectors import encode_json
from servers.broker import Broker
from streamdp.cli.kafka_job import run_worker
from streamdp.config.job import NOTHING, load_config
from streamdp.store.snapshot import Counts
from tests.support.documents import blocks
from tests.support.kafka_job import counts
from tests.support.paths import ROOT
from tests.support.topics import send

RECIPE = next(text for _, text in blocks((ROOT / "docs/howto/kafka.md").read_text()) if "orders.yaml" in text)


def decimal(text: str, places: int) -> str:
    """As Kafka Connect's JsonConverter writes it: the bytes of Java's BigInteger in base64."""
    unscaled = int(Decimal(text).scaleb(places))
    size = (unscaled if unscaled >= 0 else ~unscaled).bit_length() // 8 + 1
    return base64.b64encode(unscaled.to_bytes(size, "big", signed=True)).decode()


def change(op: str, after: dict[str, Any] | None, before: dict[str, Any] | None = None) -> bytes:
    source = {"version": "3.0.0.Final", "connector": "postgresql", "db": "shop", "table": "orders", "lsn": 24023128}
    payload = {"before": before, "after": after, "source": source, "op": op, "ts_ms": 1_700_000_000_000}
    schema = {"type": "struct", "optional": False, "name": "shop.public.orders.Envelope", "fields": []}
    return json.dumps({"schema": schema, "payload": payload}).encode()


def row(i: int, now_us: int) -> dict[str, Any]:
    return {
        "id": i, "customer": 1000 + i, "weight": decimal(f"{i % 50}.125", 3), "express": i % 2 == 0,
        "country": ("FR", "DE", "PT", None)[i % 4], "amount": decimal(f"{i}.25", 2), "ordered": now_us - i,
    }  # fmt: skip


@pytest.mark.slow
def test_the_recipe_learns_the_changes_of_a_table(
    broker: Broker, make_topic: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STREAMDP_KAFKA", broker.bootstrap)
    now_us, topic = time.time_ns() // 1000, make_topic(1)
    rows = [row(i, now_us) for i in range(300)]
    messages: list[bytes | None] = [change("c", one) for one in rows]
    messages += [change("u", rows[1] | {"express": True}, rows[1]), change("d", None, rows[2]), None]
    messages.append(change("c", rows[3] | {"amount": "12.50"}))
    (tmp_path / "orders.yaml").write_text(RECIPE)
    config = load_config(tmp_path / "orders.yaml", [(("source", "topic"), topic)])
    batch = encode_json(messages[:300], np.arange(300), {}, config.build_schema())
    assert batch.dead == []
    amounts = np.array([float(f"{i}.25") for i in range(300)])
    weights = np.array([float(f"{i % 50}.125") for i in range(300)])
    assert np.array_equal(batch.y, amounts)
    assert batch.X[:, 0] == pytest.approx(weights / 25 - 1)
    assert batch.times is not None
    assert batch.times == pytest.approx(now_us / 1e6, abs=1)
    send(broker.bootstrap, topic, [(b"{}", value) for value in messages])
    run_worker(config, max_records=len(messages), idle_seconds=20, accepted=NOTHING)
    assert counts(config.store_path, "orders") == Counts(301, 0, 3)
    dead = [json.loads(line) for line in (tmp_path / "dead.jsonl").read_text().splitlines()]
    assert Counter((letter["reason"], letter["column"]) for letter in dead) == {
        ("missing", "payload.after.weight"): 1, ("tombstone", None): 1, ("not_a_number", "payload.after.amount"): 1,
    }  # fmt: skip
