"""Topics of a real broker: messages for them, and topics that go and come back."""

import time
from collections.abc import Iterable
from contextlib import closing

from kafka import KafkaAdminClient, KafkaProducer
from kafka.errors import TopicAlreadyExistsError

from servers.broker import create_topic
from tests.support.waiting import PATIENCE_S

Message = tuple[bytes | None, bytes | None]
"""The key and the value."""


def send(bootstrap: str, topic: str, messages: Iterable[Message], partition: int | None = None) -> None:
    """The brokers have the messages when this returns. Without a partition, their keys spread them."""
    options = {"linger_ms": 20, "batch_size": 1 << 20, "max_request_size": 20_000_000}
    with closing(KafkaProducer(bootstrap_servers=bootstrap, **options)) as producer:
        for key, value in messages:
            producer.send(topic, value, key, partition=partition)
        producer.flush()


def delete_and_create(bootstrap: str, topic: str, timeout_s: float = PATIENCE_S) -> None:
    """Make another topic of the same name, as soon as the brokers have forgotten the first one."""
    admin = KafkaAdminClient(bootstrap_servers=bootstrap)
    admin.delete_topics([topic])
    admin.close()
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            create_topic(bootstrap, topic)
            return
        except TopicAlreadyExistsError:
            assert time.monotonic() < deadline, "the brokers do not forget the topic"
            time.sleep(0.1)
