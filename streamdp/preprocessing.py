"""A check of River's pipelines for parts that learn from records without noise."""

from streamdp.errors import PrivacyWarning
from streamdp.estimators.parts import check_pipeline

__all__ = ["PrivacyWarning", "check_pipeline"]
