"""The learner's side of local reports: it writes the randomizer document of a commit, and checks what devices send.

See docs/reports.md. The desk never learns: `absorb` of the estimator does, with what the desk returns.

A gradient passes (`possible`) if an honest device could have drawn it. A malicious sender can send any report that
passes. Each of them may be an honest one, so it moves the model no further than one honest report may. An honest
report passes with a probability of at least 1 - 1e-26. The limits and their proof: docs/proofs/devices.md.
"""

import contextlib
import json
import math
import threading
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import orjson

from connectors.http import ELSEWHERE
from streamdp.config.definition import Definition
from streamdp.errors import BudgetError, ConfigError, NotAvailableError, RefusedReportError
from streamdp.estimators.ldp.randomizer import Randomizer
from streamdp.learners.drawn import DrawnAnswer
from streamdp.learners.local_reports import Answer, Report
from streamdp.privacy import samplers
from streamdp.privacy.guarantees import Budget, check_serviceable, parse_budget
from streamdp.privacy.mechanisms import MECHANISMS, Gaussian, Mechanism, PrivUnit, calibrated, record_rows
from streamdp.protocol.local_agreement import LocalAgreement
from streamdp.protocol.local_half import check_spend, person_of
from streamdp.protocol.reports import (
    MALFORMED,
    AnyDocument,
    Issued,
    Reported,
    WireAnswer,
    WireReport,
    agreement_of,
    ask_of,
    interval,
    kind_of,
    read_report,
)
from streamdp.protocol.statistics_agreement import StatisticsAgreement
from streamdp.scaling.search import Question

_TAIL = 60.0
_ROUNDING = 0.01  # of a cell: what the arithmetic of another language may change


def _snapped(mechanism: Mechanism, row: np.ndarray, g: np.ndarray) -> np.ndarray | None:
    d, scale, grid = len(g), float(row[samplers.SCALE]), float(row[samplers.GRID])
    bound = mechanism.bound * (1 + 1e-6)
    if isinstance(mechanism, PrivUnit):
        cells = np.rint(g / (scale * grid))
        off = np.abs(g / (scale * grid) - cells).max()
        if not (off < _ROUNDING and abs(np.linalg.norm(cells) * grid - 1.0) <= grid * (math.sqrt(d) / 2 + _ROUNDING)):
            return None
        return np.asarray(cells * (scale * grid))
    if isinstance(mechanism, Gaussian):
        norm, most = np.linalg.norm(g), bound + scale * (math.sqrt(d) + math.sqrt(2 * _TAIL))
    else:
        norm, most = np.abs(g).sum(), math.sqrt(d) * bound + scale * (d + math.sqrt(2 * d * _TAIL) + _TAIL)
    on_grid = norm <= most + d * grid and np.array_equal(np.rint(g / grid), g / grid)
    return g if on_grid else None


def possible(mechanism: Mechanism, agreed: bool, g: np.ndarray) -> np.ndarray | None:
    """Return the gradient with the rounding errors of other languages removed; None if it cannot have been drawn.

    g (d,) is finite, with moduli of at most 1e100. `agreed` says that the budget is the agreement's; others are rounded
    down (see `Mechanism.rows`).
    """
    row = _agreed_row(mechanism, len(g)) if agreed else record_rows(mechanism, len(g))[0]
    return _snapped(mechanism, row, g)


@lru_cache(maxsize=256)
def _agreed_row(mechanism: Mechanism, d: int) -> np.ndarray:
    return mechanism.rows(d)[0]


MAX_STALENESS = 100
LIFETIME_S = 600.0
OF_A_SHARD = 2**40
"""Versions of a shard's documents: its commits are counted from this number times the shard's. They fit a double."""
_LARGEST = 1e100


class Received(NamedTuple):
    """A report that passed all checks."""

    report: Report | Answer | DrawnAnswer  # what `absorb` of the estimator takes; the caller asks the ledger first
    id: str  # the `Reported.id`
    subject: str | None  # the person for the ledger; None if the job names none


class _Gradients:
    """What a version of a model asks, and the reports that answer it."""

    def __init__(self, agreement: LocalAgreement, definition: Definition) -> None:
        self._columns = (*definition.build_schema().feature_names, definition.schema_.target.column)
        learner: Any = definition.build_estimator()
        self._loss, self._d = learner.randomizer.loss, len(learner.randomizer.theta)
        self._kind: Any = MECHANISMS[agreement.mechanism]

    def asked(self, learner: Any) -> tuple[dict[str, object], object]:
        """What its document shows, and what is known of the reports that answer it."""
        randomizer: Randomizer = learner.randomizer
        question = randomizer.question
        assert question is not None
        ask = ask_of(question.bit, self._columns)
        shown = {"theta": randomizer.theta.tolist(), "scales": question.scales.tolist(), "ask": ask}
        return shown, (ask, question.changes)

    def report(self, found: WireReport, asked: Any, budget: Budget, agreed: bool) -> Report | Answer:
        """What a report tells that spends the budget, `agreed` or less. Raises `RefusedReportError`."""
        ask, changes = asked
        if found.ask != ask:
            raise RefusedReportError("question")
        if found.gradient is None:
            return Answer(Question(*interval(ask), 0, self._columns.index(ask.column)), bool(found.bit), budget)
        if len(found.gradient) != self._d:
            raise RefusedReportError("length")
        mechanism, g = (
            calibrated(self._kind, budget, self._loss.bound, self._loss.sensitivity),
            np.array(found.gradient),
        )
        made = possible(mechanism, agreed, g) if np.abs(g).max() <= _LARGEST else None
        if made is None:
            raise RefusedReportError("impossible")
        return Report(made, budget, changes=changes)


class _Cells:
    """As `_Gradients`, of statistics."""

    def __init__(self, agreement: StatisticsAgreement, _: Definition) -> None:
        self._parts = [part for part, _ in agreement.parts()]

    def asked(self, learner: Any) -> tuple[dict[str, Any], object]:
        """See `_Gradients.asked`."""
        parts = [part for _, part, _ in learner.reported()]
        return {"thresholds": [part.thresholds.tolist() for part in parts]}, [part.asked for part in parts]

    def report(self, found: WireAnswer, asked: Any, budget: Budget, agreed: bool) -> DrawnAnswer:
        """See `_Gradients.report`: all reports spend the agreed budget."""
        if found.statistic >= len(self._parts):
            raise RefusedReportError("question")
        if not agreed:
            raise RefusedReportError("budget")
        if not self._parts[found.statistic].possible(found.answer):
            raise RefusedReportError("impossible")
        return DrawnAnswer(found.statistic, tuple(found.answer), asked[found.statistic], budget)


class ReportDesk:
    """The documents of a job, and the checks of its reports.

    Threads may share it. A document may be used for `lifetime_s` seconds, and a report may answer at most
    `max_staleness` versions before the newest one. `elsewhere` has the shards of the job whose documents another
    service writes. Raises `ConfigError` if the model takes no reports, or if a number is out of range.
    """

    def __init__(
        self, job: str, definition: Definition, *, max_staleness: int = MAX_STALENESS, lifetime_s: float = LIFETIME_S
    ) -> None:
        if max_staleness < 0 or not lifetime_s > 0:
            raise ConfigError("expected a max_staleness of at least 0 and a positive lifetime")
        self.agreement = agreement_of(job, definition)
        self._digest = self.agreement.digest()
        self._budget = parse_budget(self.agreement.budget)
        kind: Any = _Gradients if isinstance(self.agreement, LocalAgreement) else _Cells
        self._document = kind_of(self.agreement)
        self._side: _Gradients | _Cells = kind(self.agreement, definition)
        self._max_staleness, self._lifetime_s = max_staleness, lifetime_s
        self.elsewhere: frozenset[int] = frozenset()
        self._lock = threading.Lock()
        self._asked: dict[int, object] = {}  # what a version asked
        self._newest: AnyDocument | None = None
        self._issued: Issued | None = None

    @property
    def version(self) -> int | None:
        """The newest version; None before the first `show`."""
        return None if self._newest is None else self._newest.version

    def show(self, version: int, learner: object) -> None:
        """Make a committed state the newest version.

        Call it after the commit, before anything else is learned. `learner` is the estimator of local reports. The
        version is the number of the shard's commits, and `OF_A_SHARD` times the number of the shard. It grows, unless
        the service has another shard now.
        """
        shown, asked = self._side.asked(learner)
        agreed = {name: getattr(self.agreement, name) for name in type(self.agreement).model_fields}
        document = self._document.model_construct(**agreed, agreement=self._digest, version=version, **shown)
        with self._lock:
            self._newest, self._issued = document, None
            self._asked = {v: a for v, a in self._asked.items() if version - self._max_staleness <= v < version}
            self._asked[version] = asked

    def document(self, now: float | None = None) -> Issued:
        """Return the randomizer document of the newest version.

        It has at least half of its lifetime left. `now` is in seconds since 1970 (UTC); None: the time of this machine.
        Raises `NotAvailableError` before the first `show`.
        """
        with self._lock:
            if self._newest is None:
                raise NotAvailableError("the job has no committed state to show yet")
            self._issued = self._newest.issued(self._issued, now, self._lifetime_s)
            return self._issued

    def receive(self, item: object) -> Received:
        """Read and check one report, a JSON value `item`. Nothing is counted or learned.

        Raises `RefusedReportError` with the reason: `malformed`, `stale`, `version` (not issued yet), `budget` (not the
        agreed one, or more), `question` (another one than this version asks), `length`, `impossible` (the noise
        cannot produce it), `missing`, `float`, `not_an_integer` (the subject) or `elsewhere` (the version is of
        another shard, so only the service of that shard knows what it asked).
        """
        found: Any = read_report(item, self._document.reads)
        with self._lock:
            newest = -1 if self._newest is None else self._newest.version
            asked = self._asked.get(found.version)
        if asked is None:
            if (shard := found.version // OF_A_SHARD) != max(newest, 0) // OF_A_SHARD:
                raise RefusedReportError(ELSEWHERE if shard in self.elsewhere else "stale")
            raise RefusedReportError("version" if found.version > newest else "stale")
        budget = self._spend(found)
        kind = self.agreement.subject
        subject = None if kind is None else person_of(found.subject, kind)
        return Received(self._side.report(found, asked, budget, budget == self._budget), found.id, subject)

    def receive_all(
        self, items: list[Any]
    ) -> tuple[dict[int, tuple[object, object]], dict[int, tuple[str, bytes]], dict[int, str]]:
        """Read and check reports, JSON values `items`.

        A report that was learned under its id is not unusable when it comes again, also if it would be stale now: so
        the id and the text of every report with an id are returned. Returns by index: each report that passed, with its
        subject; the id and the text of each that has an id; and the reason of each that did not pass.
        """
        received: dict[int, tuple[object, object]] = {}
        ids: dict[int, tuple[str, bytes]] = {}
        dead: dict[int, str] = {}
        for i, item in enumerate(items):
            try:
                report = self.receive(item)
                received[i] = report.report, report.subject
            except RefusedReportError as error:
                dead[i] = error.reason
                if error.reason == MALFORMED:  # it may be nested deeper than can be written, and was never learned
                    continue
            ids[i] = item["id"], _written(item)
        return received, ids, dead

    def _spend(self, found: Reported) -> Budget:
        with contextlib.suppress(ConfigError, BudgetError):
            spend = check_spend(parse_budget(found.budget), self._budget)
            check_serviceable(spend)
            return spend
        raise RefusedReportError("budget")


def _written(item: object) -> bytes:
    """The text of a report, by which it is known when it comes again. Numbers may have more than 64 bits."""
    try:
        return orjson.dumps(item, option=orjson.OPT_SORT_KEYS)
    except TypeError:
        return json.dumps(item, sort_keys=True).encode()
