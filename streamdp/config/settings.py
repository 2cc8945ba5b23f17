"""The base class of all parts of a job configuration."""

from pydantic import BaseModel, ConfigDict


class Settings(BaseModel):
    """Immutable settings that refuse unknown keys.

    Error messages do not show inputs, because a setting may be a secret. The key and the line locate the error.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True, allow_inf_nan=False)
