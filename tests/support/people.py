"""A CSV stream in which people have many records each, and the options that declare it."""

import numpy as np

FLAGS = ["--target", "late", "--classes", "no,yes", "--feature", "delay=-1:1"]


def rows(n: int, people: int) -> str:
    rng = np.random.default_rng(0)
    lines = ["delay,late,who"]
    for i in range(n):
        delay = rng.uniform(-1, 1)
        lines.append(f"{delay:.3f},{'yes' if delay + rng.normal(0, 0.3) > 0 else 'no'},p{i % people}")
    return "\n".join(lines) + "\n"
