"""Workers of a group, their store and their source on one virtual clock: faults and interleavings from a seed.

Every thread of every worker is a task, and one task runs at a time: all are greenlets of one thread. A task runs until
it sleeps or reaches a point: a poll, a start of a shard, a decoding, or a call of the store. There the seed decides
which task is next, and whether a fault happens: the source or the store does not answer, or late, the answer to a
commit is lost, a commit is refused, the process dies, or it stands still for so long that the group expels it. The
number of faults is limited, so that the group must get all its work done afterwards. The loop and its source's rejoin
are the real ones. So are the store, an SQLite file, and its ledger; or they are in memory, which makes many more
schedules possible.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import greenlet
import pytest

from connectors.kafkagroup import PythonGroup
from streamdp.data.records import WHOLE, Batch, Position, Shard
from streamdp.errors import LedgerConflictError, SourceUnavailableError, StoreUnavailableError
from streamdp.runtime import calls
from streamdp.runtime.worker import LAST_CALL_S, Worker
from streamdp.store.snapshot import Part
from streamdp.store.store import Store
from tests.support.memory import Entry, MemoryShards
from tests.support.memory_store import MemoryStore

SESSION_S = 10.0
"""A member that has not polled for so long is expelled from the group."""
LIMIT_S = 600.0
"""The virtual time after which a simulation has stalled."""
FAULT_SHARE = 0.06


class StalledError(AssertionError):
    """The records are not learned, or a worker does not come back to its group, although no fault happens any more."""


class DiedError(BaseException):
    """Thrown where a process dies: nothing of it runs any more."""


class Task:
    """A thread of a process, as a greenlet: to give the turn to another one takes no call of the system."""

    def __init__(self, process: int) -> None:
        self.process = process
        self.greenlet = greenlet.getcurrent()
        self.wake = 0.0
        self.done = False


class Scheduler:
    """Gives the turn to one task at a time, and moves the clock if all of them sleep.

    Parameters
    ----------
    seed
        Decides the order of tasks and the faults.
    faults
        The most faults.
    deadly
        How likely a process dies at a point, in comparison with a store or a source that does not answer.
    """

    def __init__(self, seed: int, faults: int, deadly: float = 0.1) -> None:
        self._deadly = deadly
        self.rng = random.Random(seed)
        self.now = 0.0
        self.trace: list[tuple[float, int]] = []
        self.dead: set[int] = set()
        self.told: list[str] = []
        self._faults = faults
        self._frozen: dict[int, float] = {}
        self._main = self._current = Task(0)
        self._tasks = [self._main]

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        task = self._current
        task.wake = self.now + seconds
        self._switch(task)

    def wait(self, futures: Sequence[Future[Any]], seconds: float) -> None:
        deadline = self.now + seconds
        while not all(future.done() for future in futures) and self.now < deadline:
            self.sleep(min(0.05, deadline - self.now))

    def point(self) -> None:
        """Another task may run now, and this process may die or stand still."""
        task = self._current
        if self.fault("dies", self._deadly):
            self.dead.add(task.process)
        elif self.fault("stands still", 0.1):
            self._frozen[task.process] = self.now + 3 * SESSION_S
        self._switch(task)

    def fault(self, what: str, share: float = 1.0) -> bool:
        if self._faults and self.rng.random() < share * FAULT_SHARE:
            self._faults -= 1
            self.told.append(f"{self.now:.2f} {self.process}: {what}")
            return True
        return False

    @property
    def process(self) -> int:
        return self._current.process

    def spawn(self, process: int, call: Callable[[], object]) -> Task:
        task = Task(process)
        task.wake = self.now

        def run(*_: object) -> None:  # it may begin with the result of the one that ended
            try:
                if process not in self.dead:
                    call()
            except DiedError:
                pass
            finally:
                task.done = True
                self._tasks.remove(task)
                self._current = self._next()
                task.greenlet.parent = self._current.greenlet  # which goes on when this one ends

        task.greenlet = greenlet.greenlet(run, self._main.greenlet)
        self._tasks.append(task)
        return task

    def kill_all(self) -> None:
        """End all other tasks."""
        self.dead |= {task.process for task in self._tasks} - {0}
        while len(self._tasks) > 1:
            self.sleep(0.0)

    def _switch(self, me: Task) -> None:
        chosen = self._next()
        if chosen is not me:
            self._current = chosen
            chosen.greenlet.switch()
        if me.process in self.dead:
            raise DiedError

    def _next(self) -> Task:
        def ready_at(task: Task) -> float:
            if task.process in self.dead:
                return self.now
            return max(task.wake, self._frozen.get(task.process, 0.0))

        ready = [(ready_at(task), task) for task in self._tasks]
        self.now = max(self.now, min(moment for moment, _ in ready))
        chosen = self.rng.choice([task for moment, task in ready if moment <= self.now])
        self.trace.append((self.now, chosen.process))
        return chosen


class TaskExecutor:
    """Calls as tasks of the process that makes them, one after the other; in the place of a thread."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._running: list[Task] = []

    def submit(self, call: Callable[[], Any]) -> Future[Any]:
        future: Future[Any] = Future()
        before = self._running[-1:]

        def run() -> None:
            while not all(task.done for task in before):
                self._scheduler.sleep(0.05)
            try:
                future.set_result(call())
            except BaseException as error:  # noqa: BLE001 - the caller raises it
                future.set_exception(error)

        self._running.append(self._scheduler.spawn(self._scheduler.process, run))
        return future

    def shutdown(self, *, wait: bool) -> None:
        while wait and not all(task.done for task in self._running):
            self._scheduler.sleep(0.05)


class Group:
    """Who owns which shard: a shard moves when its owner has given it up, or was expelled."""

    def __init__(self, scheduler: Scheduler, shards: Iterable[Shard]) -> None:
        self.members: dict[int, float] = {}
        self.owner: dict[Shard, int | None] = dict.fromkeys(shards)
        self.target: dict[Shard, int] = {}
        self._scheduler = scheduler

    def join(self, member: int) -> None:
        self.members[member] = self._scheduler.now
        self._assign()

    def leave(self, member: int) -> None:
        if self.members.pop(member, None) is not None:
            self.owner |= {shard: None for shard, owner in self.owner.items() if owner == member}
            self._assign()

    def expel(self) -> None:
        for member in [m for m, polled in self.members.items() if polled < self._scheduler.now - SESSION_S]:
            self.leave(member)

    def _assign(self) -> None:
        members = sorted(self.members)
        first = self._scheduler.rng.randrange(len(members)) if members else 0
        self.target = {s: members[(i + first) % len(members)] for i, s in enumerate(sorted(self.owner)) if members}

    def give(self, member: int) -> list[Shard]:
        """The shards that the member has from now on, and did not have before."""
        new = [s for s, owner in self.owner.items() if owner is None and self.target.get(s) == member]
        self.owner |= dict.fromkeys(new, member)
        return new


class Coordinator:
    """What `PythonGroup` sees of its client's part in the group."""

    rejoining = needed = False

    def request_rejoin(self) -> None:
        self.needed = True


class GroupShards(MemoryShards):
    """The shards of one member. To join takes two polls, as in a real client whose poll ends before the answer.

    The second poll goes on with what the first one began only if the rebalance is marked as needed. The client sets no
    mark if a change of metadata was the reason (KAFKA-9815); `PythonGroup` must set it, and its own code does so here.
    """

    def __init__(self, scheduler: Scheduler, group: Group, streams: Mapping[Shard, Sequence[Entry]]) -> None:
        rng = scheduler.rng
        super().__init__(
            streams, ["a", "b"], sizes=iter(lambda: rng.randrange(1, 60), None), sleep=scheduler.sleep
        )  # fmt: skip
        self._new, self._next = [], {}
        self._scheduler, self._group, self._member = scheduler, group, scheduler.process
        self._coordinator = Coordinator()
        self._consumer = SimpleNamespace(_coordinator=self._coordinator)

    @property
    def settled(self) -> bool:
        return self._member in self._group.members

    def poll(self, max_records: int, timeout_s: float) -> list[tuple[Shard, Sequence[int]]]:
        self._scheduler.point()
        self._silent("poll")
        group, me = self._group, self._member
        group.expel()
        if me not in group.members:
            if self._next:
                self.rebalance(lost=list(self._next))
            else:
                PythonGroup._finish_rejoin(cast(Any, self))
                self._join()
        else:
            group.members[me] = self._scheduler.now
            moving = [shard for shard in self._next if group.target.get(shard) != me]
            self.rebalance(revoked=moving, assigned=group.give(me))
            found = super().poll(max_records, timeout_s)
            for shard in moving:
                if group.owner[shard] == me:
                    group.owner[shard] = None
            return [(shard, raw) for shard, raw in found if group.owner[shard] == me]
        return super().poll(max_records, timeout_s)

    def _join(self) -> None:
        client = self._coordinator
        if not client.rejoining:
            client.rejoining, client.needed = True, self._scheduler.rng.random() < 0.5
        elif client.needed:
            self._group.join(self._member)
            client.rejoining = False

    def _silent(self, what: str) -> None:
        if self._scheduler.fault(f"no answer to {what}"):
            raise SourceUnavailableError("no answer")

    def start(self, shard: Shard, position: Position | None) -> Position | None:
        self._scheduler.point()
        self._silent("start")
        return super().start(shard, position)

    def decode(self, shard: Shard, raw: Sequence[int]) -> Batch:
        self._scheduler.point()
        return super().decode(shard, raw)

    def close(self) -> None:
        self._group.leave(self._member)


class Pointed:
    """A store whose calls are points, may fail before and after they happen, and may take long."""

    simulation: Simulation

    def claim(self, shards: Any) -> Any:
        return self._at_points(partial(super().claim, shards), "claim")

    def load(self, shard: Shard = WHOLE) -> Any:
        return self._at_points(partial(super().load, shard), "load")

    def commit_parts(self, parts: Mapping[Shard, Part], *given: Any) -> Any:
        commit = super().commit_parts

        def call() -> Any:
            written = commit(parts, *given)
            now = {shard: part.position["index"] for shard, part in parts.items()}
            back = [shard for shard, index in now.items() if index < self.simulation.reached.get(shard, 0)]
            assert not back, f"{back} went back"
            self.simulation.reached |= now
            return written

        return self._at_points(call, "commit")

    def _at_points(self, call: Callable[[], Any], what: str) -> Any:
        scheduler = self.simulation.scheduler
        scheduler.point()
        if scheduler.fault(f"no answer to {what}"):
            raise StoreUnavailableError("no answer")
        if scheduler.fault(f"{what} takes long"):
            scheduler.sleep(scheduler.rng.uniform(0.0, 3 * LAST_CALL_S))
        result = call()
        if scheduler.fault(f"the answer to {what} is lost"):
            raise StoreUnavailableError("no answer")
        scheduler.point()
        return result


class PointedStore(Pointed, Store):
    """A store in a file."""


class PointedMemory(Pointed, MemoryStore):
    """A store in memory. A commit may be refused as if others had spent from the same people."""

    def commit_parts(self, parts: Mapping[Shard, Part], *given: Any) -> Any:
        if self.simulation.scheduler.fault("a conflict"):
            raise LedgerConflictError("others have spent from the same people")
        return super().commit_parts(parts, *given)


class Simulation:
    """Some workers that learn shards to their ends; a process that has died is replaced by another one.

    Parameters
    ----------
    open_store
        Opens the store, for each process.
    streams
        The records of each shard.
    build
        Makes an estimator over a store's ledger.
    commit_records
        See `Worker`.
    seed, faults, deadly
        See `Scheduler`.
    workers
        The number of workers.
    left
        How many records of a shard may be left, because too few for a window came after the last one.
    idle_seconds
        A worker without records for so long closes its batches and ends, and another one begins; None for never.
    """

    def __init__(
        self,
        open_store: Callable[[], Any],
        streams: Mapping[Shard, Sequence[Entry]],
        build: Callable[[Any], Any],
        *,
        seed: int,
        faults: int = 12,
        workers: int = 2,
        commit_records: int = 60,
        idle_seconds: float | None = None,
        deadly: float = 0.1,
        left: int = 0,
    ) -> None:
        self._left = left
        self._idle_seconds, self._deadly = idle_seconds, deadly
        self._seed, self._faults = seed, faults
        self.reached: dict[Shard, int] = {}
        self._open_store, self._streams, self._build = open_store, streams, build
        self._commit_records = commit_records
        self._target = workers
        self._started = 0
        self._running: dict[int, Worker] = {}
        self._errors: list[BaseException] = []

    def run(self) -> Simulation:
        """Run until all records are committed and all workers have ended.

        Raises `StalledError` if that does not happen within `LIMIT_S`, and any error of a worker.
        """
        with pytest.MonkeyPatch.context() as patch, ThreadPoolExecutor(1) as thread:
            patch.setattr(calls, "Calls", lambda: TaskExecutor(self.scheduler))
            thread.submit(self._run_all).result()  # not in the main thread, where workers set signal handlers
        return self

    def _run_all(self) -> None:
        self.scheduler = Scheduler(self._seed, self._faults, self._deadly)
        self._group = Group(self.scheduler, self._streams)
        try:
            self._run()
        finally:
            self.scheduler.kill_all()

    def _run(self) -> None:
        ends = {shard: len(stream) for shard, stream in self._streams.items()}
        missing: dict[int, float] = {}
        while any(self.reached.get(shard, 0) < end - self._left for shard, end in ends.items()):
            live = [number for number in self._running if number not in self.scheduler.dead]
            for _ in range(self._target - len(live)):
                self._started += 1
                self.scheduler.spawn(self._started, partial(self._work, self._started))
                live.append(self._started)
            self.scheduler.sleep(1.0)
            if self._errors:
                raise self._errors[0]
            missing = {n: missing.get(n, self.scheduler.now) for n in live if n not in self._group.members}
            lonely = [n for n, since in missing.items() if self.scheduler.now - since > 10 * SESSION_S]
            if lonely or self.scheduler.now > LIMIT_S:
                raise StalledError(f"at {self.reached} of {ends}, out of the group: {lonely}; {self.scheduler.told}")
        for number, worker in self._running.items():
            if number not in self.scheduler.dead:
                worker.stop()
        while any(number not in self.scheduler.dead for number in self._running):
            self.scheduler.sleep(1.0)
            if self.scheduler.now > 2 * LIMIT_S:
                raise StalledError(f"a worker does not stop; {self.scheduler.told}")
        if self._errors:
            raise self._errors[0]

    def _work(self, number: int) -> None:
        scheduler = self.scheduler
        store = self._open_store()
        store.simulation = self
        source = GroupShards(scheduler, self._group, self._streams)
        worker = Worker(
            source,
            lambda: self._build(store),
            store,
            commit_records=self._commit_records,
            clock=scheduler.clock,
            sleep=scheduler.sleep,
            wait=scheduler.wait,
            randomness=scheduler.rng.uniform,
        )
        self._running[number] = worker
        try:
            worker.run(idle_seconds=self._idle_seconds)
        except Exception as error:  # noqa: BLE001 - `run` raises it
            # A worker that was stopped waits for the store for some seconds only.
            if not (worker.stopping and isinstance(error, StoreUnavailableError)):
                self._errors.append(error)
        finally:
            store.close()
            self._running.pop(number, None)
