"""The messages of local reports: the randomizer documents and the reports. docs/reports.md describes them.

There are two kinds of each: for models, and for statistics.

Every reader is strict, and its errors never show a value.
"""

import contextlib
import time
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Self, TypeVar

import pydantic_core
from pydantic import BeforeValidator, ConfigDict, Field, JsonValue, StrictInt, ValidationError, model_validator

from streamdp.config.definition import Definition
from streamdp.errors import BudgetError, RefusedReportError, SchemaError
from streamdp.estimators.declared import MOST_CELLS
from streamdp.privacy.guarantees import parse_budget
from streamdp.protocol.local_agreement import PROTOCOL, Agreed, LocalAgreement, Name, Spent, Wire, whole
from streamdp.protocol.statistics_agreement import StatisticsAgreement
from streamdp.scaling.search import Question

MOST_BYTES = 8 << 20
"""The most bytes of a randomizer document, and of a request with reports."""

MOST_OF_A_SUBJECT = 1000
"""The most characters of the subject of a report."""

MALFORMED = "malformed"
"""The reason of what is no report."""

_Whole = Annotated[int, Field(ge=0, lt=2**53), BeforeValidator(whole)]


class Below(Wire):
    """The question whether the value of a column is below a number."""

    column: Name  # a feature or the target, with bounds
    below: float  # in units of the bounds, [-1, 1]


class Within(Wire):
    """The question whether centre - within <= v < centre + within for the value v of a column."""

    column: Name
    centre: float  # in units of the bounds, [-1, 1], as `within`
    within: float = Field(gt=0)


Ask = Literal["gradient"] | Below | Within


def interval(ask: Below | Within) -> tuple[float, float]:
    """Return the interval [low, high) that a question is about."""
    return (float("-inf"), ask.below) if isinstance(ask, Below) else (ask.centre - ask.within, ask.centre + ask.within)


def ask_of(question: Question | None, columns: tuple[str, ...]) -> Ask:
    """Return a question of the learner as it is written; None: a gradient.

    `columns` are the encoded columns, and then the target.
    """
    if question is None:
        return "gradient"
    name, low, high = columns[question.column], float(question.low), float(question.high)
    if low == float("-inf"):
        return Below(column=name, below=high)
    return Within(column=name, centre=(low + high) / 2, within=(high - low) / 2)


_NONE: dict[str, JsonValue] = {"type": "null"}
_GRADIENT: dict[str, JsonValue] = {"ask": {"const": "gradient"}, "gradient": {"type": "array"}, "bit": _NONE}
_OF_GRADIENT: dict[str, JsonValue] = {"properties": _GRADIENT, "required": ["gradient"]}
_BIT: dict[str, JsonValue] = {"ask": {"type": "object"}, "bit": {"type": "boolean"}, "gradient": _NONE}
_OF_BIT: dict[str, JsonValue] = {"properties": _BIT, "required": ["ask", "bit"]}


class Reported(Wire):
    """What each report has."""

    version: _Whole  # of the document that was answered
    budget: Spent  # what the report spends
    id: Annotated[str, Field(min_length=1, max_length=200)]  # the report counts once, however often it is sent
    subject: Annotated[str, Field(max_length=MOST_OF_A_SUBJECT)] | StrictInt | None = (
        None  # the person that the record is about
    )


class WireReport(Reported):
    """One report to a model: of a gradient, or of a bit."""

    model_config = Wire.model_config | ConfigDict(json_schema_extra={"oneOf": [_OF_GRADIENT, _OF_BIT]})

    ask: Ask = "gradient"  # the question that was answered, as the document has it
    gradient: list[float] | None = None  # (d,) noisy, if a gradient was asked for
    bit: bool | None = None  # noisy, if a bit was asked for

    @model_validator(mode="after")
    def _answers(self) -> Self:
        if (self.gradient is None) != (self.ask != "gradient") or (self.bit is None) != (self.ask == "gradient"):
            raise ValueError("expected an answer to the question")
        return self


class WireAnswer(Reported):
    """One report about a statistic."""

    statistic: Annotated[int, Field(ge=0)]  # the index of the part of the agreement that it is about
    # the noisy cells; of heavy hitters the length of the prefix, the rows of the hash, and its noisy value
    answer: list[Annotated[int, Field(ge=0, lt=2**31)]] = Field(max_length=MOST_CELLS)


class Issued(NamedTuple):
    """A randomizer document as it is sent: JSON `text` and its entity tag, with quotes."""

    text: bytes
    etag: str
    expires_at: float  # as in the document


class Shown(Wire):
    """What each document has beside the agreement."""

    agrees: ClassVar[type[Agreed]]
    """Its part that never changes."""
    reads: ClassVar[type[Reported]]
    """The reports that answer it."""

    agreement: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]  # `Agreed.digest`
    version: _Whole  # the number of the job's commits
    expires_at: float  # seconds since 1970 (UTC): a device asks again before it answers later than this

    @property
    def agreed(self) -> Any:
        """See `Agreed.agreed`."""
        return self.agrees.model_construct(**{name: getattr(self, name) for name in self.agrees.model_fields})

    def check(self, found: Any) -> None:
        """Raise `RefusedReportError` if a report does not answer what this asks."""

    def issued(self, before: Issued | None, now: float | None, lifetime_s: float) -> Issued:
        """Return this document with at least half of its lifetime left: as it was issued `before`, or anew."""
        now = time.time() if now is None else now
        if before is not None and before.expires_at - now >= lifetime_s / 2:
            return before
        expires_at = float(int(now + lifetime_s))
        text = self.model_copy(update={"expires_at": expires_at}).model_dump_json(by_alias=True)
        return Issued(text.encode(), f'"{self.agreement[:16]}-{self.version}-{expires_at:.0f}"', expires_at)


class Document(Shown, LocalAgreement):
    """The randomizer document of a model: the agreement, and all that changes from version to version."""

    agrees, reads = LocalAgreement, WireReport

    # (d,), where the gradient is taken, in units of `scales`
    theta: list[float] = Field(min_length=1, max_length=MOST_BYTES // 2)
    # (p + 1, 2): centre and scale of each column, and of the target
    scales: list[Annotated[list[float], Field(min_length=2, max_length=2)]] = Field(min_length=2)
    ask: Ask  # what the next report answers

    def check(self, found: WireReport) -> None:
        """See `Shown.check`: `question` for another question, `length` for another number of parameters."""
        if found.ask != self.ask:
            raise RefusedReportError("question")
        if found.gradient is not None and len(found.gradient) != len(self.theta):
            raise RefusedReportError("length")


class StatisticsDocument(Shown, StatisticsAgreement):
    """The randomizer document of statistics."""

    agrees, reads = StatisticsAgreement, WireAnswer

    # of each part: for a quantile the thresholds of its groups, in units of the bounds, [-1, 1]; else none
    thresholds: list[list[Annotated[float, Field(ge=-1, le=1)]]]

    def check(self, found: WireAnswer) -> None:
        """See `Shown.check`: `question` for no part of the agreement."""
        if found.statistic >= len(self.statistics):
            raise RefusedReportError("question")


AnyDocument = Document | StatisticsDocument


def kind_of(agreement: Agreed) -> type[AnyDocument]:
    """Return the kind of the documents with an agreement."""
    return Document if isinstance(agreement, LocalAgreement) else StatisticsDocument


def agreement_of(job: str, definition: Definition) -> LocalAgreement | StatisticsAgreement:
    """Return the agreement of a `job`. Raises `ConfigError` if devices cannot report to it."""
    kind = LocalAgreement if definition.has_model else StatisticsAgreement
    return kind.of(job, definition)


def read_document(text: bytes) -> AnyDocument:
    """Read a randomizer document from JSON `text`. Raises `SchemaError` if it is too long or none."""
    if len(text) > MOST_BYTES:
        raise SchemaError(f"randomizer: expected at most {MOST_BYTES} bytes")
    found: AnyDocument | None = None
    problem = ""
    try:
        given = pydantic_core.from_json(text)
        of_statistics = isinstance(given, dict) and "statistics" in given
        found = (StatisticsDocument if of_statistics else Document).model_validate_json(text)
    except ValidationError as error:
        problem = ".".join(map(str, error.errors(include_input=False, include_url=False)[0]["loc"]))
    except ValueError:
        problem = "the top"
    if found is None:
        raise SchemaError(f"randomizer: expected a document of protocol {PROTOCOL}, not so at {problem or 'the top'}")
    return found


AnyReport = TypeVar("AnyReport", bound=Reported)


def read_report(item: object, kind: type[AnyReport]) -> AnyReport:
    """Read a report of a kind from a JSON value `item`, or raise `RefusedReportError`."""
    found: AnyReport | None = None
    with contextlib.suppress(ValidationError, BudgetError):
        given = kind.model_validate(item)
        parse_budget(given.budget)
        found = given
    if found is None:
        raise RefusedReportError(MALFORMED)
    return found
