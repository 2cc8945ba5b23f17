"""What all parts of a job in writing have in common."""

from pydantic import BaseModel, ConfigDict


class Settings(BaseModel):
    """Settings that know all their keys. Inputs stay out of error messages: a setting may be a secret, and the key and
    the line find it.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True, allow_inf_nan=False)
