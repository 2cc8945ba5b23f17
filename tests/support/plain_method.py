"""A method of windows without noise, whose results a test can compute."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from streamdp.errors import TooFewUsersError
from streamdp.windows.task import Method, Rng, Task, Users, WindowResult

SHOWN: list[tuple[int, np.ndarray]] = []
"""Users of each window that `Plain` learned from, and their gradients at the start."""


@dataclass(frozen=True)
class Plain(Method):
    """A gradient step without noise: no method of the library, but one whose result can be computed."""

    least: int = 3
    name: ClassVar[str] = "plain"

    def plan(self, task: Task) -> Task:
        if task.users < self.least:
            raise TooFewUsersError(f"{task.users} users, and {self.least} are needed", self.least)
        return task

    def least_users(self, task: Task) -> int:
        return self.least

    def run(self, plan: Task, users: Users, start: np.ndarray, rng: Rng) -> WindowResult:
        gradients = users.gradients(start)
        assert len(gradients) == plan.users
        SHOWN.append((plan.users, gradients.copy()))
        return WindowResult(users.project(start - gradients.mean(axis=0)), plan.users)
