"""Outputs and pictures of pages: `python -m tests.support.outputs` runs the blocks, and writes what they print."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path

from tests.support.documents import BLOCK, OUTPUT, Block, Shell
from tests.support.paths import ROOT

PAGES = ("index.md", "tutorial.md")
"""The pages with outputs. A new output begins as an empty block of the language `none` below its block."""
MOST_LINES = 24


def shortened(text: str) -> str:
    """The first and the last lines of a long output."""
    lines = [line.rstrip() for line in text.splitlines()]
    if len(lines) > MOST_LINES:
        lines = [*lines[: MOST_LINES - 5], "...", *lines[-4:]]
    return "".join(f"{line}\n" for line in lines)


def shape(text: str) -> list[str]:
    """The lines of an output without its numbers, which noise changes."""
    return [re.sub(r"[-\s\d,.:+]+", " ", line).strip() for line in shortened(text).splitlines()]


def written(text: str, folder: Path) -> str:
    """The text of a page with the outputs of its blocks, which run in a folder."""
    with Shell(folder, {}) as shell:
        printed = ""

        def output(match: re.Match[str]) -> str:
            nonlocal printed
            block = Block(*match.groups())
            if block.language == OUTPUT:
                return f"```{OUTPUT}\n{shortened(printed)}```"
            printed = "".join(shell.run(block)[:1])
            return match[0]

        return BLOCK.sub(output, text)


def first_picture() -> None:
    """Draw the weights of the home page's model beside those of the simulation, in docs/images/first.png."""
    from benchmarks.shared.pictures import COLOURS, sheet
    from streamdp.datasets import INSURANCE_SLOPES, INSURANCE_SURCHARGES

    (block,) = [
        Block(*found) for found in BLOCK.findall((ROOT / "docs" / "index.md").read_text()) if "fit(" in found[1]
    ]
    names: dict[str, object] = {}
    exec(compile(block.code, "the home page", "exec"), names)
    model = names["model"].model_  # type: ignore[attr-defined]
    true = {name: 10 * slope for name, slope in INSURANCE_SLOPES.items()}
    true["smoker=yes"] = INSURANCE_SURCHARGES["smoker"]["yes"]
    units = {name: 10 if name in INSURANCE_SLOPES else 1 for name in true}
    found = {name: value * units[name] for name, value in model.weights.items() if name in true}
    figure, ((axis,),) = sheet(1, 1, width=5, height=1.7)
    for row, (name, value) in enumerate(reversed(found.items())):
        axis.plot(
            true[name], row, "|", ms=22, mew=2, color=COLOURS[4], label="without privacy, true" if row == 0 else None
        )
        axis.plot(value, row, "o", ms=8, color=COLOURS[0], label="learned with eps = 1" if row == 0 else None)
    axis.set_yticks(range(len(found)), [f"{name}, ten units" if units[name] > 1 else name for name in reversed(found)])
    axis.set(xlabel="dollars a year", xlim=(0, 5_500), ylim=(-0.6, len(found) - 0.4))
    axis.legend(loc="center", fontsize=8)
    figure.savefig(ROOT / "docs" / "images" / "first.png", dpi=110)


def main() -> None:
    """Write all outputs and pictures."""
    for name in PAGES:
        path = ROOT / "docs" / name
        with tempfile.TemporaryDirectory() as folder:
            inner = Path(folder) / "empty"
            inner.mkdir()
            path.write_text(written(path.read_text(encoding="utf-8"), inner), encoding="utf-8")
    first_picture()


if __name__ == "__main__":
    main()
