"""Who is in a release, what its records owe, and when it ends."""

import numpy as np
import pytest

from streamdp import ApproxDP, GaussianDP, Ledger, PanPrivateRegressor, PureDP
from streamdp.data.subjects import Dated
from streamdp.ledger.caps import shared_numbers, spend_numbers
from streamdp.privacy.release import JOINED, LEFT_OUT, READS, REFUSED, Release

APPROX, DAY, NOW = ApproxDP(1.0, 1e-6), 86_400, 1.8e9
PEOPLE = [b"ann", b"bob", b"ann", b"cid", b"ann", b"bob"]


def ledger_at(cap: str) -> Ledger:
    ledger = Ledger(cap)
    ledger.moments.clock = lambda: NOW
    return ledger


@pytest.mark.parametrize("epsilon", [1e-5, 0.1, 3.0, 400.0])
@pytest.mark.parametrize("k", [1, 2, 100])
def test_records_of_a_pure_epsilon_in_one_release_are_one_of_their_sum(epsilon: float, k: int) -> None:
    """In epsilon as in mu, however the records come; a record of a period is never charged less than alone."""
    terms = shared_numbers(PureDP(epsilon), np.arange(1, k + 1)) * np.ones((k, 1))
    np.testing.assert_allclose(terms.sum(axis=0), spend_numbers(PureDP(k * epsilon), None, 1)[0], rtol=1e-6)
    assert np.all(np.diff(terms[:, 3]) >= -1e-9 * terms[0, 3])  # so any k of more of them cover the first k
    with Ledger("eps=1e5") as ledger:
        release = Release(PureDP(epsilon))
        for part in np.array_split(np.arange(k), 3):
            assert np.all(ledger.join(release, ledger.prepare([b"ann"] * len(part))) == JOINED)
        assert ledger.spent("ann").pure_mu_squared == pytest.approx(GaussianDP.from_pure(PureDP(k * epsilon)).mu ** 2)


@pytest.mark.parametrize("most", [None, 3])
def test_each_period_of_a_release_is_charged_and_the_total_once(most: int | None) -> None:
    """Of a release for people. One for records takes one of a person, and charges the period of that."""
    days = [0, 1, 0, 1, 2]
    with ledger_at("eps=1,delta=1e-6 per 1 day, total eps=2,delta=2e-6") as ledger:
        release = Release(APPROX, most)
        people = [Dated("ann", NOW - day * DAY) for day in days]
        found = ledger.join(release, ledger.prepare(people))
        wanted = [JOINED, JOINED, JOINED, LEFT_OUT, LEFT_OUT] if most else [JOINED, *[LEFT_OUT] * 4]
        assert found.tolist() == wanted
        assert [ledger.spent("ann", NOW - day * DAY).records for day in range(3)] == [1, int(most == 3), 0]
        assert ledger.spent("ann").records == 1
        release.close()
        again = ledger.join(release, ledger.prepare([*people[:2], Dated("ann", NOW - 2 * DAY)]))
        # What spent its period is refused, and the total has one more.
        assert again.tolist() == ([REFUSED, REFUSED, JOINED] if most else [REFUSED, JOINED, LEFT_OUT])
        assert ledger.join(release, ledger.prepare([Dated("ann", NOW - 9 * DAY)])).tolist() == [REFUSED]


def test_a_person_whose_first_record_is_refused_for_its_period_may_join_with_another_one() -> None:
    with ledger_at("eps=1,delta=1e-6 per 1 day") as ledger:
        ledger.admit(Dated("ann", NOW - DAY), APPROX)
        release = Release(APPROX)
        people = [Dated("ann", NOW - DAY), Dated("ann", NOW), Dated("ann", NOW - DAY), Dated("ann", NOW)]
        assert ledger.join(release, ledger.prepare(people)).tolist() == [REFUSED, JOINED, LEFT_OUT, LEFT_OUT]


def test_a_release_ends_by_what_it_takes_or_by_what_it_reads() -> None:
    learner = PanPrivateRegressor(features=["a"]).learner
    learner.open = release = Release(APPROX)
    release.join([b"ann"])
    release.taken += 1
    assert learner.left(5) == 4
    release.join([b"ann"] * 4)
    assert learner.left(5) == 4
    release.join([b"ann"] * 3)
    assert learner.left(5) == READS * 5 - 8 == 2
    release.join([b"ann"] * 9)
    assert learner.left(5) == 0
    release.close()
    assert (learner.left(5), release.people) == (5, {})
