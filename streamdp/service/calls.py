"""What callers sent, as calls that wait for their commit: bodies, keys and ids become digests here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from connectors.httpcall import Call
from connectors.jsoncalls import Cut, cut
from streamdp.errors import SchemaError
from streamdp.service.limits import MAX_RECORDS
from streamdp.service.problems import ProblemError
from streamdp.store.answers import Answers


def cut_call(body: bytes, labelled: bool) -> Cut:
    """Cut a call into its records.

    Parameters
    ----------
    body
        The call.
    labelled
        Whether its records have targets, because they are to be learned.

    Raises `ProblemError` 400 if it is no call, and 413 for too many records.
    """
    try:
        call = cut(body, labelled, MAX_RECORDS)
    except SchemaError as error:
        raise ProblemError(400, "malformed", str(error)) from None
    if len(call) > MAX_RECORDS:
        raise ProblemError(413, "too-many", f"expected at most {MAX_RECORDS} records")
    return call


def of_records(
    answers: Answers, content: Cut, joined: Cut, body: bytes, key: str | None, dead: Mapping[int, str]
) -> Call:
    """The call of records to learn.

    Parameters
    ----------
    content
        The records as they were sent, at least one.
    joined
        The same with the features that waited for their labels.
    body
        The body of the call.
    key
        The `Idempotency-Key`; None without one.
    dead
        By index: the reason why a record is dead already.
    """
    rows = content.named
    ids = {
        i: (answers.digest(b"id", name), answers.digest(b"body", text))
        for i, name, text in zip(
            rows, content.texts(content.ids[rows]), content.texts(content.spans[rows]), strict=True
        )
    }
    return Call(len(content), joined, *_key(answers, b"learn", key, body), ids, None, dict(dead))


def of_reports(
    answers: Answers,
    body: bytes,
    key: str | None,
    size: int,
    received: Mapping[int, tuple[Any, Any]],
    ids: Mapping[int, tuple[str, bytes]],
    dead: Mapping[int, str],
) -> Call:
    """The call of reports of devices.

    Parameters
    ----------
    answers, body, key
        As for `of_records`.
    size
        How many reports the call has, at least 1.
    received
        By index: each report that passed its checks, as the estimator absorbs it, and its subject or None.
    ids
        By index: the id of each report that has one, and the report's text.
    dead
        By index: the reason why each other report is dead.
    """
    digests = {
        i: (answers.digest(b"report", name.encode()), answers.digest(b"body", text)) for i, (name, text) in ids.items()
    }
    return Call(size, None, *_key(answers, b"reports", key, body), digests, dict(received), dict(dead))


def _key(answers: Answers, kind: bytes, key: str | None, body: bytes) -> tuple[bytes | None, bytes]:
    """The digests of an `Idempotency-Key`, which means another call for each kind of call, and of its body."""
    if key is None:
        return None, b""
    return answers.digest(kind, key.encode("utf-8", "surrogateescape")), answers.digest(b"body", body)
