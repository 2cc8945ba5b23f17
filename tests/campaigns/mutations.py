"""Takes out lines that privacy rests on, one after another, and looks whether the tests notice.

`python -m tests.campaigns.mutations`, by `make mutations`, copies the tree to a temporary folder. For each mutation it
replaces a line there, runs the tests that should notice until the first failure, and puts the line back. It prints a
table, and ends with 1 if a mutation was not noticed, or if the tests fail as they are. Mutations of compiled code are
built in the copy, which needs Cython, setuptools and a C compiler.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import NamedTuple

from tests.support.paths import ROOT


class Mutation(NamedTuple):
    """A line of a file and what stands in its place: a fault."""

    fault: str
    file: str
    line: str
    """It is there once, indentation included where it matters."""
    instead: str
    tests: str
    """Files or tests that should notice, as arguments of pytest."""


AUDITS = "tests/statistical/test_audit.py"
ESTIMATORS = "tests/unit/estimators/test_estimators.py"
SPENDS = "tests/unit/estimators/test_spends.py"
LDP_LOOPS = "streamdp/optim/local_learning.pyx"
ADMISSION = "streamdp/estimators/admission.py"
PAN, PAN_TESTS = "streamdp/learners/pan.py", "tests/unit/estimators/test_pan.py"
GRID_SUM = "streamdp/privacy/grid_sum.py"
BATCHED = "streamdp/learners/batches.py"
SHUFFLE_TESTS = "tests/unit/estimators/test_shuffle.py"
SUMS, SUMS_TESTS = "streamdp/aggregation/shuffled_sum.py", "tests/unit/aggregation/test_shuffled_sum.py"
USERS = "streamdp/learners/user_reports.py"
MEAN, MEAN_TESTS = "streamdp/aggregation/local_mean.py", "tests/unit/aggregation/test_local_mean.py"
RELEASE, ADMISSION_TESTS = "streamdp/privacy/release.py", "tests/conformance/test_admission.py"
STORE, STORE_TESTS = "streamdp/store/store.py", "tests/unit/store/test_store.py"
DESK, REPORTS_TESTS = "streamdp/protocol/report_desk.py", "tests/unit/protocol/test_reports.py"
DEVICE_JS, JS_TESTS = "streamdp/service/static/streamdp.js", "tests/statistical/test_js_device.py"
CALLS, CALLS_TESTS = "connectors/http.py", "tests/unit/service/test_learning.py"

MOST_SECONDS = 900
"""Tests of a fault that take longer have noticed it: some faults repeat a call without end."""
MUTATIONS = [
    # -- local privacy
    Mutation("reports have half the noise", "streamdp/privacy/samplers.pyx",
        "scale = row[SCALE] * cells  # a power of two: exact", "scale = 0.5 * row[SCALE] * cells",
        f"tests/statistical/test_mechanisms.py {AUDITS}"),
    Mutation("a learned record is not counted", LDP_LOOPS, "        seen[0] += 1\n        _step(", "        _step(",
        f"tests/unit/optim/test_local_learning.py {ESTIMATORS}"),
    Mutation("random words are used again", LDP_LOOPS, "if at > end or not use_words(words, end, start, at):",
        "if at > end:", ESTIMATORS),
    Mutation("Laplace noise of one coordinate for all", "streamdp/privacy/mechanisms/additive.py",
        "return _additive(self, math.sqrt(d), 2.0, d, epsilon, epsilon if answers else None)",
        "return _additive(self, 1.0, 2.0, d, epsilon, epsilon if answers else None)",
        "tests/statistical/test_mechanisms.py"),
    Mutation("an answer is always the true bit", "streamdp/privacy/mechanisms/response.py",
        "    return np.asarray(np.maximum(0.5, np.minimum(p * (1 - _ROUNDING), 1 - _ROUNDING)))",
        "    return np.full(np.shape(p), 1 - _ROUNDING)", "tests/statistical/test_response.py"),
    Mutation("a gradient is not clipped", "streamdp/optim/loops.pyx", "    if size > clip * clip:\n        a *=",
        "    if size < 0:\n        a *=", "tests/unit/optim/test_losses.py"),
    Mutation("a budget of a record is not in the guarantee", ADMISSION,
        "            learner.check(own)\n            return own\n",
        "            learner.check(own)\n            return self.spend\n", ESTIMATORS),
    Mutation("a record over the cap is learned", ADMISSION,
        "            rows: Any = part if every else np.flatnonzero(joined) + part.start\n",
        "            rows: Any = part\n", ADMISSION_TESTS),
    Mutation("refused records of people are learned", ADMISSION,
        "                learner.take(X[part], y[part], mine.people, joined)\n",
        "                learner.take(X[part], y[part], mine.people, np.ones_like(joined))\n", ADMISSION_TESTS),
    Mutation("the least of the budgets of a batch is counted", ADMISSION, "float(amounts.max())",
        "float(amounts.min())", SPENDS),
    Mutation("a report is absorbed without a spend", ADMISSION,
        "        self.count(learner, budget)\n        self.tainted |= not private",
        "        self.tainted |= not private", SPENDS),
    Mutation("the local half adds no noise", "streamdp/estimators/ldp/randomizer.py",
        "        randomize_rows(mechanism.code, rows, gradient, self.rng)\n", "", f"{AUDITS} {REPORTS_TESTS}"),
    # -- windows of statistics
    Mutation("the sums of a window have no noise", "streamdp/learners/sums.py", "total, found = super().close(rng), []",
        "total, found = self.total / self.sum.cells, []", "tests/statistical/test_statistics.py"),
    Mutation("sums by texts get no noise", "streamdp/learners/cells.py", "sums += noise", "noise += sums",
        "tests/statistical/test_statistics.py"),
    Mutation("texts of few records are shown", "streamdp/learners/cells.py", "_exceeded(self.parts, delta) * scale",
        "0.5 * _exceeded(self.parts, delta) * scale", "tests/statistical/test_statistics.py"),
    Mutation("tables are chosen without noise", "streamdp/learners/cells.py", "(distances + noise).__getitem__",
        "distances.__getitem__", "tests/statistical/test_statistics.py"),
    Mutation("tables that were not chosen are released", "streamdp/learners/sums.py",
        "return shown * super().close(rng)", "return super().close(rng)", "tests/unit/estimators/test_chosen.py"),
    Mutation("a worker keeps what it learned of a shard that was taken away", "streamdp/runtime/shard_table.py",
        " or any(lane.pending for lane in gone.values())", "", "tests/unit/runtime/test_shard_table.py"),
    Mutation("a state that was added up counts in the row of its next owner, too", "streamdp/runtime/shard_table.py",
        "self._moved & gone.keys() or ", "", "tests/unit/runtime/test_shard_table.py"),
    Mutation("the quantiles of a window spend twice their share", "streamdp/learners/cells.py",
        "epsilon / (4 if several else 2)", "epsilon / (2 if several else 1)",
        "tests/unit/estimators/test_statistics.py"),
    # -- pan-private
    Mutation("a batch is opened without noise", PAN,
        "        self.sum.add_noise(self.rng)\n        if self.probes is not None:",
        "        if self.probes is not None:", PAN_TESTS),
    Mutation("a batch is closed without noise", GRID_SUM, "        self.add_noise(rng)\n        return self.total",
        "        return self.total", PAN_TESTS),
    Mutation("half the noise of a batch", GRID_SUM, "float(row[SCALE]) * self.cells if",
        "float(row[SCALE]) * self.cells / 2 if", PAN_TESTS),
    Mutation("noise stays in freed memory", GRID_SUM, "        noise[:] = 0\n", "",
        "tests/statistical/test_intruder.py::test_noise_that_was_used_is_nowhere_in_memory"),
    Mutation("a second record of a person is in a batch", RELEASE, "            elif most is not None and n >= most:\n",
        "            elif False:\n", ADMISSION_TESTS),
    Mutation("records of a batch are not counted", BATCHED, "            self.seen[0] += taken  # before",
        "            # before", PAN_TESTS),
    # -- shuffled
    Mutation("half the fair bits", "streamdp/aggregation/kernels.pyx",
        "            sdp_ones_after_first(source + at, 1, noise, &total)",
        "            sdp_ones_after_first(source + at, 1, noise // 2, &total)",
        f"tests/unit/aggregation/test_kernels.py {SUMS_TESTS}"),
    Mutation("absent people leave their noise out", SUMS, "while absent := max(0, users - int(ones[-1])):",
        "while absent := 0 * max(0, users - int(ones[-1])):", SHUFFLE_TESTS),
    Mutation("mixed bits are absorbed without a spend", "streamdp/estimators/shuffle/estimators.py",
        "            self._count(spent)\n", "", SHUFFLE_TESTS),
    Mutation("a sum that does not keep its budget is agreed to", "streamdp/aggregation/vector_sum.py",
        "        if spent > self.budget.delta:\n", "        if False:\n", SUMS_TESTS),
    Mutation("a vector longer than the bound is sent", "streamdp/aggregation/vector_sum.py",
        "        if not np.all(short):\n", "        if False:\n", SUMS_TESTS),
    Mutation("the shuffler forwards what too few sent", SUMS, "        if users < self.minimum:\n",
        "        if False:\n", SUMS_TESTS),
    # -- user level
    Mutation("an offset is not clipped to the radius", MEAN,
        "        offsets *= self.radius / np.maximum(norms, self.radius)\n", "", MEAN_TESTS),
    Mutation("a user's offset gets no noise", MEAN,
        "        randomize_rows(self.fine.code, self.fine.rows(self.d), offsets, rng)\n", "", MEAN_TESTS),
    Mutation("users over the cap report", USERS, "            admitted = None if admitted.all() else admitted\n",
        "            admitted = None\n", ADMISSION_TESTS),
    Mutation("an average gradient is not clipped", "streamdp/optim/user_averages.py",
        "    vectors *= (loss.bound / np.maximum(norms, loss.bound))[:, None]", "    vectors *= 1.5",
        "tests/unit/estimators/test_user_level.py tests/unit/estimators/test_user_asgd.py"),
    # -- windows
    Mutation("Newton's sum gets no noise", "streamdp/windows/newton.py",
        "        return noise.randomize(total.ravel(), rng).reshape(total.shape)", "        return total.copy()",
        "tests/statistical/test_window_newton.py"),
    Mutation("each round spends the budget of the window", "streamdp/windows/newton.py",
        "_noise(task, whole * math.sqrt(share) * (1 - 1e-12), task.users)",
        "_noise(task, whole * (1 - 1e-12), task.users)", "tests/statistical/test_window_newton.py"),
    Mutation("sampled gradients get no noise", "streamdp/windows/smoothed.py",
        "    randomize_rows(mechanism.code, rows, total[None, :], rng)\n", "", "tests/unit/windows/test_smoothed.py"),
    Mutation("offsets of a private range are not clipped", "streamdp/aggregation/range_mean.py",
        "            vectors *= (np.minimum(1.0, self.radius / np.maximum(norms, 1e-300)) / self.grid)[:, None]",
        "            vectors *= 1 / self.grid", "tests/unit/windows/test_ranges.py"),
    Mutation("users over the cap are in a window", RELEASE,
        "                    found[i] = REFUSED\n                    refused", "                    refused",
        ADMISSION_TESTS),
    Mutation("a person gives more records than agreed", RELEASE, "        self.most = self._together or (",
        "        self.most = (self._together and 2 * self._together) or (", ADMISSION_TESTS),
    # -- reports of devices
    Mutation("a device answers under another agreement", "streamdp/protocol/local_half.py",
        "if document.agreement != self.agreement or self.agreement != (agreement or self.agreement):",
        "if document.agreement != self.agreement:", f"{REPORTS_TESTS} tests/unit/client/test_device.py"),
    Mutation("a report of another budget is taken", DESK,
        "            spend = check_spend(parse_budget(found.budget), self._budget)",
        "            spend = parse_budget(found.budget)", REPORTS_TESTS),
    Mutation("an answer to another question is taken", DESK, "        if found.ask != ask:\n", "        if False:\n",
        REPORTS_TESTS),
    Mutation("JavaScript: half the noise", DEVICE_JS, "rint(draw(words) * scale)) * noise.grid);",
        "rint((draw(words) * scale) / 2)) * noise.grid);", JS_TESTS),
    Mutation("JavaScript: another agreement is accepted", DEVICE_JS,
        "refuse(found === document.agreement && (agreement === null || found === agreement),",
        "refuse(found === document.agreement,", "tests/unit/protocol/test_vectors.py tests/integration/test_pages.py"),
    Mutation("JavaScript: a cell of a statistic is kept too often", DEVICE_JS,
        "return { cells, keep: (Math.expm1(epsilon) / (Math.expm1(epsilon) + cells)) * CAREFUL, words: 2 };",
        "return { cells, keep: (Math.expm1(2 * epsilon) / (Math.expm1(2 * epsilon) + cells)) * CAREFUL, words: 2 };",
        JS_TESTS),
    Mutation("an answer about a statistic that no device can make is taken", DESK,
        "        if not self._parts[found.statistic].possible(found.answer):\n", "        if False:\n",
        "tests/unit/protocol/test_statistics_reports.py"),
    Mutation("a late report counts for thresholds that it did not answer", "streamdp/learners/local_roots.py",
        "        if block == self.asked:\n", "        if True:\n", "tests/unit/protocol/test_statistics_reports.py"),
    # -- ledger, store, service
    Mutation("a spend over the cap is admitted", "streamdp/ledger/ledger.py",
        "outcome[at] = np.where(self._rows.admit(mine.slots, terms), JOINED, REFUSED)\n",
        "outcome[at] = np.where(self._rows.admit(mine.slots, terms), JOINED, JOINED)\n",
        "tests/unit/ledger/test_ledger.py"),
    Mutation("a single record over its cap is learned", "streamdp/ledger/subject_gate.pyx",
        "        if not admitted:\n", "        if False:\n", "tests/unit/ledger/test_gate.py"),
    Mutation("spends are not in the commit", STORE,
        "                    own.write_pending(connection, oldest, parts.keys())\n", "                    pass\n",
        STORE_TESTS),
    Mutation("an earlier owner of a shard may commit", STORE, "SET epoch = epoch + 1 WHERE",
        "SET epoch = epoch + 0 WHERE", STORE_TESTS),
    Mutation("names of subjects are hashed without the key", "streamdp/data/subjects.py",
        'key=key, person=b"streamdp-subject").copy', 'person=b"streamdp-subject").copy',
        "tests/unit/data/test_subjects.py tests/unit/ledger/test_ledger.py"),
    Mutation("a call that was answered is learned again", CALLS,
        "        remembered = self._recall(keys)\n        new: list[Call] = []",
        "        remembered: dict[bytes, Answered] = {}\n        new: list[Call] = []", CALLS_TESTS),
    Mutation("a call with a key is not remembered", CALLS, "                found[call.key] = call.answer(version)\n",
        "                pass\n", CALLS_TESTS),
    Mutation("spends of an earlier run are committed", "streamdp/runtime/runner.py",
        "        self.store.rollback()  # the uncommitted spends of an earlier run\n", "",
        "tests/unit/runtime/test_runner.py"),
]  # fmt: skip


def copy_of_tree(folder: Path) -> Path:
    """A copy of what git knows, with the compiled modules and what they were built from."""
    names = subprocess.run(["git", "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True).stdout.split("\n")
    built = [str(path.relative_to(ROOT)) for room in ("streamdp", "connectors") for path in (ROOT / room).rglob("*.so")]
    for name in filter(None, [*names, *built]):
        if (ROOT / name).is_symlink() or (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name, follow_symlinks=False)
    if (ROOT / "build").is_dir():
        shutil.copytree(ROOT / "build", folder / "build")
    return folder


def replaced(folder: Path, mutation: Mutation) -> str:
    """Put the fault into the copy; returns the text before. Raises `SystemExit` if the line is not there once."""
    path = folder / mutation.file
    text = path.read_text() if path.exists() else ""
    if (found := text.count(mutation.line)) != 1:
        raise SystemExit(
            f"{mutation.fault}: expected this text once in {mutation.file}, found it {found} times. Choose the line "
            f"that does this now, in tests/campaigns/mutations.py:\n{mutation.line}"
        )
    path.write_text(text.replace(mutation.line, mutation.instead))
    return text


def build(folder: Path) -> None:
    """Compile what has changed."""
    command = [sys.executable, "setup.py", "-q", "build_ext", "--inplace"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"the copy could not be built; Cython, setuptools and a compiler are needed:\n{done.stderr}")


def noticed_by(folder: Path, tests: str) -> tuple[str, int]:
    """The first test that fails, or an empty text, and the exit code of pytest."""
    environment = os.environ | {"PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-x",
        "-q",
        "-p",
        "no:cacheprovider",
        "-m",
        "not campaign",
        *tests.split(),
    ]
    run = partial(subprocess.run, cwd=folder, env=environment, capture_output=True, text=True)
    try:
        done = run(command, timeout=MOST_SECONDS)
    except subprocess.TimeoutExpired:
        return f"tests that do not end within {MOST_SECONDS} s", 1
    found = re.search(r"^(?:FAILED|ERROR) (\S+)", done.stdout, flags=re.MULTILINE)
    if done.returncode not in (0, 1) and found is None:
        raise SystemExit(f"pytest {tests} ended with {done.returncode}:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return ("" if found is None else found[1]), done.returncode


def main() -> None:
    """Run the mutations and print the table."""
    parser = argparse.ArgumentParser(description="Do the tests notice lines that are missing?")
    parser.add_argument("--only", help="mutations whose fault or file contains this text")
    parser.add_argument("--check", action="store_true", help="only see that each line is there once")
    given = parser.parse_args()
    chosen = [m for m in MUTATIONS if given.only is None or given.only in m.fault or given.only in m.file]
    if not chosen:
        parser.error(f"no fault and no file contains {given.only!r}")
    unnoticed = []
    with tempfile.TemporaryDirectory() as folder:
        copy = copy_of_tree(Path(folder).resolve())
        for mutation in chosen:
            before = replaced(copy, mutation)
            (copy / mutation.file).write_text(before)
        if given.check:
            print(f"{len(chosen)} lines are there once")
            return
        tests = " ".join(dict.fromkeys(" ".join(mutation.tests for mutation in chosen).split()))
        began = time.monotonic()
        broken, code = noticed_by(copy, tests)
        if code:
            raise SystemExit(f"{broken or 'a test'} fails as the tree is, so it would notice anything")
        print("| fault | file | noticed by | seconds |\n|---|---|---|---|")
        print(f"| none | - | - | {time.monotonic() - began:.0f} |", flush=True)
        for mutation in chosen:
            compiled = mutation.file.endswith(".pyx")
            before, began = replaced(copy, mutation), time.monotonic()
            if compiled:
                build(copy)
            test, code = noticed_by(copy, mutation.tests)
            (copy / mutation.file).write_text(before)
            if compiled:
                build(copy)
            seconds = time.monotonic() - began
            print(f"| {mutation.fault} | `{mutation.file}` | {test or 'NOTHING'} | {seconds:.0f} |", flush=True)
            if not code:
                unnoticed.append(mutation.fault)
        if unnoticed:
            raise SystemExit(f"not noticed: {', '.join(unnoticed)}")


if __name__ == "__main__":
    main()
