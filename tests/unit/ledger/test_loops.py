"""The compiled loops of the ledger do what plain Python says: check words, the table of rows, and pages of spends."""

import math
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamdp.errors import StoreDamagedError
from streamdp.ledger import admission, page_codec, page_loops, row_index
from streamdp.ledger.check_words import check_words
from streamdp.ledger.page_codec import Group
from streamdp.ledger.row_cache import RowCache, nothing
from streamdp.ledger.rows import (
    APPROX,
    CAP,
    CAP_DELTA,
    DELTA,
    EPSILON,
    GAUSSIAN,
    MU_SQUARED,
    NOBODY,
    PURE,
    PURE_MU_SQUARED,
    RECORDS,
    ROW,
)
from streamdp.privacy.guarantees import gdp_delta

WORD = st.sampled_from([0, 1, 2**63, 2**64 - 1]) | st.integers(0, 2**64 - 1)
ROWS = st.lists(st.lists(WORD, min_size=ROW, max_size=ROW), max_size=6)
KEY = st.tuples(st.sampled_from([0, 1, 2**64 - 1]), st.sampled_from([0, 1024, 2**63]) | WORD)

Row = tuple[int, ...]
Page = dict[tuple[int, int], Row]


def keys_of(keys: list[tuple[int, int]]) -> np.ndarray:
    return np.array(keys, dtype=np.uint64).reshape(-1, 2)


def rows_of(rows: list[Row] | list[list[int]]) -> np.ndarray:
    return np.array(rows, dtype=np.uint64).reshape(-1, ROW).view(np.float64)


def mixed(*words: int) -> int:
    """The check word over some words."""
    out = 0x9E3779B97F4A7C15
    for word in words:
        out = (out ^ word) * 0xBF58476D1CE4E5B9 % 2**64
        out ^= out >> 31
    return out


def check(key: tuple[int, int], row: Row) -> int:
    return mixed(*key, *(row if row[CAP] else row[:CAP]))


def packed(number: int, page: Page) -> bytes:
    """A page as `page_codec` describes it."""
    keys, columns = list(page), list(zip(*page.values(), strict=True))
    mask = sum(1 << c for c, column in enumerate(columns) if any(column))
    words = [
        mask,
        *(word for key in keys for word in key),
        *(word for column in columns if any(column) for word in column),
    ]
    return struct.pack(f"<{len(words) + 1}Q", mixed(number, *words), *words)


@given(st.lists(KEY, min_size=6, max_size=6), ROWS)
def test_check_words(keys: list[tuple[int, int]], rows: list[list[int]]) -> None:
    want = [check(key, tuple(row)) for key, row in zip(keys, rows, strict=False)]
    assert check_words(keys_of(keys[: len(rows)]), rows_of(rows).view(np.uint64)).tolist() == want


@given(st.lists(st.lists(st.tuples(KEY, st.booleans()), max_size=40), max_size=6))
def test_rows_are_found_as_in_a_dictionary(calls: list[list[tuple[tuple[int, int], bool]]]) -> None:
    """Keys whose low bits are equal share a place of the index. Some reads fail."""
    cache, model = RowCache(), {}

    def read(keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        asked.extend(keys.tolist())
        if i % 3 == 2:
            raise KeyError
        return nothing(keys)

    for i, call in enumerate(calls):
        before, asked = dict(model), list[list[int]]()
        want = [model.setdefault(key, len(model)) if there else NOBODY for key, there in call]
        new = [list(key) for key in model if key not in before]
        keys, there = keys_of([key for key, _ in call]), np.array([there for _, there in call], dtype=np.bool_)
        if new and i % 3 == 2:
            model = before
            with pytest.raises(KeyError):
                cache.find(keys, there, read)
        else:
            assert cache.find(keys, there, read).tolist() == want
        assert asked == new
        assert cache.n == len(model)


def test_a_full_turn_of_the_index() -> None:
    """A key whose place is at the end of the index is stored at its start."""
    keys, index, asked = np.zeros((4, 2), dtype=np.uint64), np.zeros(8, dtype=np.int32), np.zeros(1, dtype=np.int64)
    wanted = keys_of([(1, 7), (2, 7), (3, 15), (1, 7), (2, 7)])
    assert row_index.find_or_add(wanted, np.ones(5, np.bool_), keys, index, asked).tolist() == [0, 1, 2, 0, 1]
    assert (index.tolist(), asked.tolist()) == ([2, 3, 0, 0, 0, 0, 0, 1], [3])


PAGE = st.dictionaries(KEY, st.tuples(*[st.just(0) | WORD] * ROW), max_size=5)


@given(st.integers(0, 2**63 - 1), PAGE)
def test_a_page_has_the_bytes_of_its_description(number: int, page: Page) -> None:
    blob = page_codec.pack(number, keys_of(list(page)), rows_of(list(page.values())))
    assert blob == packed(number, page)
    keys, rows = page_codec.unpack([number, 3], [blob, b""])
    assert list(map(tuple, keys.tolist())) == list(page)
    assert list(map(tuple, rows.view(np.uint64).tolist())) == list(page.values())


@given(PAGE, st.data())
def test_a_changed_page_is_damaged(page: Page, data: st.DataObject) -> None:
    """One changed bit, another length, another number."""
    blob = packed(5, page)
    bit = data.draw(st.integers(0, 8 * len(blob) - 1))
    changed = bytearray(blob)
    changed[bit // 8] ^= 1 << bit % 8
    other = [bytes(changed), blob[: data.draw(st.integers(1, len(blob) - 1))], blob + bytes(8), blob + b"\0"]
    for number, content in [(6, blob), *((5, content) for content in other)]:
        with pytest.raises(StoreDamagedError):
            page_codec.unpack([number], [content])


@given(st.lists(PAGE, min_size=1, max_size=4), st.lists(PAGE, min_size=1, max_size=4), st.data())
@pytest.mark.slow
def test_pages_merge_and_answer_as_dictionaries(old: list[Page], new: list[Page], data: st.DataObject) -> None:
    """Some rows are written to some pages; then all of them are asked for, and as many that are not there."""
    pages = [2**40 + 3 * i for i in range(len(old))]
    new = [new[i] if i < len(new) else {} for i in range(len(old))]
    blobs = [packed(number, page) if page else b"" for number, page in zip(pages, old, strict=True)]
    subjects = [(p, key) for p, page in enumerate(new) for key in page]
    order = data.draw(st.permutations(range(len(subjects))))  # the place of each subject in the arrays
    places = {place: subject for subject, place in zip(subjects, order, strict=True)}
    keys = keys_of([places[i][1] for i in range(len(places))])
    rows = rows_of([new[p][key] for p, key in (places[i] for i in range(len(places)))])
    starts = np.cumsum([0, *map(len, new)])
    group = Group(np.array(pages), starts, np.array(order, dtype=np.int64))
    before = [old[p].get(key) for p, key in (places[i] for i in range(len(places)))]

    merged, sizes = page_codec.merge(group, blobs, keys, rows)
    want = [a | b for a, b in zip(old, new, strict=True)]
    assert merged == [packed(number, page) for number, page in zip(pages, want, strict=True)]
    assert sizes.tolist() == list(map(len, want))

    found = np.zeros(len(keys), dtype=np.bool_)
    fresh = rows_of([(0,) * ROW] * len(keys))
    page_codec.pick(group, blobs, keys, fresh, found)
    assert found.tolist() == [row is not None for row in before]
    assert [tuple(row) for row in fresh.view(np.uint64).tolist()] == [row or (0,) * ROW for row in before]


def fits(sums: list[float], kind: int, most: float, most_delta: float) -> bool:
    slack = 1 + 1e-9
    epsilon, delta, mu_squared, pure_mu_squared = sums
    if kind == PURE:
        return epsilon <= most * slack and delta == 0 and mu_squared == 0
    if kind == GAUSSIAN:
        return mu_squared + pure_mu_squared <= most * slack * slack and delta == 0
    if mu_squared == 0:
        return epsilon <= most * slack and delta <= most_delta * slack
    alone = epsilon == delta == 0
    own = 1.0 if mu_squared == math.inf else gdp_delta(math.sqrt(mu_squared), most * slack)
    return alone and own <= most_delta * slack


AMOUNT = st.sampled_from([0.0, 0.1, 0.5, 1.0, math.inf]) | st.floats(0, 2)
SPEND = st.one_of(
    st.tuples(AMOUNT, st.just(0.0), st.just(0.0), AMOUNT),
    st.tuples(st.sampled_from([0.0, 0.1, 0.5]), st.sampled_from([0.0, 0.04, 0.2]), st.just(0.0), st.just(math.inf)),
    st.tuples(st.just(0.0), st.just(0.0), AMOUNT, st.just(0.0)),
    st.tuples(AMOUNT, AMOUNT, AMOUNT, AMOUNT),
)


@given(
    st.sampled_from([(PURE, 3.0, 0.0), (GAUSSIAN, 2.0, -1.0), (APPROX, 1.0, 0.1)]),
    st.lists(st.sampled_from([0.0, 0.25, 4.0]), min_size=3, max_size=3),
    st.lists(st.tuples(st.integers(-1, 2), SPEND), max_size=30),
    st.booleans(),
)
def test_admission_adds_what_fits(
    cap: tuple[int, float, float], own: list[float], records: list[tuple[int, tuple[float, ...]]], alike: bool
) -> None:
    """Subjects with and without caps of their own, sums of every kind, each record with its spend or all with one."""
    kind, most, most_delta = cap
    rows, pending = np.zeros((3, ROW)), np.zeros(3, dtype=np.bool_)
    rows[:, CAP] = own
    rows[:, CAP_DELTA] = [most_delta if cap else 0 for cap in own]
    want = rows.tolist()
    terms = [spend for _, spend in records]
    if alike and terms:
        terms = terms[:1]
    answers, changed = [], set()
    for i, (slot, _) in enumerate(records):
        row, answer = want[slot], True
        if slot >= 0:
            after = [a + b for a, b in zip(row, terms[i % len(terms)], strict=False)]
            answer = fits(after, kind, row[CAP] or most, row[CAP_DELTA] if row[CAP] else most_delta)
            if answer:
                row[: len(after)] = after
                row[RECORDS] += 1
                changed.add(slot)
        answers.append(answer)
    slots = np.array([slot for slot, _ in records], dtype=np.int64)
    table = np.array(terms, dtype=np.float64).reshape(-1, 4)
    assert admission.admit_in_order(slots[None], table, rows, pending, [cap]).tolist() == answers
    assert (rows.tolist(), pending.tolist()) == (want, [i in changed for i in range(3)])
    assert admission.all_fit(rows, *cap)
    rows[1, [EPSILON, DELTA, MU_SQUARED, PURE_MU_SQUARED]] = math.inf
    assert not admission.all_fit(rows, *cap)


def test_arrays_of_another_type_or_layout_are_refused() -> None:
    keys, rows = keys_of([(1, 2), (3, 4)]), np.zeros((2, ROW))
    words, every, caps = rows.view(np.uint64), np.arange(2), [(PURE, 1.0, 0.0)]
    for wrong in (rows, words.astype(np.int64), words[:, ::-1], words[0], np.asfortranarray(words)):
        with pytest.raises(TypeError):
            page_loops.pack_page(1, keys, wrong, np.empty(20, dtype=np.uint64))
    with pytest.raises(TypeError):
        admission.admit_in_order(every[None].astype(np.int32), rows[:1, :4], rows, np.zeros(2, np.bool_), caps)
    with pytest.raises(TypeError):
        admission.admit_in_order(every[None], rows[:, :4], rows, np.zeros(2, np.bool_), caps)
