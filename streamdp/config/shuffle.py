"""The source part of a job configuration for learning with a separate shuffler."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator
from pydantic_core.core_schema import ValidationInfo

from streamdp.config.kafka import KafkaClientConfig


class ShuffleSourceConfig(KafkaClientConfig):
    """Three topics of one partition each, between the devices, the shuffler and the learner. See `protocol`.

    The shuffler forwards a batch when all its devices have answered. If `minimum_share` is below 1, it also forwards
    a batch `wait_seconds` after the first answer, if at least this share of the devices has answered. The share is
    part of the promise to the devices: all parties must use the same value, and it cannot change later.

    - `brokers`, `options`: see `KafkaClientConfig`.
    - `points`: the topic from the learner to the devices.
    - `messages`: the topic from the devices to the shuffler.
    - `shuffled`: the topic from the shuffler to the learner.
    - `minimum_share`: see above; above 0 and at most 1.
    - `wait_seconds`: see above; set if and only if `minimum_share` is below 1.
    - `shuffler_store`: the file of the shuffler's store. None: `<job>-shuffler.db`.
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
