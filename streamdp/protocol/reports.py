"""The messages of local reports: the randomizer document and the report. docs/reports.md describes them.

Every reader is strict, and its errors never show a value.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BeforeValidator, Field, StrictInt, ValidationError

from streamdp.errors import BudgetError, RefusedReportError, SchemaError
from streamdp.privacy.guarantees import parse_budget
from streamdp.protocol.local_agreement import PROTOCOL, Agreement, Name, Wire, whole

if TYPE_CHECKING:
    from streamdp.learners.local_reports import Question

MOST_BYTES = 8 << 20
"""The most bytes of a randomizer document, and of a request with reports."""

_Whole = Annotated[int, BeforeValidator(whole), Field(ge=0, lt=2**53)]


class Below(Wire):
    """The question whether the value of a column is below a number.

    Parameters
    ----------
    column
        The name of a feature or of the target that has bounds.
    below
        In units of the bounds, [-1, 1].
    """

    column: Name
    below: float


class Within(Wire):
    """The question whether centre - within <= v < centre + within for the value v of a column.

    Parameters
    ----------
    column
        As for `Below`.
    centre, within
        In units of the bounds, [-1, 1]. `within` is positive.
    """

    column: Name
    centre: float
    within: float = Field(gt=0)


Ask = Literal["gradient"] | Below | Within


def interval(ask: Below | Within) -> tuple[float, float]:
    """Return the interval [low, high) that a question is about."""
    return (float("-inf"), ask.below) if isinstance(ask, Below) else (ask.centre - ask.within, ask.centre + ask.within)


def ask_of(question: Question, columns: tuple[str, ...]) -> Ask:
    """Return a question of the learner as it is written.

    Parameters
    ----------
    columns
        The names of the encoded columns, and then that of the target.
    """
    if question.column < 0:
        return "gradient"
    name, low, high = columns[question.column], float(question.low), float(question.high)
    if low == float("-inf"):
        return Below(column=name, below=high)
    return Within(column=name, centre=(low + high) / 2, within=(high - low) / 2)


class Document(Agreement):
    """The randomizer document: the agreement, and all that changes from version to version.

    Parameters
    ----------
    protocol, job, schema, loss, mechanism, budget
        See `Agreement`.
    agreement
        `Agreement.digest`.
    version
        The number of the job's commits.
    expires_at
        In seconds since 1970 (UTC): a device asks again before it answers later than this.
    theta
        (d,), where the gradient is taken, in units of `scales`.
    scales
        (p + 1, 2): centre and scale of each column, and of the target.
    ask
        What the next report answers.
    """

    agreement: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
    version: _Whole
    expires_at: float
    theta: list[float] = Field(min_length=1, max_length=MOST_BYTES // 2)
    scales: list[Annotated[list[float], Field(min_length=2, max_length=2)]] = Field(min_length=2)
    ask: Ask

    @property
    def agreed(self) -> Agreement:
        """The part that never changes."""
        return Agreement.model_construct(**{name: getattr(self, name) for name in Agreement.model_fields})


def read_document(text: bytes) -> Document:
    """Read a randomizer document.

    Parameters
    ----------
    text
        JSON.

    Raises `SchemaError` if the text is too long or no document of this version.
    """
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


class WireReport(Wire):
    """One report.

    Parameters
    ----------
    version
        The version of the document that was answered.
    budget
        What the report spends, such as "eps=1".
    id
        The name of the report: it counts once, however often it is sent.
    ask
        The question that was answered, as the document has it.
    gradient
        (d,) the noisy gradient, if a gradient was asked for.
    bit
        The noisy bit, if a bit was asked for.
    subject
        The person that the record is about: text or a whole number.
    """

    version: _Whole
    budget: Annotated[str, Field(max_length=100)]
    id: Annotated[str, Field(min_length=1, max_length=200)]
    ask: Ask = "gradient"
    gradient: list[float] | None = None
    bit: bool | None = None
    subject: Annotated[str, Field(max_length=1000)] | StrictInt | None = None


def read_report(item: Any) -> WireReport:
    """Read a report.

    Parameters
    ----------
    item
        A JSON value.

    Raises `RefusedReportError` if it is no report, or has not exactly one of gradient and bit.
    """
    found: WireReport | None = None
    with_faults = False
    try:
        found = WireReport.model_validate(item)
        parse_budget(found.budget)
    except (ValidationError, BudgetError):
        with_faults = True
    if with_faults or found is None or (found.gradient is None) != (found.ask != "gradient"):
        raise RefusedReportError("malformed")
    if (found.bit is None) != (found.ask == "gradient"):
        raise RefusedReportError("malformed")
    return found
