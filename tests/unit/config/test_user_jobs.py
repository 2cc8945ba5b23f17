"""Jobs whose estimators protect users: their settings, and the subject that they need."""

from typing import Any

import pytest

from streamdp.config.job import make_config
from streamdp.errors import ConfigError

KINDS = ["UserLevelLDPClassifier", "WindowedClassifier"]


def settings(estimator: str, **model: Any) -> dict[str, Any]:
    return {
        "job": "j",
        "source": {"path": "d.csv"},
        "schema": {
            "features": {"delay": [-1, 1]},
            "target": {"column": "late", "classes": ["no", "yes"]},
            "subject": "who",
        },
        "model": {"estimator": estimator, "items_per_user": 4} | model,
    }


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        (KINDS[0], {"budget": "eps=0.5,delta=1e-06", "seed": 3}),
        (KINDS[0], {"window_seconds": 2.5, "spread": 0.3, "horizon": 10_000}),
        (KINDS[0], {"centre": "asked"}),
        (KINDS[1], {"budget": "eps=0.5,delta=1e-06", "seed": 3, "method": "outlier-removal"}),
        (KINDS[1], {"spread": 0.3, "strong_convexity": 0.1}),
    ],
    ids=str,
)
def test_settings_reach_the_estimator(kind: str, change: dict[str, Any]) -> None:
    built = make_config(settings(kind, **change)).build_estimator()
    assert (type(built).__name__, built.items_per_user) == (kind, 4)  # type: ignore[attr-defined]
    assert {name: str(getattr(built, name)) for name in change} == {name: str(value) for name, value in change.items()}


def test_reports_of_users_need_subjects_and_windows_take_each_record_as_a_person() -> None:
    for kind in KINDS:
        given = settings(kind)
        del given["schema"]["subject"]
        if kind.startswith("UserLevel"):
            with pytest.raises(ConfigError, match=r"needs schema\.subject"):
                make_config(given)
        else:
            assert "a record without a subject counts as a user" in make_config(given).build_estimator().statement()
