"""schemathesis: calls made from the service's own description, fitting and not, get documented answers."""

from contextlib import suppress
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode
from schemathesis.checks import negative_data_rejection, positive_data_acceptance

from streamdp.errors import RefusedReportError
from streamdp.protocol.reports import WireAnswer, WireReport, read_report
from streamdp.service import schemas
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


def test_each_call_has_a_summary_and_examples_that_fit(tmp_path: Path) -> None:
    with client(job(tmp_path)) as http:
        document = http.get("/openapi.json").json()
    assert "Private models" in document["info"]["description"]
    calls = [call for path in document["paths"].values() for call in path.values()]
    assert len(calls) == 12
    for call in calls:
        assert call["summary"] == call["description"].split(". ")[0].removesuffix(".")
        assert len(call["summary"].split()) > 1
        (shown,) = call["responses"]["200"]["content"].values()
        assert "example" in shown or call["operationId"].startswith("randomizer")
        if "requestBody" in call:
            assert "example" in call["requestBody"]["content"]["application/json"]
    for kind, example in schemas.EXAMPLES.items():
        kind.model_validate(example)


REPORT: dict[str, Any] = {"version": 1, "budget": "eps=1", "id": "a", "gradient": [1.0]}
ASKED: dict[str, Any] = {"version": 1, "budget": "eps=1", "id": "a", "ask": {"column": "x", "below": 0.5}, "bit": True}

ANSWER: dict[str, Any] = {"version": 1, "budget": "eps=1", "id": "a", "statistic": 0, "answer": [3]}


@pytest.mark.parametrize(
    "report",
    [
        REPORT,
        REPORT | {"subject": 5},
        ASKED,
        ASKED | {"ask": {"column": "x", "centre": 0.5, "within": 1.0}},
        *({name: value for name, value in REPORT.items() if name != left} for left in REPORT),
        REPORT | {"bit": True},
        ASKED | {"gradient": [1.0]},
        ASKED | {"ask": "gradient"},
        ASKED | {"bit": None},
        *(
            REPORT | {"budget": text}
            for text in ("much", "eps=0", "mu=0.0", "eps=0e5", "eps=1,delta=1", "eps=1,delta=2e9")
        ),
        *(REPORT | {"budget": text} for text in ("eps=0.5", "eps=10", "mu=2e-3", "eps=1,delta=1e-6", "eps=1,delta=0")),
        REPORT | {"version": -1},
        REPORT | {"id": ""},
        REPORT | {"other": 1},
        REPORT | {"gradient": ["1"]},
        ASKED | {"ask": {"column": "x", "centre": 0.5, "within": 0.0}},
        ANSWER,
        ANSWER | {"subject": "ann"},
        ANSWER | {"answer": []},
        ANSWER | {"answer": [-1]},
        ANSWER | {"answer": "1"},
        ANSWER | {"statistic": -1},
        ANSWER | {"gradient": [1.0]},
        {name: value for name, value in ANSWER.items() if name != "answer"},
        "report",
    ],
)
def test_the_schema_of_a_report_refuses_what_is_no_report(report: Any) -> None:
    """It took any object."""
    content = schemas.body(schemas.ReportsCall)["requestBody"]["content"]["application/json"]
    validator = jsonschema.Draft202012Validator(content["schema"])
    try:
        read_report(report, WireAnswer if isinstance(report, dict) and "statistic" in report else WireReport)
    except RefusedReportError:
        assert not validator.is_valid({"reports": [report]})
    else:
        assert validator.is_valid({"reports": [report]})


@pytest.mark.slow
def test_calls_get_documented_answers(tmp_path: Path) -> None:
    assert "post /v1/models/{job}/learn" in check(tmp_path, 2, 1)


@pytest.mark.campaign
def test_many_calls_get_documented_answers(tmp_path: Path) -> None:
    check(tmp_path, 500, 500)
