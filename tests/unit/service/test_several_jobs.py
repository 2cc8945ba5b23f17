"""Jobs that learn from requests in one database: one cap over all, and no accepted call is lost or counted twice."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from streamdp.privacy.guarantees import PureDP
from streamdp.service import learning_job
from streamdp.store.store import Store
from tests.support.service import client, job, record

pytestmark = pytest.mark.slow


def learn(http: httpx.Client, name: str, people: list[str], key: str | None = None) -> httpx.Response:
    headers = {} if key is None else {"Idempotency-Key": key}
    records = [record(i, subject=person) for i, person in enumerate(people)]
    return http.post(f"/v1/models/{name}/learn", json={"records": records}, headers=headers)


def jobs(folder: Path, *names: str) -> list[Any]:
    return [job(folder, name, store=str(folder / "people.db")) for name in names]


def spent(folder: Path, *people: str) -> list[int]:
    with Store(folder / "people.db", "reader", "f", cap=PureDP(5)) as store:
        return [store.ledger.spent(person).records for person in people]


def test_calls_to_two_jobs_at_the_same_time_share_one_cap(tmp_path: Path) -> None:
    people = [f"p{i}" for i in range(20)]
    with client(*jobs(tmp_path, "a", "b")) as http, ThreadPoolExecutor(8) as pool:
        calls = [pool.submit(learn, http, name, people) for _ in range(4) for name in "ab"]
        answers = [call.result().json() for call in calls]
    assert sum(answer["learned"] for answer in answers) == 5 * len(people)
    assert sum(answer["refused"] for answer in answers) == 3 * len(people)
    assert spent(tmp_path, *people) == [5] * len(people)


def test_a_call_is_learned_again_after_another_job_has_spent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Job b commits between the admission and the commit of job a: together they would be over the cap."""
    commit, between = Store.commit_parts, []
    with client(*jobs(tmp_path, "a", "b")) as http:

        def late(store: Store, *given: Any) -> Any:
            if store.job == "a" and not between:
                between.append(learn(http, "b", ["ann"] * 3, "kb").json())
            return commit(store, *given)

        monkeypatch.setattr(Store, "commit_parts", late)
        answer = learn(http, "a", ["ann", "ann", "bob", "ann"], "ka").json()
        assert (between[0]["learned"], between[0]["refused"]) == (3, 0)
        assert (answer["learned"], answer["refused"], answer["dead"]) == (3, 1, [])
        assert learn(http, "a", ["ann", "ann", "bob", "ann"], "ka").json() == answer
    snapshot = Store.snapshot(tmp_path / "people.db", "a")
    assert (snapshot.counts.learned, snapshot.counts.refused, snapshot.position) == (3, 1, {"records": 4})
    assert spent(tmp_path, "ann", "bob") == [5, 1]


@pytest.mark.parametrize("again", [True, False])
def test_a_commit_that_failed_charges_nothing(tmp_path: Path, again: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether its caller repeats the call or another one comes, charges are what was learned."""
    write, failed = Store._write, []
    monkeypatch.setattr(learning_job, "RETRY_S", 0.01)

    def once(store: Store, *given: Any) -> Any:
        if not failed:
            failed.append(True)
            raise OSError("the disk is gone")
        return write(store, *given)

    monkeypatch.setattr(Store, "_write", once)
    with client(*jobs(tmp_path, "a")) as http:
        assert learn(http, "a", ["ann", "ann", "bob"], "k").status_code == 503
        while (answer := learn(http, "a", ["ann", "ann", "bob"] if again else ["ann"] * 5, "k" * (2 - again))).is_error:
            assert answer.status_code == 503  # until the store is open again
        assert answer.json()["learned"] == (3 if again else 5)
    assert spent(tmp_path, "ann", "bob") == ([2, 1] if again else [5, 0])
