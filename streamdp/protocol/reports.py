"""The messages of local reports: the randomizer document and the report. docs/reports.md describes them.

Every reader is strict, and its errors never show a value.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import BeforeValidator, ConfigDict, Field, JsonValue, StrictInt, ValidationError

from streamdp.errors import BudgetError, RefusedReportError, SchemaError
from streamdp.privacy.guarantees import parse_budget
from streamdp.protocol.local_agreement import PROTOCOL, LocalAgreement, Name, Spent, Wire, whole

if TYPE_CHECKING:
    from streamdp.scaling.search import Question

MOST_BYTES = 8 << 20
"""The most bytes of a randomizer document, and of a request with reports."""

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


class Document(LocalAgreement):
    """The randomizer document: the agreement, and all that changes from version to version."""

    agreement: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]  # `LocalAgreement.digest`
    version: _Whole  # the number of the job's commits
    expires_at: float  # seconds since 1970 (UTC): a device asks again before it answers later than this
    # (d,), where the gradient is taken, in units of `scales`
    theta: list[float] = Field(min_length=1, max_length=MOST_BYTES // 2)
    # (p + 1, 2): centre and scale of each column, and of the target
    scales: list[Annotated[list[float], Field(min_length=2, max_length=2)]] = Field(min_length=2)
    ask: Ask  # what the next report answers

    @property
    def agreed(self) -> LocalAgreement:
        """The part that never changes."""
        return LocalAgreement.model_construct(**{name: getattr(self, name) for name in LocalAgreement.model_fields})


def read_document(text: bytes) -> Document:
    """Read a randomizer document from JSON `text`. Raises `SchemaError` if it is too long or none."""
    if len(text) > MOST_BYTES:
        raise SchemaError(f"randomizer: expected at most {MOST_BYTES} bytes")
    found: Document | None = None
    problem = ""
    try:
        found = Document.model_validate_json(text)
    except ValidationError as error:
        problem = ".".join(map(str, error.errors(include_input=False, include_url=False)[0]["loc"]))
    if found is None:
        raise SchemaError(f"randomizer: expected a document of protocol {PROTOCOL}, not so at {problem or 'the top'}")
    return found


_NONE: dict[str, JsonValue] = {"type": "null"}
_GRADIENT: dict[str, JsonValue] = {"ask": {"const": "gradient"}, "gradient": {"type": "array"}, "bit": _NONE}
_OF_GRADIENT: dict[str, JsonValue] = {"properties": _GRADIENT, "required": ["gradient"]}
_BIT: dict[str, JsonValue] = {"ask": {"type": "object"}, "bit": {"type": "boolean"}, "gradient": _NONE}
_OF_BIT: dict[str, JsonValue] = {"properties": _BIT, "required": ["ask", "bit"]}


class WireReport(Wire):
    """One report: of a gradient, or of a bit."""

    model_config = Wire.model_config | ConfigDict(json_schema_extra={"oneOf": [_OF_GRADIENT, _OF_BIT]})

    version: _Whole  # of the document that was answered
    budget: Spent  # what the report spends
    id: Annotated[str, Field(min_length=1, max_length=200)]  # the report counts once, however often it is sent
    ask: Ask = "gradient"  # the question that was answered, as the document has it
    gradient: list[float] | None = None  # (d,) noisy, if a gradient was asked for
    bit: bool | None = None  # noisy, if a bit was asked for
    subject: Annotated[str, Field(max_length=1000)] | StrictInt | None = None  # the person that the record is about


def read_report(item: object) -> WireReport:
    """Read a report from a JSON value `item`, or raise `RefusedReportError`."""
    found: WireReport | None = None
    with_faults = False
    try:
        found = WireReport.model_validate(item)
        parse_budget(found.budget)
    except (ValidationError, BudgetError):
        with_faults = True
    if with_faults or found is None or (found.gradient is None) != (found.ask != "gradient"):
        raise RefusedReportError(MALFORMED)
    if (found.bit is None) != (found.ask == "gradient"):
        raise RefusedReportError(MALFORMED)
    return found
