"""A real PgBouncer in front of a PostgreSQL server, for tests."""

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy.engine import make_url

from servers.process import free_ports


@contextmanager
def pooled(folder: Path, url: str, mode: str) -> Iterator[str]:
    """The URL of the same database through PgBouncer with this `pool_mode`. It refuses to run as root."""
    program = shutil.which("pgbouncer") or "/usr/sbin/pgbouncer"
    server = make_url(url)
    port = free_ports(folder, [mode])[mode]
    with tempfile.TemporaryDirectory() as own:  # the other user may have no access to the folder of the test
        config, log = Path(own, "config.ini"), Path(own, "log")
        config.write_text(
            f"[databases]\n* = host=127.0.0.1 port={server.port} user={server.username}\n"
            f"[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\nauth_type = any\n"
            f"pool_mode = {mode}\ndefault_pool_size = 10\nlogfile = {log}\n"
            "ignore_startup_parameters = extra_float_digits\n"
        )
        command = [program, str(config)]
        if os.geteuid() == 0:
            Path(own).chmod(0o777)
            command = [program, "-u", "nobody", str(config)]
        running = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            while running.poll() is None:
                with socket.socket() as probe:
                    if probe.connect_ex(("127.0.0.1", port)) == 0:
                        break
                time.sleep(0.02)
            assert running.poll() is None, log.read_text()
            yield server.set(port=port).render_as_string(hide_password=False)
        finally:
            running.send_signal(signal.SIGINT)
            running.wait(30)
