"""The help of every command has an example, `-h` works everywhere, and a shell can complete commands."""

import shlex
from typing import Any

import pytest
import typer.main

import streamdp.cli.main  # noqa: F401 - adds all commands
from streamdp.cli.app import app
from tests.support.commands import Quick


def commands(group: Any, path: tuple[str, ...] = ()) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, command in group.commands.items():
        here = (*path, name)
        found |= commands(command, here) if hasattr(command, "commands") else {" ".join(here): command}
    return found


COMMANDS = commands(typer.main.get_command(app))


@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_has_an_example_that_its_own_options_allow(name: str) -> None:
    example = str(COMMANDS[name].epilog)
    assert example.startswith("Example: ")
    words = shlex.split(example.partition("streamdp ")[2].partition("<")[0].partition(">")[0])
    assert " ".join(words[: len(name.split())]) == name
    COMMANDS[name].make_context(name, words[len(name.split()) :])  # parses, and does not run


@pytest.mark.parametrize("name", COMMANDS)
def test_each_option_says_what_it_is(name: str) -> None:
    context = typer.Context(COMMANDS[name])
    records = {parameter.name: parameter.get_help_record(context) for parameter in COMMANDS[name].params}
    assert not [parameter for parameter, record in records.items() if record is None or not record[1]]


def test_the_short_option_for_help(quick: Quick) -> None:
    for arguments in (["-h"], ["run", "-h"], ["ledger", "status", "-h"]):
        assert "Usage: streamdp" in quick.output(*arguments)
    assert "[default: job.yaml]" in " ".join(quick("init", "-h")[1].split())


def test_a_shell_completes_commands(quick: Quick) -> None:
    words = {"COMP_WORDS": "streamdp che", "COMP_CWORD": "1", "_STREAMDP_COMPLETE": "complete_bash"}
    code, out, _ = quick(**words)
    assert (code, out.split()) == (0, ["check"])


def test_help_begins_with_what_to_do_and_cuts_no_summary(quick: Quick) -> None:
    for group in ([], ["ledger"], ["shuffle"], ["spark"]):
        assert "..." not in quick.output(*group, "--help", COLUMNS="80").partition("Commands:")[2]
    said = quick.output("--help")
    assert (
        said.index("Begin with `streamdp init people.csv`") < said.index("Commands:") < said.index("Exit codes: 0 done")
    )
