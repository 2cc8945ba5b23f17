"""A device: one report for each record, whatever fails; and values that do not leave it."""

import copy
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from streamdp import ShuffleClassifier
from streamdp.client import Device, Outcome
from streamdp.errors import ConfigError, SchemaError, ServiceError, SourceError, StoreBusyError
from streamdp.protocol.agreement import Agreement
from streamdp.protocol.cohort import CohortDevice
from streamdp.protocol.devices import ShuffleDevice
from streamdp.protocol.report_desk import ReportDesk
from streamdp.protocol.shuffle_wire import write_announcement
from tests.support.local_reports import PERSON, definition, desk_of
from tests.support.serving import Answering, serving
from tests.support.threads import in_threads

LEARNED = {"version": 1, "learned": 1, "refused": 0, "dead": []}
OTHER = PERSON | {"delay": -30}


class Service:
    """A service that plays a script: a status, or the text of an answer to a report; None breaks the connection."""

    def __init__(self, desk: ReportDesk, script: list[Any]) -> None:
        self.desk, self.script = desk, script
        self.bytes: list[bytes] = []
        self.fetched: list[int] = []

    @property
    def reports(self) -> list[dict[str, Any]]:
        return [json.loads(text)["reports"][0] for text in self.bytes]

    @contextmanager
    def running(self) -> Iterator[str]:
        service = self

        class Handler(Answering):
            def do_GET(self) -> None:
                issued = service.desk.document()
                same = self.headers.get("If-None-Match") == issued.etag
                service.fetched.append(304 if same else 200)
                self.answer(service.fetched[-1], b"" if same else issued.text, {"ETag": issued.etag})

            def do_POST(self) -> None:
                service.bytes.append(self.body())
                step = service.script.pop(0) if service.script else LEARNED
                if isinstance(step, int):
                    self.answer(step, b"{}")
                elif step is not None:
                    self.answer(200, json.dumps(step).encode())

        with serving(Handler) as url:
            yield url


def scripted(script: list[Any] | None = None) -> Service:
    return Service(desk_of("privunit")[0], script or [])


def test_retries_send_the_same_bytes_over_crashes_and_a_record_answers_once(tmp_path: Path) -> None:
    """Each failure is a crash of the device, too: the next one has the notes only, and another record in its place."""
    service, notes = scripted([None, 503, 429, 500]), str(tmp_path / "notes.json")
    with service.running() as url:
        for x in (PERSON, OTHER, OTHER, OTHER):
            with Device(url, "privunit", notes=notes) as device, pytest.raises(ServiceError):
                device.report(x, "True", id="me")
        for _ in range(2):
            with Device(url, "privunit", notes=notes) as device:
                assert device.report(OTHER, "False", id="me") == Outcome("learned")
    assert len(service.bytes) == 5
    assert len(set(service.bytes)) == 1
    assert len(service.fetched) == 1


def test_the_note_is_written_before_the_report_is_sent(tmp_path: Path) -> None:
    service, notes = scripted(), tmp_path / "notes.json"
    seen = []
    service.script = []
    with service.running() as url, Device(url, "privunit", notes=str(notes)) as device:
        device._send = lambda report: seen.append(json.loads(notes.read_text())) or ("learned", "")
        device.report(PERSON, "True", id="me")
    (note,) = seen[0]["tables"]["reports"].values()
    assert note["report"]["gradient"]
    assert "outcome" not in note


def test_without_a_note_nothing_is_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    service = scripted()
    with service.running() as url, Device(url, "privunit", notes=str(tmp_path / "notes.json")) as device:

        def full(*_: Any) -> None:
            raise OSError(28, "No space left on device")

        device.report(PERSON, "True", id="first")  # the agreement is noted
        monkeypatch.setattr("streamdp.client.notes.write_durably", full)
        with pytest.raises(SourceError, match="no space left"):
            device.report(PERSON, "True", id="second")
    assert len(service.bytes) == 1


def test_threads_draw_one_report_for_a_record() -> None:
    service = scripted([503, 503])
    with service.running() as url, Device(url, "privunit") as device:

        def send() -> None:
            for _ in range(3):
                try:
                    device.report(PERSON, "True", id="me")
                except ServiceError:
                    continue

        in_threads(send)
    assert len(service.bytes) == 3
    assert len(set(service.bytes)) == 1


def test_records_without_a_name_are_other_records_and_the_document_is_fetched_once() -> None:
    service = scripted()
    with service.running() as url, Device(url, "privunit") as device:
        for _ in range(3):
            device.report(PERSON, "True")
    assert len({report["id"] for report in service.reports}) == 3
    assert len({str(report["gradient"]) for report in service.reports}) == 3
    assert service.fetched == [200, 304, 304]


def test_two_devices_may_name_their_records_alike() -> None:
    service = scripted()
    with service.running() as url:
        for _ in range(2):
            with Device(url, "privunit") as device:
                device.report(PERSON, "True", id="me")
    assert len({report["id"] for report in service.reports}) == 2
    assert b'"me"' not in b"".join(service.bytes)


def test_what_leaves_the_device_holds_no_value() -> None:
    service = scripted()
    marked = PERSON | {"delay": 13.572468}
    with service.running() as url, Device(url, "privunit") as device:
        device.report(marked, "True")
    assert b"13.572468" not in service.bytes[0]
    assert b"JFK" not in service.bytes[0]
    assert service.reports[0].keys() == {"version", "budget", "id", "gradient"}


@pytest.mark.parametrize(
    ("answer", "outcome"),
    [
        ({"version": 1, "learned": 0, "refused": 1, "dead": []}, Outcome("refused")),
        (
            {"version": 1, "learned": 0, "refused": 0, "dead": [{"index": 0, "reason": "stale"}]},
            Outcome("dead", "stale"),
        ),
    ],
)
def test_refused_and_dead_reports_are_told_and_final(answer: dict[str, Any], outcome: Outcome) -> None:
    service = scripted([answer])
    with service.running() as url, Device(url, "privunit") as device:
        assert device.report(PERSON, "True", id="me") == outcome
        assert device.report(PERSON, "True", id="me") == outcome
    assert len(service.bytes) == 1


def another(**model: Any) -> ReportDesk:
    job = definition(**model)
    desk = ReportDesk("privunit", job)
    desk.show(0, job.build_estimator())
    return desk


def test_a_device_keeps_its_first_agreement_over_restarts(tmp_path: Path) -> None:
    service, notes = scripted(), str(tmp_path / "notes.json")
    with service.running() as url:
        with Device(url, "privunit", notes=notes) as device:
            device.report(PERSON, "True", id="one")
            agreed = device.agreement
        assert agreed == service.desk.agreement.digest()
        service.desk = another(scaling="none", budget="eps=8")
        with Device(url, "privunit", notes=notes) as device, pytest.raises(ConfigError, match="another agreement"):
            device.report(PERSON, "True", id="two")
        with Device(url, "privunit", agreement=agreed) as device, pytest.raises(ConfigError, match="another agreement"):
            device.report(PERSON, "True", id="two")
        with Device(url, "elsewhere") as device, pytest.raises(ConfigError, match="another job"):
            device.report(PERSON, "True", id="two")
    assert len(service.bytes) == 1


def test_another_name_of_the_notes_is_the_same_file(tmp_path: Path) -> None:
    """Before, a symbolic link had a lock of its own, and became a file of its own when it was written by."""
    service, notes, link = scripted(), tmp_path / "notes.json", tmp_path / "link.json"
    link.symlink_to(notes)
    with service.running() as url:
        with Device(url, "privunit", notes=str(link)) as device:
            first = device.report(PERSON, "True", id="one")
            with pytest.raises(StoreBusyError, match="in use"):
                Device(url, "privunit", notes=str(notes))
        with Device(url, "privunit", notes=str(notes)) as device:
            assert device.report(PERSON, "True", id="one") == first
    assert len(service.bytes) == 1


def test_another_spelling_of_the_address_is_the_same_job(tmp_path: Path) -> None:
    """Before, each spelling had notes of its own: four answers for one record, and a new agreement of eps=100000."""
    service, notes = scripted(), str(tmp_path / "notes.json")
    with service.running() as url:
        spellings = [url, f"{url}/", url.replace("http:", "HTTP:"), url.replace("127.0.0.1", "localhost"), f"{url}/."]
        outcomes = []
        for spelling, name in zip(spellings, ["Jos\u00e9", "Jose\u0301"] * 3, strict=False):
            with Device(spelling, "privunit", notes=notes) as device:
                outcomes.append(device.report(PERSON, "True", id=name))
        assert (len(service.bytes), len(set(outcomes))) == (1, 1)
        service.desk = another(scaling="none", budget="eps=100000")
        for spelling in spellings:
            with (
                Device(spelling, "privunit", notes=notes) as device,
                pytest.raises(ConfigError, match="another agreement"),
            ):
                device.report(PERSON, "True", id="two")
        with Device(url, "privunit", agreement=service.desk.agreement.digest(), notes=notes) as device:
            assert device.report(OTHER, "True", id="Jos\u00e9") == outcomes[0]  # the person agreed; the answer stays
    assert len(service.bytes) == 1


def test_a_record_that_does_not_fit_spends_nothing(tmp_path: Path) -> None:
    service, notes = scripted(), str(tmp_path / "notes.json")
    with service.running() as url, Device(url, "privunit", notes=notes) as device:
        with pytest.raises(SchemaError):
            device.report(PERSON | {"origin": "XXX"}, "True", id="me")
        device.report(PERSON, "True", id="me")
    assert len(service.bytes) == 1


def test_an_endless_answer_is_not_read_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streamdp.client.device.MOST_BYTES", 100)
    with scripted().running() as url, Device(url, "privunit") as device, pytest.raises(ServiceError, match="100 bytes"):
        device.report(PERSON, "True")


def test_no_service_is_a_service_error(tmp_path: Path) -> None:
    with (
        Device("http://127.0.0.1:9", "privunit") as device,
        pytest.raises(ServiceError, match="does not answer") as caught,
    ):
        device.report(PERSON, "True")
    assert caught.value.__context__ is None
    assert caught.value.status == 0


def test_one_process_has_the_notes(tmp_path: Path) -> None:
    notes = str(tmp_path / "notes.json")
    with Device("http://127.0.0.1:9", "late", notes=notes), pytest.raises(StoreBusyError):
        Device("http://127.0.0.1:9", "late", notes=notes)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"format": 2, "tables": {}}', '{"format": 1, "tables": []}'])
def test_other_files_are_no_notes(tmp_path: Path, text: str) -> None:
    (tmp_path / "notes.json").write_text(text)
    make: Callable[[], Device] = lambda: Device("http://127.0.0.1:9", "late", notes=str(tmp_path / "notes.json"))  # noqa: E731
    for _ in range(2):  # the lock is given back
        with pytest.raises(SourceError, match="expected the notes"):
            make()


def test_notes_that_cannot_be_read_are_not_taken_for_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A path in a folder that may not be searched exists or not: nobody knows."""

    def refused(*_: Any, **__: Any) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "read_text", refused)
    with pytest.raises(SourceError, match="permission denied"):
        Device("http://127.0.0.1:9", "late", notes=str(tmp_path / "notes.json"))


@pytest.mark.parametrize("notes", [5, b"notes", ["notes"], "a\0b"], ids=repr)
def test_notes_are_the_path_of_a_file(notes: Any) -> None:
    with pytest.raises(ConfigError, match="notes: expected the path of a file"):
        Device("http://127.0.0.1:1", "job", notes=notes)


def test_a_fork_and_a_copy_of_a_device_answer_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each would draw an answer of its own for one record."""
    model = ShuffleClassifier(features=["a"], cohort={"people": 100, "rounds": 5})
    agreement, record = Agreement(model), ({"a": 0.5}, True)
    announced = write_announcement(agreement.announcement(model.batch, model.randomizer.point))
    asked: list[tuple[Any, Callable[..., object]]] = [
        (Device("http://127.0.0.1:9", "late"), lambda device: device.report(*record)),
        (ShuffleDevice(agreement), lambda device: device.answer(announced, *record)),
        (CohortDevice(agreement, note=lambda message: None), lambda device: device.answer(announced, *record)),
    ]
    for device, answer in asked:
        with pytest.raises(StoreBusyError, match="a fork of it, or a copy"):
            answer(copy.copy(device))
    process = os.getpid()
    monkeypatch.setattr(os, "getpid", lambda: process + 1)
    for device, answer in asked:
        with pytest.raises(StoreBusyError, match="a fork of it"):
            answer(device)
