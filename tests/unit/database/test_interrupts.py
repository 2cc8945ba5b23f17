"""A signal while SQLAlchemy closes a connection ends the program, and is not reported as a fault of the connection."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from streamdp.database.sqlite_connection import close, connect


@pytest.mark.parametrize(("error", "reports"), [(KeyboardInterrupt, 0), (sqlite3.ProgrammingError, 1)])
def test_only_a_fault_is_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, error: type[BaseException], reports: int
) -> None:
    class Closing(sqlite3.Connection):
        def close(self) -> None:
            super().close()
            raise error

    sqlite3.connect(tmp_path / "file.db").close()
    connection = connect(str(tmp_path / "file.db"), Closing)
    connection.exec_driver_sql("SELECT 1")
    if issubclass(error, Exception):
        close(connection)
    else:
        with pytest.raises(error):
            close(connection)
    assert [record.levelname for record in caplog.records] == ["ERROR"] * reports
