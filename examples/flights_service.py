"""The service on real departures. Run with `make serve`; it prints its address, and learns until Ctrl-C.

The flights of January to November 2013 are sent to it as a program would send them, some hundred a second; December is
declared public and measures every commit.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from pathlib import Path

import polars as pl

from streamdp import datasets
from streamdp.client import Client
from streamdp.config.job import load_config
from streamdp.errors import ServiceError
from streamdp.runtime.signals import ended_by_sigterm
from streamdp.service.app import create_app
from streamdp.service.server import Server, listen

HERE = Path(__file__).parent
OUTPUT = HERE.parent / "demo-output"
CALL, PAUSE_S = 200, 0.5
"""Flights in a call, and the seconds from one call to the next."""


def send(address: str, rows: pl.DataFrame, job: str, features: list[str], stop: threading.Event) -> None:
    """Send flights until the end, or until the service is gone."""
    with Client(address, retry_s=5) as client:
        for start in range(0, rows.height, CALL):
            part = rows.slice(start, CALL).to_dicts()
            records = [
                {"x": {name: row[name] for name in features}, "y": row["late"], "subject": row["tailnum"]}
                for row in part
            ]
            try:
                client.learn(
                    job, records, key=f"flights {start}"
                )  # after a restart, calls of the day before count once
            except ServiceError:
                return
            if stop.wait(PAUSE_S):
                return


def main() -> None:
    OUTPUT.mkdir(exist_ok=True)
    for name, months in (("train.csv", datasets.TRAINING_MONTHS), ("holdout.csv", datasets.HOLDOUT_MONTHS)):
        if not (OUTPUT / name).exists():
            datasets.write_flights_csv(OUTPUT / name, months=months)
    config = load_config(HERE / "late-service.yaml")
    rows = pl.read_csv(OUTPUT / "train.csv").drop_nulls()
    stop = threading.Event()
    with listen("127.0.0.1", 8000) as listening, ended_by_sigterm(), suppress(KeyboardInterrupt):
        server = Server(create_app([config]), listening)
        arguments = (server.address, rows, config.job, list(config.schema_.features), stop)
        sender = threading.Thread(target=send, args=arguments)
        sender.start()
        try:
            server.serve_until_stopped()
        finally:
            stop.set()
            sender.join()


if __name__ == "__main__":
    main()
