"""Errors of a job configuration: the key and the problem in one line, without values."""

import re
from collections.abc import Iterable, Sequence

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from streamdp.config.settings import FORMS, Settings, type_of
from streamdp.errors import BUDGETS, ConfigError, suggestion

BRANCHES = ("(bounds)", "(categories)", "(mapping)")
"""How pydantic names the forms of a declaration in the path to a problem."""


_EXPECTED = {
    "tuple_type": "two numbers, as [0, 100]",
    "list_type": "a list, as [a, b]",
    "dict_type": "a mapping, as {name: value}",
    "string_type": "text: put quotes around it",
    "string_too_short": "text that is not empty",
    **dict.fromkeys(("int_type", "int_parsing", "int_from_float"), "a whole number"),
    **dict.fromkeys(("float_type", "float_parsing"), "a number"),
    **dict.fromkeys(("bool_type", "bool_parsing"), "true or false"),
}
"""What to write in place of a value, by the type of pydantic's problem."""


class MisfitError(ValueError):
    """Two settings contradict each other. The error message names the top-level `key` and has this `message`."""

    def __init__(self, key: str, message: str) -> None:
        super().__init__(message)
        self.key = key


class WrongSettingsError(ConfigError):
    """Settings of a job are empty or wrong: `problems` has a sentence for each, and the message the first one."""

    def __init__(self, problems: Sequence[str]) -> None:
        more = f"; {len(problems) - 1} more: `streamdp check` lists them" if problems[1:] else ""
        super().__init__(problems[0] + more)
        self.problems = problems


Problem = tuple[tuple[str | int, ...], str]
"""The path of keys to a problem, and one line that names this path and the problem."""


def problems(error: ValidationError, known: Iterable[str] = ()) -> list[Problem]:
    """Locate and describe the problems, one of each place. The names of all settings, `known`, serve for hints."""
    errors = error.errors(include_url=False)
    # A mistyped setting is unknown under its name, and missing under the right one.
    hints = [_hint(str(e["loc"][-1]), known) if e["type"] == "extra_forbidden" else "" for e in errors]
    found = dict[tuple[str | int, ...], Problem]()
    for each, hint in sorted(zip(errors, hints, strict=True), key=lambda pair: not pair[1]):
        loc = each["loc"]
        hinted = each["type"] == "missing" and any(
            f"'{loc[-1]}'" in other and one["loc"][:-1] == loc[:-1] for one, other in zip(errors, hints, strict=True)
        )
        if not hinted:
            declared = next((i for i, step in enumerate(loc) if _is_form(step)), len(loc))  # a form of several
            found.setdefault(loc[:declared], _described(each, hint))
    return list(found.values())


def _is_form(step: str | int) -> bool:
    return step in BRANCHES or "[" in str(step)


def _described(problem: ErrorDetails, hint: str) -> Problem:
    place = tuple(step for step in problem["loc"] if not _is_form(step))
    if place[:1] == ("source",):
        place = place[:1] + place[2:]  # pydantic inserts the tag of the kind of source
    if place[:1] == ("publish",):
        place = place[:1] + place[3:]  # and the number and the kind of a sink
    cause = problem.get("ctx", {}).get("error")
    if isinstance(cause, MisfitError):
        place = (cause.key,)
    match problem["type"]:
        case "extra_forbidden":
            message = f"unknown setting{hint}"
        case "missing":
            message = "missing setting"
        case "value_error":
            message = str(cause)
        case "model_type" | "model_attributes_type":
            message = f"expected a mapping of settings{_required(problem['ctx']['class_name'])}"
        case "literal_error" | "type" if choices := re.findall(r"'([^']*)'", problem["msg"]):
            given = str(type_of(problem["input"], problem["input"]))
            shown = [choice if choice.isalnum() or len(choice) > 1 else repr(choice) for choice in choices]  # marks
            message = f"expected one of {', '.join(shown)}{suggestion(given, choices)}"
        case "dict_type" if place[-1:] == ("features",):
            message = "expected bounds or categories by name, as {age: [18, 100], city: [Lyon, Paris]}"
        case kind:
            expected = _EXPECTED.get(kind) or FORMS.get(str(problem.get("ctx", {}).get("pattern")))
            message = f"expected {expected}" if expected else problem["msg"][:1].lower() + problem["msg"][1:]
    name = ".".join(str(step) for step in place)
    named = not name or message.startswith((f"{name}.", f"{name}:"))
    return place, message if named else f"{name}: {message}"


def _required(kind: str) -> str:
    """The settings that a mapping needs, by the name of its class; "" if it needs none."""
    kinds: list[type[Settings]] = [Settings]
    for one in kinds:
        kinds += one.__subclasses__()
    names = {one.__name__: [n for n, field in one.model_fields.items() if field.is_required()] for one in kinds}
    needed = names.get(kind)
    return f", as {{{', '.join(f'{name}: ...' for name in needed)}}}" if needed else ""


_ELSEWHERE = {
    **{name: f"model: {{budget: '{budget}'}}" for name, budget in (BUDGETS | {"budget": "eps=1"}).items()},
    "trust": "model: {trust: process}",
    **dict.fromkeys(("subject", "features", "target"), "schema: {features: ..., target: ..., subject: ...}"),
}
"""Settings under other names, or in other places, and where they are."""


def _hint(name: str, known: Iterable[str]) -> str:
    """Where a setting is, or the one that is most like it; "" for one that exists elsewhere, but for its plural."""
    if "=" in name:
        return '; put quotes around a value with a comma, as budget: "eps=1,delta=1e-6"'
    if name in _ELSEWHERE:
        return f"; it is in {_ELSEWHERE[name]}"
    known = set(known)
    if name in known:
        known &= {f"{name}s"}
    return suggestion(name, sorted(known))
