"""What callers sent, as calls that wait for their commit: bodies are parsed, and keys and ids become digests, here."""

import json
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

import numpy as np
from pydantic import ValidationError

from connectors.http import Call, CallRecords, Flaw
from connectors.jsonpieces import MOST_VALUES, TooManyValuesError, pieces
from streamdp.service.features import RecordReader
from streamdp.service.problems import ProblemError
from streamdp.service.schemas import MAX_RECORDS, LearnCall, LearnRecord, PredictCall
from streamdp.store.answers import Answers

RecordsCall = TypeVar("RecordsCall", PredictCall, LearnCall)


def read_call(kind: type[RecordsCall], body: bytes) -> RecordsCall:
    """Parse the `body` of a call of this `kind`. It is refused as a whole if it is malformed.

    Raises `ProblemError`: 400 if it is no such call or an object has a key twice, 413 for too many records or values,
    and 422 for the first record with an unknown field or one of another type.
    """
    call: RecordsCall | None = None
    trouble: ProblemError | None = None
    records: list[object] = []
    try:
        for found in read_pieces(body, "records", kind.FORM):
            part = kind.model_validate(found if call is None else {"records": found})
            call = call or part
            records += part.records
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False, include_context=False)[0]
        trouble = ProblemError(400, "malformed", f"expected a JSON object {kind.FORM}")
        match first["loc"]:
            case ("records", int(index), *place):
                field = next((f"{name}: " for name in place if name in LearnRecord.__annotations__), "")
                said = f"{field}{first['msg']}; expected {kind.FORM}"
                trouble = ProblemError(422, "bad-record", said, index=len(records) + index)
    if trouble is not None or call is None:
        raise trouble or ProblemError(400, "malformed", f"expected a JSON object {kind.FORM}")
    return call.model_copy(update={"records": records})


def read_pieces(body: bytes, key: str, form: str) -> Iterator[object]:
    """The `body` of a call as `jsonpieces.pieces` parse it, with what is under `key`. `form` is what is expected.

    Raises `ProblemError`, 400 or 413, whose context has no value: errors of a parser quote them.
    """
    parts, size, trouble = pieces(body, key), 0, None
    while trouble is None:
        try:
            found, twice = next(parts)
        except StopIteration:
            return
        except TooManyValuesError:
            trouble = ProblemError(413, "too-many", f"expected at most {MOST_VALUES} values in each of the {key}")
        except ValueError as error:
            said = "the body is not JSON, which has no NaN and no Infinity: a missing value is null"
            if str(error).startswith("number out of range"):
                said = "a number of the body is out of range: expected whole numbers of at most 4300 digits"
            trouble = ProblemError(400, "malformed", f"{said}; expected a JSON object {form}")
        else:
            listed = found.get(key) if isinstance(found, dict) else found
            size += len(listed) if isinstance(listed, list) else 0
            if size > MAX_RECORDS:
                trouble = ProblemError(413, "too-many", f"expected at most {MAX_RECORDS} {key}")
            elif twice:
                trouble = ProblemError(400, "malformed", "an object of the call has a key twice")
            else:
                yield found
    raise trouble


def of_records(
    answers: Answers, reader: RecordReader, caller: str, body: bytes, key: str | None
) -> tuple[Call, dict[int, str | None]]:
    """The call of records to learn, from its `body`.

    Keys and ids of a `caller` are not those of another. `key` is the `Idempotency-Key`; None without one. Returns the
    call; and the ids of records without features, by index. Raises the errors of `read_call`.
    """
    records = read_call(LearnCall, body).records
    if (bad := next((i for i, record in enumerate(records) if ("y" in record) != reader.has_target), None)) is not None:
        said = "Field required" if reader.has_target else "this job has statistics, which have no target"
        raise ProblemError(422, "bad-record", f"y: {said}; expected {LearnCall.FORM}", index=bad)
    fields = ("x", "id", "y", "subject", "budget")
    columns: list[list[Any]] = [[record.get(field) for record in records] for field in fields]
    features, names, targets, subjects, budgets = columns
    labels = {i: names[i] for i, x in enumerate(features) if x is None}
    X, flaws = reader.read([x for x in features if x is not None])
    if labels:
        whole = [i for i in range(len(records)) if i not in labels]
        every = np.zeros((len(records), X.shape[1]))
        every[whole] = X
        X, flaws = every, {whole[i]: flaw for i, flaw in flaws.items()}
    rows = CallRecords(X, targets, subjects, budgets)
    ids = {
        i: (
            answers.digest(b"id", _owned(caller, name)),
            answers.digest(b"body", json.dumps(records[i], sort_keys=True).encode()),
        )
        for i, name in enumerate(names)
        if name is not None
    }
    return Call(len(records), rows, *_key(answers, b"learn", caller, key, body), ids, None, flaws), labels


def of_reports(
    answers: Answers,
    caller: str,
    body: bytes,
    key: str | None,
    size: int,
    received: Mapping[int, tuple[object, object]],
    ids: Mapping[int, tuple[str, bytes]],
    dead: Mapping[int, str],
) -> Call:
    """The call of `size` reports of devices, at least 1.

    `caller`, `body` and `key` are as for `of_records`. The others go by index: `received` has each report that passed
    its checks, as the estimator absorbs it, and its subject or None; `ids` the id of each report that has one, and its
    text; `dead` the reason why each other report is unusable.

    Ids of reports are not apart by caller, because a report may also come by a topic, which names none. A device
    chooses them at random, so that no other party can send them first.
    """
    digests = {
        i: (answers.digest(b"report", name.encode()), answers.digest(b"body", text)) for i, (name, text) in ids.items()
    }
    flaws = {i: Flaw(reason) for i, reason in dead.items()}
    return Call(size, None, *_key(answers, b"reports", caller, key, body), digests, dict(received), flaws)


def _key(answers: Answers, kind: bytes, caller: str, key: str | None, body: bytes) -> tuple[bytes | None, bytes]:
    """The digests of an `Idempotency-Key`, which is apart by kind of call and by caller; and of the body."""
    if key is None:
        return None, b""
    return answers.digest(kind, _owned(caller, key)), answers.digest(b"body", body)


def _owned(caller: str, name: str) -> bytes:
    """A name that a caller chose; no other caller has it. A caller is hexadecimal, so the colon ends it."""
    return f"{caller}:{name}".encode("utf-8", "surrogateescape")
