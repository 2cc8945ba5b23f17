"""The documents of the service, for its OpenAPI description. Answers are built from plain values, and tests compare."""

from typing import Annotated, Any, ClassVar, NotRequired

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, with_config
from typing_extensions import TypedDict

from streamdp.data.subjects import subject_bytes
from streamdp.protocol.reports import WireAnswer, WireReport

MAX_RECORDS = 10_000
"""The most records or reports of a call."""


class Summary(BaseModel):
    """What a job has learned."""

    job: str
    estimator: str
    version: int = Field(description="The number of the commit; 0 before the first one.")
    learned: int
    refused: int
    left_out: int
    dead: int = Field(description="Records that do not fit the schema: the dead letters.")
    waiting: int = Field(description="Records that wait for their commit, for example in an open window.")
    trouble: str | None = Field(description="Why the store or the source cannot be used now; null if they can.")
    committed_at: float | None = Field(description="In seconds since 1970 (UTC); null before the first commit.")


class Unusable(BaseModel):
    """A job that is not served, and why."""

    job: str
    trouble: str


class Models(BaseModel):
    """All jobs."""

    models: list[Summary]
    unusable: list[Unusable]


class GuaranteeAnswer(BaseModel):
    """The largest budget of a record, and what it means. No budget is named before the first record."""

    epsilon: float | None = None
    delta: float | None = None
    mu: float | None = None
    neighbours: str
    trust: str
    private: bool


class ModelAnswer(Summary):
    """One job."""

    schema_: dict[str, Any] = Field(alias="schema")
    guarantee: GuaranteeAnswer
    statement: str
    doubts: list[str]
    unpublished: list[str] = Field(description="Why sinks have not taken the last commit, one sentence for each.")
    validation: dict[str, object] | None = None
    change: str | None = None
    last_change: int | None = None


class WeightAnswer(BaseModel):
    """One coefficient in original units."""

    name: str
    value: float
    low: float | None
    high: float | None
    settles_at: int | None
    unit: str


Sorted = list[float] | list[str | list[float]]
"""A bin [low, high]; or one category or bin of each of several columns."""


class Statistic(BaseModel):
    """One number of a statistic; null where too little is known."""

    window: str | None = None
    statistic: str
    group: str | Sorted | None
    item: str | float | Sorted | None
    value: float | None
    low: float | None
    high: float | None
    doubt: str | None = Field(None, description="Why not to trust the number. Left out if there is no such reason.")


class StatisticsAnswer(BaseModel):
    """All statistics."""

    version: int
    statistics: list[Statistic]


class Weights(BaseModel):
    """All coefficients."""

    version: int
    weights: list[WeightAnswer]
    doubts: list[str]


class Predictions(BaseModel):
    """The predictions in the order of the records; while nothing is learned, each is null."""

    version: int
    predictions: list[str | float | None]
    probabilities: list[dict[str, float]] | None
    doubts: list[str] = Field(description="The reasons to doubt the model, as sentences.")


class DeadLetterAnswer(BaseModel):
    """A record that was not learned because it does not fit, and which of its columns or fields does not."""

    index: int
    reason: str
    column: str | None = None


class LearnAnswer(BaseModel):
    """What became of the records of a call, after their commit."""

    version: int
    learned: int
    refused: int
    left_out: int = Field(description="Records below their cap that are not in a release: it has others of the person.")
    dead: list[DeadLetterAnswer]


def _key(value: Any) -> str:
    return (subject_bytes(value) or b"").decode("utf-8", "surrogatepass")


Id = Annotated[str, Field(min_length=1, max_length=256), BeforeValidator(_key, json_schema_input_type=str | int)]
"""The id of a record: the key of a value by the rule of `data.subjects`, as text."""


class Sent(BaseModel):
    """What a caller sends: nothing is converted, and unknown fields are refused."""

    model_config = ConfigDict(extra="forbid", strict=True)


class PredictCall(Sent):
    """Records to predict: the raw features by name; and the ids of those whose labels come later."""

    FORM: ClassVar = '{"records": [{...}, ...], "ids": [...] or none} and nothing else'

    records: list[dict[str, Any]] = Field(max_length=MAX_RECORDS)
    ids: list[Id | None] | None = Field(None, description="One for each record; null for a record without one.")


@with_config(Sent.model_config)
class LearnRecord(TypedDict):
    """A record, or the label of an earlier prediction: its `id` and `y`. Jobs with statistics have no `y`."""

    x: NotRequired[dict[str, Any] | None]
    y: NotRequired[str | int | float | bool | None]
    subject: NotRequired[str | int | None]
    budget: NotRequired[float | None]
    id: NotRequired[Id | None]


class LearnCall(Sent):
    """Records to learn."""

    FORM: ClassVar = '{"records": [{"x": {...}, "y": ..., "subject", "budget", "id"}, ...]} and nothing else'

    records: list[LearnRecord] = Field(max_length=MAX_RECORDS)


class ReportsCall(Sent):
    """Reports of devices: see docs/reports.md. One that does not fit is not learned, and the others are."""

    reports: list[WireReport | WireAnswer] = Field(max_length=MAX_RECORDS)


class Health(BaseModel):
    """The process is up, or every store and source can be used."""

    status: str


def body(kind: type[BaseModel]) -> dict[str, Any]:
    """The description of a body that the route parses by itself."""
    schema = kind.model_json_schema()
    content = {"schema": _inlined(schema, schema.pop("$defs", {})), "example": EXAMPLES[kind]}
    return {"requestBody": {"required": True, "content": {"application/json": content}}}


def _inlined(schema: object, definitions: dict[str, object]) -> object:
    """A schema with the `definitions` in the place of their references, which are to another document."""
    if isinstance(schema, list):
        return [_inlined(part, definitions) for part in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        return _inlined(definitions[schema["$ref"].rpartition("/")[2]], definitions)
    return {key: _inlined(part, definitions) for key, part in schema.items()}


def answers(kind: type[BaseModel]) -> dict[int | str, dict[str, object]]:
    """The description of what a route answers if all is well, with an example."""
    return {200: {"model": kind, "content": {"application/json": {"example": EXAMPLES[kind]}}}}


IDEMPOTENT: dict[str, object] = {
    "parameters": [
        {
            "name": "Idempotency-Key",
            "in": "header",
            "description": "A retry with the same key and body counts once.",
            "schema": {"type": "string", "minLength": 1, "maxLength": 256},
        }
    ]
}
"""The description of the header that makes a retry count once."""

ONE_JOB: dict[str, object] = {
    "parameters": [
        {"name": "job", "in": "query", "description": "Asks for one job only.", "schema": {"type": "string"}}
    ]
}
"""The description of the parameter that asks for one job."""


def text(media_type: str, example: str) -> dict[int | str, dict[str, Any]]:
    """The description of an answer that is text, with an example."""
    return {200: {"content": {media_type: {"example": example}}}}


_SUMMARY = {"job": "delays", "estimator": "LDPASGDClassifier", "version": 4, "learned": 2000, "refused": 3}
_SUMMARY |= {"left_out": 0, "dead": 1, "waiting": 0, "trouble": None, "committed_at": 1795912639.1}
_MODEL = _SUMMARY | {
    "schema": {"features": {"hour": [0, 24]}, "target": {"column": "late", "classes": ["False", "True"]}},
    "guarantee": {"epsilon": 1.0, "neighbours": "one record is replaced", "trust": "nobody", "private": True},
    "statement": "Privacy statement after 2,000 records learned and 3 refused. ...",
    "doubts": [],
    "unpublished": [],
}
_LATE = {"name": "hour", "value": 0.07, "low": 0.05, "high": 0.09, "settles_at": None, "unit": "score per unit of hour"}
_MEAN = {"statistic": "mean delay", "group": "JFK", "item": None, "value": 12.4, "low": 12.1, "high": 12.7}
EXAMPLES: dict[type[BaseModel], dict[str, object]] = {
    Models: {"models": [_SUMMARY], "unusable": []},
    ModelAnswer: _MODEL,
    Weights: {"version": 4, "weights": [_LATE], "doubts": []},
    StatisticsAnswer: {"version": 4, "statistics": [_MEAN]},
    PredictCall: {"records": [{"dep_delay": 9, "hour": 8}]},
    Predictions: {
        "version": 4,
        "predictions": ["True"],
        "probabilities": [{"False": 0.25, "True": 0.75}],
        "doubts": [],
    },
    LearnCall: {"records": [{"x": {"dep_delay": 9, "hour": 8}, "y": "True", "subject": "N14228"}]},
    LearnAnswer: {"version": 5, "learned": 1, "refused": 0, "left_out": 0, "dead": []},
    ReportsCall: {"reports": [{"version": 4, "budget": "eps=1", "id": "3f6c", "gradient": [1.3, -0.4, 2.1]}]},
    Health: {"status": "up"},
}
"""A body or an answer of each call, as the service's page of calls shows it."""
