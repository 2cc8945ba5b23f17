"""The documentation site, by Sphinx: `make docs` builds it, and a warning is an error."""

from __future__ import annotations

import base64
import inspect
import json
import re
import shutil
from pathlib import Path
from typing import Any

import typer.main
from sphinx.util.inspect import stringify_signature
from typer.cli import get_docs_for_click

import streamdp
import streamdp.cli.main  # adds all commands
from streamdp.cli.app import app as commands

DOCS = Path(__file__).resolve().parent
ROOT = DOCS.parent
SOURCE = "https://github.com/streamdp/streamdp/blob/main"

project = "streamdp"
author = "The streamdp authors"
release = streamdp.__version__
extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "sphinx_design",
]
exclude_patterns = ["_build"]
templates_path = ["_templates"]
nb_execution_mode = "off"  # notebooks are stored with their outputs
nb_merge_streams = True
copybutton_exclude = ".linenos, .gp, .go"
copybutton_selector = "div:not(.highlight-none, .output) > div.highlight > pre"
pygments_dark_style = "github-dark"
html_theme = "furo"
html_title = f"streamdp {release}"
html_show_sphinx = False
html_show_copyright = False
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_theme_options = {
    "source_repository": f"{SOURCE.partition('/blob/')[0]}/",
    "source_branch": "main",
    "source_directory": "docs/",
}
default_role = "py:obj"  # docstrings write names in single backticks
myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence", "deflist"]
napoleon_google_docstring = False
autodoc_member_order = "bysource"
toc_object_entries_show_parents = "hide"
autodoc_typehints = "none"
python_maximum_signature_line_length = 88
suppress_warnings = ["ref.python"]  # several modules have a class of the same name

LINK = re.compile(r"\]\(([^)#:\s]+)((?:#[^)]*)?)\)")
PAGE = re.compile(r"\bdocs/([\w/]+)\.md")
CODE = re.compile(r"(`+[^`]*`+|^ *>>>.*$)", flags=re.MULTILINE)


def link_to_source(app: Any, name: str, source: list[str]) -> None:
    """Let a link to a file of the repository that is no page lead to the repository."""
    folder = (DOCS / name).parent

    def linked(match: re.Match[str]) -> str:
        target = (folder / match[1]).resolve()
        if not target.exists():
            raise FileNotFoundError(f"docs/{name}: {match[1]} is linked and does not exist")
        if target.is_relative_to(DOCS):
            return match[0]
        return f"]({SOURCE}/{target.relative_to(ROOT).as_posix()}{match[2]})"

    if not name.startswith("gallery/"):
        source[0] = LINK.sub(linked, source[0])


def escape(app: Any, what: str, name: str, thing: Any, options: Any, lines: list[str]) -> None:
    """Docstrings are plain text: no asterisk, bar or underscore in them is markup, except in code."""
    parts = CODE.split("\n".join(lines))
    parts[::2] = [re.sub(r"((?<!^)\*(?! )|[|\\]|_(?!\w))", r"\\\1", part) for part in parts[::2]]
    parts[::2] = [PAGE.sub(r":doc:`\g<0> </\1>`", part) for part in parts[::2]]
    lines[:] = "".join(parts).split("\n")
    if sections := [place for place, line in enumerate(lines) if line in ("Parameters", "Attributes")]:
        for place in range(sections[-1] + 3, len(lines)):  # what follows the last entry is none
            follows = "".join(lines[place + 1 : place + 2])
            if lines[place][:1].strip() and not lines[place - 1] and not follows.startswith(" "):
                if set(follows) != {"-"}:  # the next section has a title
                    lines[place:place] = ["Notes", "-----"]
                break
    if what in ("attribute", "data", "property"):  # the words before a colon are no type
        lines.insert(0, "\\ ")
    if what == "module":  # formulas are indented, and lists may end without an empty line
        for place in range(len(lines) - 1, 0, -1):
            before, line = lines[place - 1], lines[place]
            item, next_item = before.startswith(("- ", "* ")), line.startswith(("- ", "* "))
            indented, next_indented = before.startswith(" "), line.startswith(" ")
            apart = not (next_item or next_indented) if item else indented != next_indented or next_item
            if before and line and apart:
                lines.insert(place, "")


def without_fields(app: Any, what: str, name: str, thing: Any, options: Any, signature: Any, result: Any) -> Any:
    """Settings are written in YAML: their classes have no signature. Estimators have that of their constructor."""
    if name.startswith("streamdp.config."):
        return "", ""
    if what == "class" and signature == "(*args, **given)":
        return stringify_signature(inspect.signature(thing), show_annotation=False), None
    return None


def write_commands(app: Any) -> None:
    """Write the page of all commands and their options."""
    command = typer.main.get_command(commands)
    context = command.make_context("streamdp", ["--help"], resilient_parsing=True)
    for group in [command, *command.commands.values()]:  # the list of a group has the whole first sentence of each
        for one in getattr(group, "commands", {}).values():
            one.short_help = one.short_help or (one.help or "").split("\n\n")[0].replace("\n", " ")
    text = get_docs_for_click(obj=command, ctx=context, name="streamdp", title="Commands")
    (DOCS / "reference" / "commands.md").write_text(text)


def write_gallery(app: Any) -> None:
    """Copy the notebooks, and write a page of their titles, first sentences and pictures."""
    folder = DOCS / "gallery"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.rmtree(DOCS / "reference" / "generated", ignore_errors=True)
    folder.mkdir()
    cards, names = [], []
    for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
        shutil.copy(path, folder)
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        title, _, text = "".join(cells[0]["source"]).partition("\n")
        pictures = [
            out["data"]["image/png"]
            for cell in cells
            for out in cell.get("outputs", [])
            if "image/png" in out.get("data", {})
        ]
        (folder / f"{path.stem}.png").write_bytes(base64.b64decode(pictures[0]))
        first = re.split(r"(?<=[.?])\s", text.strip())[0].replace("\n", " ")
        cards.append(f"""::::{{grid-item-card}} {title.lstrip("# ")}
:link: {path.stem}
:link-type: doc
:img-top: {path.stem}.png

{first}
::::""")
        names.append(path.stem)
    (folder / "index.md").write_text(
        "# Notebooks\n\nEach is stored with its outputs, and runs in the folder `notebooks` of the repository.\n\n"
        ":::::{grid} 1 2 2 3\n:gutter: 3\n\n"
        + "\n".join(cards)
        + "\n:::::\n\n```{toctree}\n:hidden:\n"
        + "\n".join(names)
        + "\n```\n"
    )


def setup(app: Any) -> dict[str, bool]:
    """Connect the functions above."""
    app.connect("builder-inited", write_commands, priority=100)
    app.connect("builder-inited", write_gallery, priority=100)
    app.connect("source-read", link_to_source)
    app.connect("autodoc-process-docstring", escape, priority=1)
    app.connect("autodoc-process-signature", without_fields)
    return {"parallel_read_safe": True}
