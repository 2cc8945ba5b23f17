"""A signal while SQLAlchemy closes a connection ends the program, and is not reported as a fault of the connection."""

import sqlite3
from pathlib import Path

import pytest
from sqlalchemy import create_engine

from streamdp.database.pool import NoPool


@pytest.mark.parametrize(("error", "reports"), [(KeyboardInterrupt, 0), (sqlite3.ProgrammingError, 1)])
def test_only_a_fault_is_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, error: type[BaseException], reports: int
) -> None:
    class Closing(sqlite3.Connection):
        def close(self) -> None:
            super().close()
            raise error

    sqlite3.connect(tmp_path / "file.db").close()
    engine = create_engine("sqlite://", poolclass=NoPool, creator=lambda: Closing(tmp_path / "file.db"))
    connection = engine.connect()
    connection.exec_driver_sql("SELECT 1")
    if issubclass(error, Exception):
        connection.close()
    else:
        with pytest.raises(error):
            connection.close()
    assert [record.levelname for record in caplog.records] == ["ERROR"] * reports
