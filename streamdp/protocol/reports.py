"""Local reports on the wire: the agreement, the randomizer document, and the report. docs/reports.md describes them.

Each is JSON of version `PROTOCOL`. Every reader is strict, and its errors never show a value.
"""

from __future__ import annotations

from dataclasses import asdict
from hashlib import sha256
from typing import TYPE_CHECKING, Annotated, Any, Literal

import rfc8785
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from streamdp.config.definition import Definition
from streamdp.errors import BudgetError, ConfigError, RefusedReportError, SchemaError
from streamdp.estimators.ldp.learner import LDPLearner
from streamdp.privacy.guarantees import parse_budget
from streamdp.privacy.mechanisms import NoNoise, mechanism_for

if TYPE_CHECKING:
    from streamdp.data.schema import Schema
    from streamdp.estimators.ldp.randomizer import Question
    from streamdp.optim.losses import Loss

PROTOCOL = 1
"""The version of the wire form and of its test vectors."""

MOST_BYTES = 8 << 20
"""The most bytes of a randomizer document, and of a request with reports."""

_MOST_COLUMNS = 10_000
_Name = Annotated[str, Field(min_length=1, max_length=1000)]
_Whole = Annotated[int, Field(ge=0, lt=2**53)]


class _Wire(BaseModel):
    """A part of a message: strict, without unknown keys, and with finite numbers only."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        strict=True,
        hide_input_in_errors=True,
        allow_inf_nan=False,
    )


class Number(_Wire):
    """A feature that is a number.

    Parameters
    ----------
    name
        The name of the feature.
    bounds
        The public bounds [low, high]. Values outside are clipped to them.
    """

    name: _Name
    bounds: list[float] = Field(min_length=2, max_length=2)


class Category(_Wire):
    """A feature that is one of several texts.

    Parameters
    ----------
    name
        The name of the feature.
    categories
        All categories. The first one has no column.
    """

    name: _Name
    categories: list[str] = Field(min_length=2, max_length=_MOST_COLUMNS)


class Target(_Wire):
    """What is predicted.

    Parameters
    ----------
    name
        The name of the target.
    classes
        The labels of a classification. None: the target is a number.
    bounds
        The public bounds [low, high] of a number; None: no bounds.
    scale
        A number is clipped to its bounds and then divided by this.
    """

    name: _Name
    classes: list[str] | None = Field(None, min_length=2, max_length=_MOST_COLUMNS)
    bounds: list[float] | None = Field(None, min_length=2, max_length=2)
    scale: float = Field(1.0, gt=0)


class WireSchema(_Wire):
    """The declared public schema.

    Parameters
    ----------
    features
        The features, in the order of their columns.
    target
        The target.
    intercept
        Whether a constant 1 follows the columns.
    subject
        "text" or "integer" if a report must name the person that it is about; None: it need not.
    """

    features: list[Number | Category] = Field(min_length=1, max_length=_MOST_COLUMNS)
    target: Target
    intercept: bool
    subject: Literal["text", "integer"] | None = None

    def build(self) -> Schema:
        """The encoder of records. Raises `SchemaError` for declarations that contradict each other."""
        from streamdp.data.schema import Schema

        features = {f.name: f.bounds if isinstance(f, Number) else f.categories for f in self.features}
        if len(features) < len(self.features):
            raise SchemaError("expected no feature twice")
        target = self.target
        bounds = None if target.bounds is None else (target.bounds[0], target.bounds[1])
        return Schema(features, target.name, target_bounds=bounds, target_scale=target.scale, classes=target.classes)


class WireLoss(_Wire):
    """The loss.

    Parameters
    ----------
    name
        A name in `LOSSES`.
    parameters
        The parameters of the loss, all of them.
    bound, sensitivity
        The constants that the noise is calibrated to (see `losses.base`).
    """

    name: _Name
    parameters: dict[str, float | str | None] = Field(max_length=10)
    bound: float = Field(gt=0)
    sensitivity: float = Field(gt=0)

    def build(self) -> Loss:
        """The loss. Raises `ConfigError` for a loss that does not have these constants."""
        from streamdp.config.model import build_loss

        loss = build_loss({"name": self.name, **self.parameters})
        for announced, derived in ((self.bound, loss.bound), (self.sensitivity, loss.sensitivity)):
            if not abs(announced - derived) <= 1e-12 * derived:
                raise ConfigError(f"refused: the loss {self.name} has another bound than announced")
        return loss


class Agreement(_Wire):
    """What people agree to once. It never changes while a job lives; a device refuses a document with another one.

    Parameters
    ----------
    protocol
        `PROTOCOL`.
    job
        The name of the job.
    schema
        The schema.
    loss
        The loss.
    mechanism
        The name of the mechanism.
    budget
        The most that a report may spend.
    """

    protocol: Literal[1]
    job: _Name
    schema_: WireSchema = Field(alias="schema")
    loss: WireLoss
    mechanism: Literal["laplace", "gaussian", "privunit"]
    budget: Annotated[str, Field(max_length=100)]

    @classmethod
    def of(cls, job: str, definition: Definition) -> Agreement:
        """The agreement of a job.

        Parameters
        ----------
        job
            The name of the job.
        definition
            Its schema and model.

        Raises `ConfigError` if the model has no local half on the wire, or no noise.
        """
        learner = definition.build_estimator()
        if not isinstance(learner, LDPLearner):
            raise ConfigError(f"{definition.model.estimator} takes no reports over HTTP: expected LDPSGD* or LDPASGD*")
        local = learner.randomizer
        mechanism = mechanism_for(local.mechanism, local.budget)
        if mechanism.code == NoNoise.code:
            raise ConfigError("reports over HTTP need a mechanism with noise")
        schema, target = definition.schema_, definition.schema_.target
        built = definition.build_schema()
        features = [
            {"name": name, "categories": list(values)}
            if isinstance(values[0], str)
            else {"name": name, "bounds": list(values)}
            for name, values in built.features.items()
        ]
        subject = None if schema.subject is None else built.subject_type
        loss = {"name": local.loss.name, "parameters": asdict(local.loss)}
        constants = {"bound": local.loss.bound, "sensitivity": local.loss.sensitivity}
        return cls.model_validate(
            {
                "protocol": PROTOCOL,
                "job": job,
                "schema": {
                    "features": features,
                    "target": {
                        "name": target.column,
                        "classes": target.classes,
                        "bounds": None if target.bounds is None else list(target.bounds),
                        "scale": target.scale or 1.0,
                    },
                    "intercept": local.intercept,
                    "subject": subject,
                },
                "loss": loss | constants,
                "mechanism": mechanism.name,
                "budget": str(local.budget),
            }
        )

    def digest(self) -> str:
        """SHA-256, in hexadecimal, of the agreement as canonical JSON (RFC 8785). It fits a printed notice."""
        fields = Agreement.model_fields
        return sha256(rfc8785.dumps(self.model_dump(by_alias=True, include=set(fields)))).hexdigest()


class Below(_Wire):
    """The question whether the value of a column is below a number.

    Parameters
    ----------
    column
        The name of a feature or of the target that has bounds.
    below
        In units of the bounds, [-1, 1].
    """

    column: _Name
    below: float


class Within(_Wire):
    """The question whether centre - within <= v < centre + within for the value v of a column.

    Parameters
    ----------
    column
        As for `Below`.
    centre, within
        In units of the bounds, [-1, 1]. `within` is positive.
    """

    column: _Name
    centre: float
    within: float = Field(gt=0)


Ask = Literal["gradient"] | Below | Within


def interval(ask: Below | Within) -> tuple[float, float]:
    """Return the interval [low, high) that a question is about.

    Parameters
    ----------
    ask
        The question.
    """
    return (float("-inf"), ask.below) if isinstance(ask, Below) else (ask.centre - ask.within, ask.centre + ask.within)


def ask_of(question: Question, columns: tuple[str, ...]) -> Ask:
    """Return a question of the learner as it is written.

    Parameters
    ----------
    question
        The question.
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


class WireReport(_Wire):
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
    subject: Annotated[str, Field(max_length=1000)] | int | None = None


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
