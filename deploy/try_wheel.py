"""Install a wheel where there is no compiler, and use it as the README does: `python deploy/try_wheel.py FOLDER`.

First without extras, as users of River and devices do: estimators work, and the command says what to install. Then with
the extra `cli`.

The folder holds the wheel; `make dist` calls it. The environment is empty, PATH has nothing but the environment and
what the README's commands need, and every dependency must come as a wheel. Prints how large both installations are.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
TOOLS = ("sh", "head")
FIRST_USE = re.compile(r"^### 1\..*?^```sh\n(.*?)^```", re.DOTALL | re.MULTILINE)

SMALL = """
from streamdp import PanPrivateRegressor, load
model = PanPrivateRegressor(features={"a": (0, 1), "b": ["x", "y"]}, target=(0, 1))
for n in range(5_000):
    model.learn_one({"a": n % 10 / 10, "b": "xy"[n % 2]}, n % 10 / 10)
model.close_batch()
model.save("model")
assert load("model").predict_one({"a": 0.5, "b": "x"}) == model.predict_one({"a": 0.5, "b": "x"})
"""


def main(folder: Path) -> None:
    """Install the wheel, and run what a newcomer runs; an error ends it."""
    (wheel,) = folder.absolute().glob("*.whl")
    uv = shutil.which("uv", path=os.path.dirname(sys.executable)) or "uv"
    with tempfile.TemporaryDirectory(prefix="a wheel é ") as temporary:
        environment, tools, elsewhere = (Path(temporary) / name for name in ("environment", "tools", "elsewhere"))
        tools.mkdir()
        elsewhere.mkdir()
        for name in TOOLS:
            (tools / name).symlink_to(str(shutil.which(name)))
        programs = environment / "bin"
        path = os.pathsep.join([str(programs), str(tools)])
        bare = {name: value for name, value in os.environ.items() if name not in ("CC", "CFLAGS", "PYTHONPATH")}
        bare |= {"PATH": path, "VIRTUAL_ENV": str(environment)}
        subprocess.run([uv, "venv", "--quiet", "--python", sys.executable, environment], check=True)

        def install(extras: str) -> None:
            started = time.monotonic()
            options = ["--quiet", "--only-binary", ":all:", "--link-mode", "copy"]
            options += ["--constraint", ROOT / "requirements.lock"]
            what = f"streamdp{extras} @ {wheel.as_uri()}"
            subprocess.run([uv, "pip", "install", *options, what], env=bare, check=True)
            seconds = time.monotonic() - started
            size = sum(
                file.stat().st_size for file in environment.rglob("*") if file.is_file() and not file.is_symlink()
            )
            packages = len(list(environment.rglob("*.dist-info")))
            print(
                f"streamdp{extras}: {packages} packages in {seconds:.0f} s without a compiler, {size / 2**20:.0f} MiB"
            )

        def run(*command: str) -> str:
            done = subprocess.run(command, cwd=elsewhere, env=bare, check=True, stdout=subprocess.PIPE, text=True)
            return done.stdout

        install("")
        run("python", "-c", SMALL)
        refused = subprocess.run(["streamdp", "weights"], env=bare, capture_output=True, text=True)
        assert refused.stderr.startswith("streamdp: the command streamdp needs the extra cli: pip"), refused.stderr
        install("[cli]")
        version = wheel.name.split("-")[1]
        assert run("streamdp", "--version").split()[-1] == version, "streamdp --version is not that of the wheel"
        place = run("python", "-c", "import streamdp; print(streamdp.__file__)")
        assert Path(place.strip()).is_relative_to(environment), f"streamdp came from {place}"
        found = FIRST_USE.search((ROOT / "README.md").read_text(encoding="utf-8"))
        assert found, "README.md has no first use"
        said = run("sh", "-eu", "-c", found[1])
        assert "(epsilon, delta) = (1, " in said, "the README's first use has no statement"
        assert "smoker=yes" in said, "the README's first use has no weights"
    print(f"{wheel.name}: the first use runs")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
