"""The part of a job in writing that says how its three parties meet."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator
from pydantic_core.core_schema import ValidationInfo

from streamdp.config.kafka import KafkaClientConfig


class ShuffleSourceConfig(KafkaClientConfig):
    """Three topics of one partition each, between the devices, the shuffler and the learner. See `protocol`.

    `brokers` is `host:port[,host:port]`, by default what STREAMDP_KAFKA says. A batch is forwarded when all of its
    people have answered, or `wait_seconds` after the first of them did if at least `minimum_share` of them have. The
    share is part of what people are promised: all parties must have the same, and it cannot change later. The
    shuffler's store is `shuffler_store`, `<job>-shuffler.db` by default. `options` are those of `kafka.KafkaConsumer`;
    a value may be `{env: NAME}` or `{file: PATH}`, and a password must be.
    """

    type: Literal["shuffle"]
    points: str = Field(min_length=1)
    messages: str = Field(min_length=1)
    shuffled: str = Field(min_length=1)
    minimum_share: float = Field(default=1.0, gt=0, le=1)
    wait_seconds: float | None = Field(default=None, gt=0, validate_default=True)
    shuffler_store: str | None = None

    @field_validator("messages", "shuffled")
    @classmethod
    def _topics_of_their_own(cls, value: str, info: ValidationInfo) -> str:
        if value in (info.data.get("points"), info.data.get("messages")):
            raise ValueError("expected three different topics")
        return value

    @field_validator("wait_seconds")
    @classmethod
    def _waits_for_fewer(cls, value: float | None, info: ValidationInfo) -> float | None:
        share = info.data.get("minimum_share")
        if share is not None and (share < 1) != (value is not None):
            raise ValueError("wait_seconds and a minimum_share below 1 go together")
        return value
