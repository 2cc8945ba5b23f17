"""No pool: SQLAlchemy opens a connection for each use, and does not report the signal that ended one."""

from __future__ import annotations

import logging

from sqlalchemy.pool import NullPool


class NoPool(NullPool):
    """As `NullPool`, but an interrupt while a connection is closed is not logged: it is no fault of the connection."""


logging.getLogger(f"{NoPool.__module__}.{NoPool.__qualname__}").addFilter(
    lambda record: record.exc_info is None or isinstance(record.exc_info[1], Exception)
)
