"""What people are promised, as a value, and in what another promise is weaker: all that `--accept-budget` asks about.

A store keeps every promise of a job, also those of former models. Whether one promise is at least as strong as another
is transitive, and each change is compared with the promise before it, which was made or accepted. So a change in
several steps is asked about as one in a single step is.
"""

from collections.abc import Iterator, Sequence

from streamdp.config.settings import Settings
from streamdp.estimators.door import Trust
from streamdp.ledger.periods import allows_more, in_units, parse_cap, same_kind
from streamdp.privacy.guarantees import implies, parse_budget

_SEEN_BY: dict[Trust, frozenset[str]] = {
    "nobody": frozenset(),
    "process": frozenset({"a record at a time"}),
    "window": frozenset({"a record at a time", "a window"}),
    "shuffler": frozenset({"a shuffler"}),
}
"""What must be trusted. A trust model asks for more than another one unless it needs nothing else."""


class Promise(Settings):
    """What people were promised until another promise followed.

    - `learned`: how many records the model had learned then; 0 for the present promise.
    - `budget`: what a record spends in all: on the model, on its answer, and on statistics.
    - `own`: whether a record may bring a budget of its own in place of it.
    - `private`: whether there is noise that nobody can subtract.
    - `covers`: how many records of a person one budget covers.
    - `cap`: what a person may spend. None: no cap.
    - `people`: the column that names people, and its type. By another one, each person counts anew.
    - `time`: the column by which a cap that renews counts records, and its unit. None: none does.
    - `windows`: the length in seconds and the zone of the windows of time that statistics are shown of, so that it is
      public in which one a record is. None: there are none.
    - `trust`: who may see the raw records.
    - `shuffled`: what is promised if a shuffler of reports is trusted, too. None: nothing is.
    - `ended`: whether another model followed, and not only another promise.
    """

    learned: int = 0
    budget: str
    own: bool = False
    private: bool = True
    covers: int = 1
    cap: str | None = None
    people: tuple[str, str] | None = None
    time: tuple[str, str] | None = None
    windows: tuple[int, str] | None = None
    trust: Trust
    shuffled: str | None = None
    ended: bool = False

    @property
    def spend(self) -> str:
        """What a record spent, and who had to be trusted, in words."""
        spent = f"{parse_budget(self.budget)}" + " or a budget of their own" * self.own
        noise = spent if self.private else f"no noise that protects it, for {spent}"
        return f"{noise} (trust: {self.trust})"


def models(made: Sequence[Promise]) -> list[tuple[Promise, ...]]:
    """Return the promises of each former model, oldest first, and those of the present model at the end."""
    found: list[tuple[Promise, ...]] = [()]
    for promise in made:
        found[-1] += (promise,)
        if promise.ended:
            found.append(())
    return found


def weaker(old: Promise, new: Promise) -> list[str]:
    """Return in what a `new` promise says less than an `old` one, as sentences; none: in nothing."""
    return list(dict.fromkeys(_weaker(old, new)))


def _weaker(old: Promise, new: Promise) -> Iterator[str]:
    spent, spend = parse_budget(old.budget), parse_budget(new.budget)
    if not implies(spend, spent):
        yield f"a record spent {spent} in all and now spends {spend}"
    if old.private and not new.private:
        yield f"a record spent {spent} in all and now has no noise that protects it"
    if new.own and not old.own:
        yield f"a record spent {spent} in all and may now bring a budget of its own"
    if old.shuffled is not None and not (
        new.shuffled is not None and implies(parse_budget(new.shuffled), parse_budget(old.shuffled))
    ):
        yield f"shuffled reports promised {old.shuffled} and now {new.shuffled or 'are not shuffled'}"
    if new.covers < old.covers:
        yield f"one budget covered up to {old.covers} records of a person and now covers {new.covers}"
    yield from _of_caps(old, new)
    if old.people not in (None, new.people) and (old.cap is not None or old.covers > 1 or old.trust == "window"):
        yield f"people are named by {_named(new.people)} and no longer by {_named(old.people)}, so each counts anew"
    if not _follows(new.windows, old.windows):
        yield f"statistics were shown of {_shown(old.windows)} and are now of {_shown(new.windows)}"
    if not _SEEN_BY[new.trust] <= _SEEN_BY[old.trust]:
        yield f"raw records were for trust: {old.trust} and are now for trust: {new.trust}"


def _of_caps(old: Promise, new: Promise) -> Iterator[str]:
    if old.cap is None:
        return
    if new.cap is None:
        yield f"a person could spend {old.cap} and now has no cap"
        return
    if not same_kind(parse_cap(new.cap), parse_cap(old.cap)):
        yield f"a person could spend {old.cap} and now {new.cap}, a cap of another kind, and perhaps both together"
        return
    if allows_more(parse_cap(new.cap), parse_cap(old.cap)):
        yield f"a person could spend {old.cap} and now {new.cap} (cap: {old.cap} keeps it)"
    if new.time != old.time:
        yield f"a record's time was {_named(old.time)} and is now {_named(new.time)}, so it counts in another period"


def _follows(new: tuple[int, str] | None, old: tuple[int, str] | None) -> bool:
    """Whether the window of a record in old windows of time says which one it is in of the new ones."""
    return new is None or (old is not None and new[1] == old[1] and new[0] % old[0] == 0)


def _shown(windows: tuple[int, str] | None) -> str:
    return "all time together" if windows is None else f"windows of {in_units(windows[0])} ({windows[1]})"


def _named(column: tuple[str, str] | None) -> str:
    return "no column" if column is None else "{} ({})".format(*column)
