"""schemathesis: calls made from the service's own description, fitting and not, get documented answers."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode
from schemathesis.checks import negative_data_rejection, positive_data_acceptance

from tests.support.service import client, job

JUDGED = [negative_data_rejection, positive_data_acceptance]
"""Not asked: a call may fit the description and not the job's schema, and bad records are answered one by one."""


def check(folder: Path, examples: int, others: int) -> set[str]:
    """Call every route with `examples` fitting calls, and each with a body with `others` that do not fit.

    Where no call of many tries fits, hypothesis is slow: `others` beside the bodies only if they are many.
    """
    with client(job(folder)) as http:
        # The stream of events never ends.
        schema = schemathesis.openapi.from_url(f"{http.base_url}/openapi.json").exclude(path_regex="events$")
        operations = [found.ok() for found in schema.get_all_operations()]
        for operation in operations:
            call(operation, GenerationMode.POSITIVE, examples)
            if operation.body or others > 10:
                with suppress(Unsatisfiable):  # a route without parameters has no other calls
                    call(operation, GenerationMode.NEGATIVE, others)
        return {f"{operation.method} {operation.path}" for operation in operations}


def call(operation: Any, mode: GenerationMode, examples: int) -> None:
    @settings(max_examples=examples, deadline=None, suppress_health_check=list(HealthCheck))
    @given(operation.as_strategy(generation_mode=mode))
    def test(case: Any) -> None:
        if mode is GenerationMode.POSITIVE and "job" in case.path_parameters:
            case.path_parameters["job"] = "late"
        case.call_and_validate(excluded_checks=JUDGED)

    test()


@pytest.mark.slow
def test_calls_get_documented_answers(tmp_path: Path) -> None:
    assert "post /v1/models/{job}/learn" in check(tmp_path, 2, 1)


@pytest.mark.campaign
def test_many_calls_get_documented_answers(tmp_path: Path) -> None:
    check(tmp_path, 500, 500)
