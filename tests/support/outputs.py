"""Outputs and pictures of pages: `python -m tests.support.outputs` runs the blocks, and writes what they print."""

import re
import shutil
import tempfile
from pathlib import Path

from tests.support.documents import BLOCK, OUTPUT, Block, Shell
from tests.support.paths import ROOT

PAGES = ("index.md", "tutorial.md", "case.md")
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
    true = dict(INSURANCE_SLOPES)
    true["smoker=yes"] = INSURANCE_SURCHARGES["smoker"]["yes"]
    found = {name: value for name, value in model.weights.items() if name in true}
    # A unit of a number and a category are on axes of their own.
    figure, (axes,) = sheet(1, 2, share=False, width=3, height=1)
    numbers = [name for name in found if "=" not in name]
    for axis, names, what in (
        (axes[0], numbers, "dollars a year for each unit"),
        (axes[1], [name for name in found if name not in numbers], "dollars a year, beside smoker=no"),
    ):
        for row, name in enumerate(reversed(names)):
            axis.plot(true[name], row, "|", ms=22, mew=2, color=COLOURS[4], label="true" if row == 0 else None)
            axis.plot(found[name], row, "o", ms=8, color=COLOURS[0], label="eps = 1" if row == 0 else None)
        axis.set_yticks(range(len(names)), list(reversed(names)))
        axis.set(xlabel=what, xlim=(0, 1.3 * max(true[name] for name in names)), ylim=(-0.6, len(names) - 0.4))
    axes[0].legend(loc="upper right", fontsize=8)
    figure.savefig(ROOT / "docs" / "images" / "first.png", dpi=110)


def main() -> None:
    """Write all outputs and pictures."""
    for name in PAGES:
        path = ROOT / "docs" / name
        with tempfile.TemporaryDirectory() as folder:
            inner = Path(folder) / "empty"
            inner.mkdir()
            path.write_text(written(path.read_text(encoding="utf-8"), inner), encoding="utf-8")
            for picture in inner.glob("*.png"):  # a block draws it, and the page shows it from there
                shutil.copy(picture, ROOT / "docs" / "images")
    first_picture()


if __name__ == "__main__":
    main()
