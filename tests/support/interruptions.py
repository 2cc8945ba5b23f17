"""Exceptions at a chosen line of streamdp, as Ctrl-C or a full memory would raise them."""

import linecache
import os
import sys
from collections.abc import Callable
from functools import cache
from types import FrameType
from typing import Any

import streamdp

_FOLDER = os.path.dirname(streamdp.__file__) + os.sep


class Interruption(BaseException):
    """What is raised; no code catches it by its type."""


@cache
def _uncounted(name: str) -> set[int]:
    """The lines of a file that are not counted."""
    lines = enumerate(linecache.getlines(name), 1)
    return {number for number, line in lines if line.lstrip().startswith(("with ", "try:"))}


def interrupted(call: Callable[[], Any], after: int, package: str = "") -> int:
    """Call, and raise `Interruption` before the line of streamdp, or of a package in it, that follows `after` lines.

    Returns how many lines were run: less than or as many as `after` if the call ended by itself.
    Lines with `with` are not counted, because a trace at the end of a block would skip its `__exit__`; nor are those
    with only `try:`, at which no exception can come.
    """
    lines = 0

    def trace(frame: FrameType, event: str, _: object) -> Callable[..., Any] | None:
        nonlocal lines
        name = frame.f_code.co_filename
        if not name.startswith(_FOLDER + package):
            return None
        if event == "line" and frame.f_lineno not in _uncounted(name):
            lines += 1
            if lines > after:
                sys.settrace(None)
                raise Interruption
        return trace

    sys.settrace(trace)
    try:
        call()
    except Interruption:
        pass
    finally:
        sys.settrace(None)
    return lines


def lines_of(call: Callable[[], Any]) -> int:
    """Return how many lines of streamdp a call runs."""
    return interrupted(call, sys.maxsize)
