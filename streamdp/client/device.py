"""A person's device: it makes local reports and sends them to a service. docs/reports.md says what it must do."""

import contextlib
import os
import threading
import unicodedata
import uuid
from collections.abc import Mapping
from typing import NamedTuple
from urllib.parse import quote

import httpx
import orjson

from streamdp.client.connection import connect
from streamdp.client.notes import ReportNotes
from streamdp.errors import ConfigError, ServiceError, check_texts
from streamdp.privacy.guarantees import Budget
from streamdp.protocol.local_half import LocalHalf
from streamdp.protocol.reports import MOST_BYTES
from streamdp.system import check_own


class Outcome(NamedTuple):
    """What became of a report: `outcome` is "learned", "refused" (the person's cap) or "dead".

    `reason` says why it is unusable (see docs/reports.md), and is empty otherwise.
    """

    outcome: str
    reason: str = ""


class Device(contextlib.AbstractContextManager["Device"]):
    """One person's device. Records and true gradients stay in it; only noise leaves. Threads may share it.

    A record answers once: whatever fails, the same report is sent again, and never a fresh draw. The notes know a job
    by its name, which is a part of the agreement, and not by the address of its service: under another spelling of the
    address, or at another service that claims to be it, a record has the same answer, and the agreement is the first
    one. So a file of notes is for one service, if several have jobs of one name.

    Guarantee: what leaves the device protects each record with the budget of its report, against everyone. Trust:
    nobody. Proof: docs/proofs/local_reports.md, and for statistics docs/proofs/statistics.md.

    `url`, `token`, `timeout_s` and `proxy` are as for `Client`, and `job` is the name of the job. `agreement` is
    the digest of what the person agreed to; None: the first agreement that the service shows is kept in the notes.
    Records that have answered under an earlier agreement keep their answers. `notes` is the file for the notes of
    the device; None: memory only, so a report is not sent again after a crash. Raises the errors of `ReportNotes`.

    >>> device = Device("http://127.0.0.1:8000", "late")
    >>> device.agreement is None  # not asked yet
    True
    """

    def __init__(
        self,
        url: str,
        job: str,
        *,
        agreement: str | None = None,
        token: str | None = None,
        notes: str | None = None,
        timeout_s: float = 30.0,
        proxy: str | None = None,
    ) -> None:
        self._http = connect(url, token, timeout_s, proxy)
        check_texts(job=job)
        self._job, self._name, self._agreement = job, quote(job, safe=""), agreement
        self._lock, self._made = threading.Lock(), (os.getpid(), id(self))
        self._half: LocalHalf | None = None
        self._etag = ""
        self._notes = ReportNotes(notes)

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection and unlock the notes. Idempotent."""
        self._http.close()
        self._notes.close()

    @property
    def agreement(self) -> str | None:
        """The digest of what the person agreed to; None before the first document."""
        return self._agreement or self._notes.get("agreements", self._name)

    def report(
        self,
        x: Mapping[str, object],
        y: object = None,
        *,
        id: str | None = None,
        subject: str | int | None = None,
        budget: Budget | str | None = None,
    ) -> Outcome:
        """Report one record: its raw features `x` by name, and its target `y`, a number or a label. Both stay here.

        Records of a job with statistics have no target.

        `id` is the name of the record on this device, which is not sent. If it has a report already, that one is sent
        again, and x and y are not looked at; None: a new record. `subject` is the person that the record is about, if
        the job needs it, and `budget` what the report spends, at most the agreed budget; None: the agreed budget.

        Raises `ServiceError` if the service does not answer or refuses the call: the report is kept, and the same
        `id` sends it again. Before a report is made, also `StoreBusyError` in a fork of the process, `SchemaError` for
        a record that does not fit, `ConfigError` and `BudgetError` for a document or a budget that was not agreed to,
        and `SourceError` if the notes cannot be written.
        """
        key = f"{self._name} {uuid.uuid4().hex if id is None else unicodedata.normalize('NFC', id)}"
        check_own(self._made, self, "this device")
        with self._lock:
            note = self._notes.get("reports", key)
            if note is None:
                report = self._randomizer().report(x, y, uuid.uuid4().hex, subject=subject, budget=budget)
                note = {"report": report}
                self._notes.set("reports", key, note)  # before anything leaves the device
            if "outcome" not in note:
                note = note | {"outcome": self._send(note["report"])}
                self._notes.set("reports", key, note)
            return Outcome(*note["outcome"])

    def _randomizer(self) -> LocalHalf:
        """The newest document of the service, checked against the agreement."""
        known = {"If-None-Match": self._etag} if self._half is not None and self._half.fresh else {}
        status, headers, body = self._call("GET", "/randomizer", known)
        if status == 304 and self._half is not None and known:
            return self._half
        half = LocalHalf(body, self.agreement)
        if half.document.job != self._job:
            raise ConfigError("refused: the service shows the document of another job")
        if self._notes.get("agreements", self._name) != half.agreement:
            self._notes.set("agreements", self._name, half.agreement)
        self._half, self._etag = half, headers.get("etag", "")
        return half

    def _send(self, report: dict[str, object]) -> tuple[str, str]:
        headers = {"Content-Type": "application/json", "Idempotency-Key": str(report["id"])}
        _, _, body = self._call("POST", "/reports", headers, orjson.dumps({"reports": [report]}))
        with contextlib.suppress(ValueError, KeyError, TypeError, IndexError):
            found = orjson.loads(body)
            dead = found["dead"]
            return ("dead", str(dead[0]["reason"])) if dead else ("learned" if found["learned"] else "refused", "")
        raise ServiceError("the service answered something else than what became of the report")

    def _call(
        self, method: str, path: str, headers: dict[str, str], content: bytes | None = None
    ) -> tuple[int, httpx.Headers, bytes]:
        trouble, body = "", bytearray()
        try:
            with self._http.stream(method, f"/{self._name}{path}", headers=headers, content=content) as response:
                for part in response.iter_bytes():
                    body += part
                    if len(body) > MOST_BYTES:
                        break
        except httpx.HTTPError as error:
            trouble = type(error).__name__
        if trouble:
            raise ServiceError(f"the service does not answer ({trouble})")
        if not (response.is_success or response.status_code == 304):
            raise ServiceError(f"the service answered with status {response.status_code}", response.status_code)
        if len(body) > MOST_BYTES:
            raise ServiceError(f"expected an answer of at most {MOST_BYTES} bytes", response.status_code)
        return response.status_code, response.headers, bytes(body)
