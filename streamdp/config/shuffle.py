"""The parts of a job configuration for learning with a separate shuffler."""

import math
from typing import TYPE_CHECKING, Literal

from pydantic import Field, field_validator
from pydantic_core.core_schema import ValidationInfo

from streamdp.config.kafka import KafkaClientConfig
from streamdp.config.settings import PROXY, Secret, Settings, SourceSettings, like, secret
from streamdp.privacy.guarantees import ApproxDP, PureDP
from streamdp.privacy.shuffled_reports import LEAST_DELTA, shuffled_epsilon
from streamdp.privacy.statement import in_words

if TYPE_CHECKING:
    from connectors.learnerlink import LearnerLink


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


class MixerSourceConfig(SourceSettings):
    """The shuffler of devices' reports, which `streamdp serve` runs. See `protocol.report_mixer`.

    - `learner`: the address of the service that learns the job.
    - `token`: `{env: NAME}` or `{file: PATH}` of its bearer token, with the scope `report`. None: it needs none.
    - `proxy`: the address of a proxy to reach it through. None: no proxy, whatever the environment says.
    """

    type: Literal["mixer"]
    learner: str = Field(pattern=like(r"^https?://[^/@?#]+(/[^@?#]*)?$", "an address without a login, as https://HOST"))
    token: Secret | None = None
    proxy: str | None = Field(default=None, pattern=PROXY)

    def build(self, job: str, people: int) -> "LearnerLink":
        """Make the client of the learner of a `job`, for batches of `people`.

        Raises `ConfigError` if the token cannot be read.
        """
        from connectors.learnerlink import LearnerLink

        return LearnerLink(self.learner, job, people, secret("source.token", self.token), self.proxy)


class ShuffledConfig(Settings):
    """The shuffler through which all reports of people's devices come; see docs/proofs/shuffled_reports.md.

    - `people`: how many reports of one document the shuffler shows at once, and no fewer.
    - `delta`: the delta of what is promised if the shuffler is trusted.
    """

    people: int = Field(ge=2, le=10**6)
    delta: float = Field(default=1e-6, ge=LEAST_DELTA, le=0.1)

    def of(self, spend: PureDP) -> ApproxDP:
        """What is promised of a report that spends so much, if shuffler and people are honest: four decimals, up."""
        epsilon = shuffled_epsilon(spend.epsilon, self.people, self.delta)
        return ApproxDP(max(math.ceil(epsilon * 1e4) / 1e4, 1e-4), self.delta)

    def said(self, spend: PureDP) -> str:
        """The same as a sentence for a statement, after the promise that needs no trust."""
        return (
            f"If people trust a shuffler that shows the reports of at least {self.people:,} honest people at once, "
            f"{in_words(self.of(spend))}. If it lies, the promise above holds."
        )
