"""`streamdp produce`: send a CSV file to a Kafka topic."""

from typing import Annotated

import typer

from streamdp.cli.app import app
from streamdp.cli.common import TextSettings, need_stdin


@app.command(epilog="Example: streamdp produce flights.csv --topic flights --brokers localhost:9092")
def produce(
    file: Annotated[str, typer.Argument(metavar="DATA.CSV", help="A CSV file, or - for standard input.")],
    topic: Annotated[str, typer.Option(help="The topic to send the rows to.")],
    brokers: Annotated[str, typer.Option(envvar="STREAMDP_KAFKA", help="HOST:PORT[,HOST:PORT].")],
    key: Annotated[str | None, typer.Option(help="The column that identifies the person of a record.")] = None,
    partitions: Annotated[
        int | None, typer.Option(min=1, help="Create the topic with this many partitions if it does not exist.")
    ] = None,
    assignments: TextSettings = None,
) -> None:
    """Send the rows of a CSV file to a Kafka topic.

    They are JSON objects there; rows with the same key share a partition. With
    source.decimal, source.thousands or source.units, texts that are numbers in this
    notation are sent in the usual one, but for those of the key.
    """
    from streamdp.cli.kafka_job import produce as send
    from streamdp.cli.settings import file_like

    if file == "-":
        need_stdin()
    source = file_like(file, None, assignments or (), kind="csv")
    sent = send(source, topic, brokers, key, partitions)
    typer.echo(f"{sent:,} records sent to {topic}")
