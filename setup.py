"""The compiled loops: every `.pyx` of the packages becomes an extension module. Everything else is in pyproject.toml.

A machine without a C compiler takes the one of the package `ziglang`, which `build_backend.py` then asks for.
"""

from __future__ import annotations

import os
import sys
import sysconfig
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from Cython.Build import cythonize
from setuptools import Extension, setup

REORDERED = {
    "streamdp.privacy.privunit",
    "streamdp.scaling.location_scale",
    "streamdp.optim.loops",
    "streamdp.optim.local_learning",
}
"""Modules whose sums over coordinates may be reordered, to use vector instructions.

No other module may be: the rounding of additive noise and of a ledger's sums is part of a proof. That of PrivUnit is
covered by its argument (`entropy`); `location_scale` computes from released bits only.
"""
if sys.platform == "win32":
    EXACT, REORDERING = ["/O2", "/fp:precise"], []
else:
    EXACT = ["-O3", "-g0", "-ffp-contract=off", "-fno-math-errno", "-Wno-unused-function"]
    REORDERING = ["-fassociative-math", "-fno-signed-zeros", "-fno-trapping-math"]
DIRECTIVES = {
    "language_level": 3,
    "boundscheck": False,
    "wraparound": False,
    "initializedcheck": False,
    "cdivision": True,
    "embedsignature": True,
}

if not Path(sysconfig.get_path("include"), "Python.h").exists():
    raise SystemExit(
        "the header files of this Python are missing, and streamdp is compiled with them. Install them (Debian: "
        "python3-dev; Fedora: python3-devel), or use a Python that brings them (python.org, conda, pyenv, uv)"
    )
zig = find_spec("ziglang")
if zig is not None and zig.origin is not None and "CC" not in os.environ:
    os.environ["CC"] = f"{Path(zig.origin).with_name('zig')} cc"
    os.environ["LDSHARED"] = f"{os.environ['CC']} -shared"


def extension(source: Path) -> Extension:
    """The extension module of one source."""
    name = ".".join(source.with_suffix("").parts)
    return Extension(
        name,
        [str(source)],
        include_dirs=[np.get_include()],
        define_macros=[("NPY_NO_DEPRECATED_API", "NPY_2_0_API_VERSION")],
        extra_compile_args=EXACT + (REORDERING if name in REORDERED else []),
    )


sources = sorted(source for package in ("streamdp", "connectors") for source in Path(package).rglob("*.pyx"))
setup(
    ext_modules=cythonize(
        [extension(source) for source in sources], compiler_directives=DIRECTIVES, build_dir="build", nthreads=2
    ),
    options={"build_ext": {"parallel": 2}},
)
