"""Topics of a real broker that go and come back."""

from __future__ import annotations

import time

from kafka import KafkaAdminClient
from kafka.errors import TopicAlreadyExistsError

from servers.broker import create_topic


def delete_and_create(bootstrap: str, topic: str, timeout_s: float = 60.0) -> None:
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
