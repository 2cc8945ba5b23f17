"""Who is one person: text in NFC, whole numbers as their decimal text, and nothing else."""

import hashlib
import json
import unicodedata
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from connectors.jsonrows import encode_json
from connectors.kafkakeys import subjects_of
from streamdp import LDPSGDRegressor, Ledger, PanPrivateRegressor, PureDP, UserLevelLDPRegressor, WindowedRegressor
from streamdp.config.definition import read_definition
from streamdp.config.job import make_config
from streamdp.data.schema import Schema
from streamdp.data.subjects import hash_people, subject_bytes, subject_list, subjects_bytes
from streamdp.errors import ConfigError, SchemaError

COMPOSED, DECOMPOSED = "Jos\u00e9", "Jose\u0301"
KEY = bytes(range(32))


def test_spellings_of_one_text_are_one_person() -> None:
    spellings = [COMPOSED, DECOMPOSED, COMPOSED.encode(), DECOMPOSED.encode()]
    assert {subject_bytes(spelling) for spelling in spellings} == {COMPOSED.encode()}
    ledger = Ledger("eps=3")
    assert ledger.admit_many([*spellings, 7, "7", b"7", np.int64(7)], PureDP(1)).tolist() == [1, 1, 1, 0, 1, 1, 1, 0]
    assert ledger.n_subjects == 2


@given(st.text())
def test_the_form_of_a_text_is_never_another_person(text: str) -> None:
    forms = {subject_bytes(unicodedata.normalize(form, text)) for form in ("NFC", "NFD")}
    assert forms == {subject_bytes(text)}
    assert {subject_bytes(found) for found in forms} == forms


@given(st.text(alphabet=st.characters(max_codepoint=127)))
def test_ascii_names_keep_the_keys_of_earlier_versions(text: str) -> None:
    old = hashlib.blake2b(text.encode(), digest_size=16, key=KEY, person=b"streamdp-subject").digest()
    hashes, _ = hash_people(subjects_bytes([text, text.encode()]), KEY)
    assert [row.astype("<u8").tobytes() for row in hashes] == [old, old]


@pytest.mark.parametrize(
    "bad", [7.0, np.float64(7), True, np.True_, 2**2000, ["SECRET"]], ids=lambda v: type(v).__name__
)
def test_floats_and_truth_values_are_no_subjects(bad: Any) -> None:
    models = [
        kind(features=["a"], ledger=Ledger("eps=3,delta=1e-3"))
        for kind in (LDPSGDRegressor, PanPrivateRegressor, UserLevelLDPRegressor)
    ]
    for act in (subject_bytes, *(lambda s, m=m: m.learn_one({"a": 1.0}, 1.0, subject=s) for m in models)):
        with pytest.raises(SchemaError, match="whole number") as caught:
            act(bad)
        assert "SECRET" not in str(caught.value)
    assert all(model.n_seen == 0 and model.ledger.n_subjects == 0 for model in models)


def test_bytes_that_are_no_text_stay_as_they_are() -> None:
    assert subject_bytes(b"\xff\x00") == b"\xff\x00"
    assert subject_bytes("\udce9") == "\udce9".encode("utf-8", "surrogatepass")


def test_an_estimator_with_subjects_states_the_rule() -> None:
    said = "whole number as its decimal text"
    for kind in (UserLevelLDPRegressor, WindowedRegressor):
        assert said in kind(features=["a"]).statement()
    assert said in LDPSGDRegressor(features=["a"], ledger=Ledger("eps=3")).statement()
    assert said not in LDPSGDRegressor(features=["a"]).statement()


INTEGERS = Schema({"a": (0, 1)}, "y", subject="id", subject_type="integer")


def test_a_column_of_whole_numbers() -> None:
    values = ["7", "007", "+7", " 7 ", "-0", "0", "-07", "7.0", "7e0", "x", "", None, "1" * 300, "1" * 301, "٧"]
    n = len(values)
    frame = pl.DataFrame(
        {"a": ["0"] * n, "y": ["0"] * n, "id": values}, schema=dict.fromkeys(INTEGERS.columns, pl.String)
    )
    batch = INTEGERS.encode(frame, np.arange(n), {})
    assert batch.subjects == ["7", "7", "7", "7", "0", "0", "-7", "1" * 300]
    assert [letter.reason for letter in batch.dead] == [
        "not_an_integer", "not_an_integer", "not_an_integer", "missing", "missing", "not_an_integer", "not_an_integer",
    ]  # fmt: skip


def test_numbers_and_texts_of_json_are_one_person() -> None:
    raw = [b'{"a": 0, "y": 0, "id": %s}' % value for value in (b"7", b'"7"', b'"007"', b"7.0", b"7e0", b"true", b'"x"')]
    batch = encode_json(raw, np.arange(len(raw)), {}, INTEGERS)
    assert batch.subjects == ["7", "7", "7"]
    assert {letter.reason for letter in batch.dead} == {"not_an_integer"}


@example("1.0\n")
@given(st.from_regex(r"[0-9+.eE\n ]{1,8}", fullmatch=True))
def test_a_text_is_a_person_of_the_ledger_if_the_way_in_says_so(text: str) -> None:
    """Else one record, such as of "1.0" with a line end, would stop the job that reads it, again and again."""
    schema = Schema({"a": (0, 1)}, "y", subject="id")
    batch = encode_json([json.dumps({"a": 0, "y": 0, "id": text}).encode()], np.arange(1), {}, schema)
    keys = subjects_of([text.encode()])
    for subject in (*(batch.subjects or ()), *(key for key in keys if key is not None)):
        assert subject_bytes(subject) == text.encode()


def test_a_float_with_a_line_end_is_text_everywhere() -> None:
    assert subject_bytes("1.0\n") == b"1.0\n"
    assert subjects_of([b"1.0\n", b"1.0", b'"1.0\\n"']) == [b"1.0\n", None, "1.0\n"]


def test_a_record_that_is_nested_too_deep_is_a_dead_letter() -> None:
    schema = Schema({"a": (0, 1)}, "y", subject="id")
    raw = b'{"a": 0, "y": 0, "id": %s, "more": ' + b"[" * 1015 + b"]" * 1015 + b"}"
    batch = encode_json([raw % b"1.5", raw % b"123456789012345678901234", raw % b"7"], np.arange(3), {}, schema)
    assert [letter.reason for letter in batch.dead] == ["float", "float"]
    assert batch.subjects == ["7"]


def settings(subject: Any, **source: Any) -> dict[str, Any]:
    return {
        "job": "j",
        "source": source or {"path": "a.csv"},
        "schema": {"features": {"a": [0, 1]}, "target": {"column": "y"}, "subject": subject},
        "model": {"estimator": "LDPSGDRegressor"},
        "cap": "eps=3",
    }


def test_a_job_declares_the_type_of_its_subjects() -> None:
    plain, text = make_config(settings("id")), make_config(settings({"column": "id", "type": "text"}))
    whole = make_config(settings({"column": "id", "type": "integer"}))
    assert plain.fingerprint() == text.fingerprint() != whole.fingerprint()
    assert plain.text() == text.text()
    stored = read_definition(whole.text())
    assert stored.fingerprint() == whole.fingerprint()
    assert stored.build_schema().subject_type == whole.build_schema().subject_type == "integer"
    assert plain.build_schema().subject_type == "text"
    assert "7, +7 and 007 are one person" in stored.notes()[0]
    assert read_definition(plain.text()).notes() == []
    for wrong in ({"column": "id", "type": "float"}, {"type": "integer"}, 7):
        with pytest.raises(ConfigError, match=r"schema\.subject"):
            make_config(settings(wrong))
    kafka = {"type": "kafka", "topic": "t", "brokers": "h:1"}
    with pytest.raises(ConfigError, match="subject_from: value"):
        make_config(settings({"column": "id", "type": "integer"}, **kafka))
    assert make_config(settings({"column": "id", "type": "integer"}, **kafka, subject_from="value"))


@given(st.lists(st.integers(-(1 << 63), (1 << 63) - 1), min_size=1))
def test_many_whole_numbers_are_the_people_that_each_is(numbers: list[int]) -> None:
    expected = [subject_bytes(number) for number in numbers]
    assert subjects_bytes(numbers) == expected
    listed = subject_list(np.array(numbers, dtype=np.int64), len(numbers))
    assert {type(number) for number in listed} == {int}  # objects of numpy take seven times as long
    assert subjects_bytes(listed) == expected


@pytest.mark.parametrize("sign", [1, -1])
def test_a_whole_number_of_too_many_digits_is_refused_among_others(sign: int) -> None:
    assert subjects_bytes([1, sign * ((1 << 1023) - 1)])[0] == b"1"
    with pytest.raises(SchemaError, match="at most 300 digits"):
        subjects_bytes([1, sign << 1023])


def test_times_and_floats_of_numpy_do_not_become_whole_numbers() -> None:
    for array in (np.array(["2026-01-01"], dtype="datetime64[ns]"), np.array([1.0]), np.array([True])):
        with pytest.raises(SchemaError, match="a subject must be"):
            subjects_bytes(subject_list(array, 1))
