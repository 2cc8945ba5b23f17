"""The device's side of local reports: it checks a randomizer document against its agreement, and makes reports.

See docs/reports.md for what a device must do.
"""

import re
import time
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from streamdp.data.subjects import FLOAT_TEXT, subject_bytes
from streamdp.errors import ConfigError, NotAvailableError, RefusedReportError, SchemaError
from streamdp.estimators.accepted import FURTHEST
from streamdp.estimators.ldp.randomizer import Randomizer
from streamdp.learners.drawn import answered
from streamdp.learners.local_counts import ReportPart
from streamdp.learners.local_reports import Asked, Report
from streamdp.privacy.entropy import Entropy, FreshWords, Rng, SeededEntropy
from streamdp.privacy.guarantees import Budget, amount, parse_budget, with_amount
from streamdp.protocol.local_agreement import LocalAgreement, Subject, middle_and_half
from streamdp.protocol.reports import (
    MOST_OF_A_SUBJECT,
    AnyDocument,
    Document,
    StatisticsDocument,
    interval,
    read_document,
)
from streamdp.scaling.search import Question


def check_spend(spend: Budget, agreed: Budget) -> Budget:
    """Return what a report spends. Raises `ConfigError` unless it is of the agreed kind and delta, and no more."""
    if type(spend) is not type(agreed) or with_amount(agreed, amount(spend)) != spend or amount(spend) > amount(agreed):
        raise ConfigError(f"budget: expected at most the agreed {agreed}, of the same kind")
    return spend


class LocalHalf:
    """What makes the reports of one document.

    Its `text` may come from an untrusted learner. `agreement` is the digest of what the device agreed to; None: it
    agrees to this document. The noise is cryptographic unless `rng` draws it. Raises `SchemaError` if the text is no
    document, and `ConfigError` or `BudgetError` if it has another agreement than the device, contradicts itself, or has
    numbers outside the limits of `accepted`. Each later call with a record that fits the schema has a finite report.
    """

    def __init__(self, text: bytes, agreement: str | None = None, rng: Rng | None = None) -> None:
        document = read_document(text)
        agreed = document.agreed
        self.agreement = agreed.digest()
        if document.agreement != self.agreement or self.agreement != (agreement or self.agreement):
            raise ConfigError(
                "refused: the service announces another agreement than this device has (job, schema, loss, mechanism, "
                "statistics or budget); ask the people who gave you the agreement"
            )
        self.document: AnyDocument = document
        self.budget = parse_budget(document.budget)
        self.schema = document.schema_.build()
        self.randomizer: Any
        """What makes the answer to a record: of statistics, from its columns (1, p)."""
        if isinstance(document, StatisticsDocument):
            words = rng if isinstance(rng, SeededEntropy) else FreshWords()
            self.randomizer = partial(answered, _asked(document), rng=words)
        else:
            self.randomizer = self._built(document, agreed, rng or Entropy())

    def _built(self, document: Document, agreed: LocalAgreement, rng: Rng) -> Randomizer:
        schema, names = self.schema, self.schema.feature_names
        loss, target = agreed.loss.build(), agreed.schema_.target
        classes = len(target.classes or ())
        if loss.of_classes != bool(classes) or (classes > 2 and not loss.several):
            raise ConfigError("refused: expected a loss that fits the target")
        middle, half = 0.0, np.inf
        if schema.target_bounds is not None:
            middle, half = middle_and_half(schema.target_bounds, target.scale)
        bit = None
        if document.ask != "gradient":
            bit = Question(*interval(document.ask), 0, self._column(document.ask.column))
        question = Asked(bit, np.array(document.scales), (middle, half), 0)
        return Randomizer(
            np.array(document.theta),
            loss,
            names,
            bool(agreed.schema_.intercept),
            self.budget,
            agreed.mechanism,
            question,
            rng,
            tuple(range(max(2, classes))),  # the schema encodes labels as their numbers
        )

    def _column(self, name: str) -> int:
        """The index of the column that a question is about: a number with bounds, or the target with bounds."""
        schema = self.schema
        if name == schema.target and schema.target_bounds is not None:
            return len(schema.feature_names)
        for j, piece in enumerate(schema.pieces):
            if piece.name == name and piece.numeric:
                return j
        raise ConfigError("refused: expected a question about a number with declared bounds")

    @property
    def fresh(self) -> bool:
        """Whether the document may still be answered."""
        return time.time() <= self.document.expires_at

    def report(
        self,
        x: Mapping[str, object],
        y: object,
        name: str,
        *,
        subject: str | int | None = None,
        budget: Budget | str | None = None,
    ) -> dict[str, object]:
        """Return a report as JSON values.

        x and y do not leave it; the noise is drawn now. x has raw features by name, y is a number or a label (None for
        statistics), `name` is the `Reported.id`, and `subject` the person whose record it is. The report spends the
        agreed `budget` if it is None. Raises `SchemaError` if the record does not fit the schema of the agreement,
        `ConfigError` for a budget that was not agreed to, and `NotAvailableError` if the document is too old or a
        needed subject is missing.
        """
        document = self.document
        if not self.fresh:
            raise NotAvailableError("the randomizer document is too old: ask the service for a new one")
        if (subject is None) != (document.schema_.subject is None):
            need = "needs the subject" if subject is None else "takes no subject"
            raise NotAvailableError(f"the job {need} of a report")
        person = None if subject is None else _text(subject, document.schema_.subject)
        spend = None if budget is None else check_spend(parse_budget(budget), self.budget)
        out: dict[str, object] = {"version": document.version, "budget": str(spend or self.budget), "id": name}
        made = self._about(x, y, spend) if isinstance(document, StatisticsDocument) else self._gradient(x, y, spend)
        return out | made | ({} if person is None else {"subject": person})

    def _about(self, x: Mapping[str, object], y: object, spend: Budget | None) -> dict[str, object]:
        """An answer about one of the statistics."""
        if y is not None:
            raise SchemaError("y: statistics have no target: leave it out")
        if spend not in (None, self.budget):
            raise ConfigError(f"budget: expected the agreed {self.budget!s}, which all reports about statistics spend")
        with np.errstate(over="ignore"):  # clipped to the bounds
            row = self.schema.encode_raw(x)
        part, answer = self.randomizer(np.array([row]))
        return {"statistic": part, "answer": answer}

    def _gradient(self, x: Mapping[str, object], y: object, spend: Budget | None) -> dict[str, object]:
        """A noisy gradient or a noisy bit."""
        document = self.document
        assert isinstance(document, Document)
        with np.errstate(over="ignore"):  # clipped to the bounds, or below
            row, target = self.schema.encode_one({**x, self.schema.target: y})
        if target is None:
            raise SchemaError("the target is missing")
        made = self.randomizer(
            row, min(max(target, -FURTHEST), FURTHEST), budget=None if spend == self.budget else spend
        )
        out: dict[str, object] = {} if document.ask == "gradient" else {"ask": document.ask.model_dump()}
        return out | ({"gradient": made.gradient.tolist()} if isinstance(made, Report) else {"bit": made.yes})


def _asked(document: StatisticsDocument) -> list[tuple[ReportPart, float]]:
    """What answers a document. Raises `ConfigError` for thresholds that do not fit the statistics."""
    parts = document.parts()
    if len(document.thresholds) != len(parts):
        raise ConfigError("refused: expected thresholds, or none, of each statistic")
    for (part, _), thresholds in zip(parts, document.thresholds, strict=True):
        if len(thresholds) != len(part.thresholds):
            raise ConfigError("refused: expected a threshold for each group of a quantile, and no others")
        part.thresholds = np.array(thresholds)
    return parts


def person_of(subject: str | int | None, kind: Subject) -> str:
    """The text by which a ledger knows the `subject` of a report. Raises `RefusedReportError` if it names nobody."""
    text = "" if subject is None else str(subject)
    if not text:
        raise RefusedReportError("missing")
    if kind == "text":
        if re.fullmatch(FLOAT_TEXT, text):
            raise RefusedReportError("float")
        return text
    if not re.fullmatch(r"[+-]?[0-9]{1,300}", text.strip()):
        raise RefusedReportError("not_an_integer")
    return str(int(text))


def _text(subject: str | int, kind: Subject) -> str:
    """The text of a subject, which JSON of every program carries exactly. Raises `SchemaError` for what is none.

    That is before anything is drawn: a report that nobody takes would spend the record.
    """
    try:
        if len(text := person_of((subject_bytes(subject) or b"").decode(), kind)) <= MOST_OF_A_SUBJECT:
            return text
    except (UnicodeDecodeError, RefusedReportError):
        pass
    expected = "a whole number" if kind == "integer" else f"text of 1 to {MOST_OF_A_SUBJECT} characters"
    raise SchemaError(f"subject: expected {expected}, without half of a surrogate pair")
