"""The shuffler of devices' reports: it shows them in batches, without senders, names, times and order.

What is promised if it is trusted, and why, is in docs/proofs/shuffled_reports.md. All reports of a batch answer one
document: a learner that shows each device another one gets them in no batch. A batch has a random number, and is in
memory only. So no report of it is taken, and none is shown, after a crash; nothing of a batch is shown twice.
"""

import secrets
import threading
import uuid
from typing import Any, NoReturn
from weakref import WeakSet

import orjson

from streamdp.errors import ConfigError, NotAvailableError, RefusedReportError
from streamdp.privacy.guarantees import parse_budget
from streamdp.protocol.local_agreement import Agreed
from streamdp.protocol.report_desk import LIFETIME_S
from streamdp.protocol.reports import AnyDocument, Issued, Reported, kind_of, read_document, read_report
from streamdp.system import after_fork

_MOST_OF_A_CALL = 1000
_BYTES_OF_A_CALL = 4 << 20


class ReportMixer:
    """One batch after the other of reports of an `agreement`. Threads may share it.

    A batch closes when so many `people` have reported. A report has no person, and spends the agreed budget: one with
    another budget would not hide among the others.
    """

    def __init__(self, agreement: Agreed, people: int) -> None:
        self._agreement, self._people, self._kind = agreement, people, kind_of(agreement)
        self._budget, self._digest = parse_budget(agreement.budget), agreement.digest()
        self._learner_version = 0
        self.discard()
        _live.add(self)

    def discard(self) -> None:
        """Discard all reports, as a fork must: the parent shows them."""
        self._lock = threading.Lock()  # in a fork, a thread that is not there may hold it
        self._document: AnyDocument | None = None  # of the open batch
        self._issued: Issued | None = None
        self._taken: dict[str, Reported] = {}
        self._closed: list[tuple[str, bytes]] = []

    def __reduce__(self) -> NoReturn:
        raise TypeError("a shuffler holds people's reports: it is neither copied nor stored")

    @property
    def is_open(self) -> bool:
        """Whether devices may answer a document now."""
        return self._document is not None

    @property
    def waiting(self) -> int:
        """How many reports the open batch has."""
        return len(self._taken)

    def open(self, text: bytes) -> None:
        """Begin a batch with the learner's document, unless one is open.

        Raises `SchemaError` if the `text` is no document, and `ConfigError` if it has another agreement.
        """
        document = read_document(text)
        if document.agreed.digest() != self._digest:
            raise ConfigError("refused: the learner announces another agreement than the shuffler's job has")
        with self._lock:
            if self._document is None:
                self._learner_version = document.version
                self._document = document.model_copy(update={"version": secrets.randbelow(2**53)})
                self._issued = None

    def document(self, now: float | None = None) -> Issued:
        """Return the document of the open batch, the same for all devices but for the time until which it holds.

        `now` is as for `ReportDesk.document`. Raises `NotAvailableError` if no batch is open.
        """
        with self._lock:
            if self._document is None:
                raise NotAvailableError("the shuffler has no document of the learner: ask again")
            self._issued = self._document.issued(self._issued, now, LIFETIME_S)
            return self._issued

    def take(self, items: list[object]) -> dict[int, str]:
        """Take reports, JSON values `items`, into the open batch, and close it if it has enough.

        Returns by index the reasons of those that it does not take; see docs/reports.md.
        """
        dead: dict[int, str] = {}
        with self._lock:
            for i, item in enumerate(items):
                try:
                    self._take(item)
                except RefusedReportError as error:
                    dead[i] = error.reason
            if len(self._taken) >= self._people:
                self._close()
        return dead

    def _take(self, item: object) -> None:
        document = self._document
        found: Any = read_report(item, self._kind.reads)
        if document is None or found.version != document.version:
            raise RefusedReportError("stale")
        if parse_budget(found.budget) != self._budget or found.subject is not None:
            raise RefusedReportError("budget" if found.subject is None else "malformed")
        document.check(found)
        if self._taken.setdefault(found.id, found) != found:
            raise RefusedReportError("id_reused")

    def _close(self) -> None:
        """Shuffle the batch, and write it anew: of each report only the answer stays."""
        # At once: an exception between them would write the batch twice, or lead its reports into the next one.
        reports, self._taken, self._document, self._issued = list(self._taken.values()), {}, None, None
        secrets.SystemRandom().shuffle(reports)
        same = {"version": self._learner_version, "budget": self._agreement.budget}
        written = [
            found.model_dump(mode="json", exclude={*Reported.model_fields}, exclude_none=True)
            | same
            | {"id": uuid.uuid4().hex}
            for found in reports
        ]
        longest = max(len(orjson.dumps(report)) for report in written)
        size = max(1, min(_MOST_OF_A_CALL, _BYTES_OF_A_CALL // (longest + 1)))
        self._closed += [
            (uuid.uuid4().hex, orjson.dumps({"reports": written[first : first + size]}))
            for first in range(0, len(written), size)
        ]

    def next_call(self) -> tuple[str, bytes] | None:
        """Return the idempotency key and the body of the next call for the learner; None: all were sent."""
        return self._closed[0] if self._closed else None

    def sent(self) -> None:
        """Forget the next call: the learner has answered it."""
        del self._closed[0]


_live: WeakSet[ReportMixer] = WeakSet()


def _as_a_copy() -> None:
    for mixer in list(_live):
        mixer.discard()


after_fork(_as_a_copy)
