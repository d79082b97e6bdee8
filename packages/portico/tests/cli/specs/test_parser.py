"""Options are parsed alike in every position."""

from __future__ import annotations

import shlex

import pytest

from portico.cli.commands import all_commands
from portico.cli.specs import form_for, parse_serve, parse_target_command, parser, parser_for
from portico.cli.specs.parser import join_paragraphs

# They serve, change files or print a script.
NO_RESULTS = (
    "login",
    "logout",
    "serve",
    "dev",
    "worker",
    "record",
    "replay",
    "install",
    "adopt",
    "connect",
    "port",
    "completion",
    "console",
)

ORDERS = [
    ("tasks", ["retry", "a1"], ["--store", "x.db"]),
    ("memory", ["recall", "which", "database"], ["--data", "here"]),
    ("items", ["add", "read", "it"], ["--data", "here"]),
    ("tokens", ["remove", "ci"], ["--file", "tokens.json"]),
    ("serve", ["server.py"], ["--port", "8081"]),
]


@pytest.mark.parametrize(("command", "words", "option"), ORDERS, ids=[one[0] for one in ORDERS])
def test_options_stand_before_behind_and_between(command: str, words: list[str], option: list[str]) -> None:
    parser = parser_for(command)
    behind = parser.parse([*words, *option])
    assert parser.parse([*option, *words]) == behind
    assert parser.parse([words[0], *option, *words[1:]]) == behind


def test_values_with_a_leading_dash_follow_a_double_dash() -> None:
    """Ids of tasks did, one in sixty-four."""
    arguments = parser_for("tasks").parse(["retry", "--store", "x.db", "--", "-in6NmENQ", "-o"])
    assert (arguments.action, arguments.ids, arguments.store) == ("retry", ["-in6NmENQ", "-o"], "x.db")


@pytest.mark.parametrize("command", all_commands())
def test_every_command_has_an_example_that_can_be_parsed(command: str) -> None:
    assert "\nExample" in parser_for(command).format_help()
    for line in form_for(command).examples:
        words = shlex.split(line.partition(" -- ")[0])[1:]
        parser_for(command, with_target=" -- " not in line).parse(words)


@pytest.mark.parametrize("command", [one for one in all_commands() if form_for(one).action_options])
def test_help_of_an_action_has_its_options_only(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    parser = parser_for(command)
    known_names = {name for flag in parser.flags for name in flag.option_strings}
    options = form_for(command).action_options
    assert options.keys() <= known_names
    for action in parser.actions:
        with pytest.raises(SystemExit) as ended:
            parser.parse([action, "--help"])
        output = capsys.readouterr().out
        assert ended.value.code == 0 and f"portico {command} {action}" in output
        for option, owners in options.items():
            assert (f" {option} " in output.replace("\n", " ").partition("xample")[0]) == (action in owners.split())


@pytest.mark.parametrize(
    "command, action, usage, purpose",
    [
        ("memory", "delete", "delete ID … [options]", "Delete memories."),
        ("memory", "stats", "stats [options]", "Show counts."),
        ("memory", "hooks", "hooks install|remove [HOOK …] [options]", "Add the hooks to Claude Code, or remove them."),
        ("items", "edit", "edit ID [TEXT] [options]", "Edit an item."),
        ("policy", "explain", "explain FILE [TESTS …] [options]", "Print the rules that match a call"),
        ("tasks", "list", "list [ID …] [options]", ""),
    ],
)
def test_the_help_of_an_action_states_its_operands_and_its_purpose(
    command: str, action: str, usage: str, purpose: str
) -> None:
    shown = parser_for(command).actions[action]().format_help()
    assert shown.startswith(f"usage: portico {command} {usage}\n") and purpose in shown
    assert "as listed above" not in shown


@pytest.mark.parametrize("command", all_commands())
def test_help_fits_a_terminal_of_80_columns(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parser, "_width", lambda: 78)
    form = parser_for(command)
    for page in (form, *(make() for make in form.actions.values())):
        # Examples are copied, so they stay on one line.
        lines = [line for line in page.format_help().splitlines() if not line.startswith("  portico ")]
        assert [line for line in lines if len(line) > 80] == []


@pytest.mark.parametrize("command", [one for one in all_commands() if form_for(one).action_options])
def test_only_common_options_belong_to_every_action(command: str) -> None:
    """An option without an owner is shown in the help of every action, and ignored by most of them."""
    common = {"--store", "--data", "--project", "--upstream", "--tool", "--format", "--verbose"}
    connection = {"--timeout", "--protocol-version", "--header", "--token", "--oauth", "--env", "--cwd", "--trace"}
    form = form_for(command)
    options = {flag.names[-1] for flags in form.options.values() for flag in flags}
    assert options - form.action_options.keys() <= common | connection


@pytest.mark.parametrize(
    "command, words, message",
    [
        ("memory", ["export", "--remove-tag", "x"], "--remove-tag is an option of edit, not of export"),
        ("items", ["delete", "3fb8", "-p", "1"], "--priority is an option of add and edit, not of delete"),
        ("memory", ["capture", "x", "--undo-run", "3"], "--undo-run is an option of sync, not of capture"),
        ("memory", ["--undo-run=3", "capture", "x"], "--undo-run is an option of sync, not of capture"),
        ("items", ["delete", "3fb8", "-spending"], "--status is an option of list, not of delete"),
        ("tokens", ["list", "--all-scopes"], "--all-scopes is an option of add, not of list"),
    ],
)
def test_option_of_another_action_is_rejected(
    command: str, words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        parser_for(command).parse(words)
    assert ended.value.code == 2 and message in capsys.readouterr().err


@pytest.mark.parametrize(
    "command, words, suggestion",
    [
        ("memory", ["capture", "x", "--undo", "3"], ""),
        ("memory", ["--undo=3", "capture", "x"], ""),
        ("memory", ["sync", "--undo", "3"], "did you mean --undo-run?"),
        ("items", ["edit", "3fb8", "--priorty", "1"], "did you mean --priority?"),
        ("items", ["delete", "3fb8", "--stroe", "x.db"], "did you mean --store?"),
    ],
)
def test_suggested_options_belong_to_the_same_action(
    command: str, words: list[str], suggestion: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        parser_for(command).parse(words)
    message = capsys.readouterr().err
    assert ended.value.code == 2 and "unrecognized arguments" in message
    assert suggestion in message if suggestion else "did you mean" not in message


@pytest.mark.parametrize("command", [one for one in all_commands() if one not in NO_RESULTS])
def test_every_command_with_results_has_one_output_flag(command: str) -> None:
    flags = {name: flag for flag in parser_for(command).flags for name in flag.option_strings}
    assert {"table", "json", "jsonl"} <= set(flags["--format"].choices or ())
    assert not {"--json", "--output-format"} & flags.keys()
    assert "-o" not in flags or "--output" in flags["-o"].option_strings


@pytest.mark.parametrize(
    ("words", "chosen"),
    [
        (["--tool-search", "my.py"], "search"),
        (["my.py", "--tool-search=auto"], "auto"),
        (["my.py", "--no-tool-search"], "all"),
        (["--code-mode", "my.py"], "code"),
        (["my.py"], None),
    ],
)
def test_serve_lists_tools_as_the_flags_say(words: list[str], chosen: str | None) -> None:
    arguments = parse_serve(words)
    assert (arguments.target, arguments.face) == ("my.py", chosen)


@pytest.mark.parametrize(
    ("typed", "url"),
    [
        (":8080", "http://localhost:8080"),
        (":8080/mcp", "http://localhost:8080/mcp"),
        ("localhost:8080/mcp", "http://localhost:8080/mcp"),
        ("mcp.example.com:8443/mcp", "https://mcp.example.com:8443/mcp"),
        ("weather.py:server", "weather.py:server"),
        (":memory:", ":memory:"),
    ],
)
def test_url_without_scheme_or_host_is_completed(typed: str, url: str) -> None:
    assert parse_serve([typed]).target == url
    assert parse_target_command("inspect", [typed]).target == url


def test_tool_search_and_code_mode_exclude_each_other(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse_serve(["--tool-search", "--code-mode"])
    assert "only one of --code-mode, --tool-search is allowed" in capsys.readouterr().err


def test_help_joins_the_lines_of_a_paragraph() -> None:
    wrapped = "Show the info, protocol versions, instructions and capabilities of a\nserver."
    assert join_paragraphs(wrapped) == wrapped.replace("\n", " ")
    row = (
        "  diff [OLD] TARGET   compare with the lock file, or with another TARGET or\n                      .json file"
    )
    assert join_paragraphs(row).endswith("another TARGET or .json file")
    table = "bash:  eval portico    in ~/.bashrc\nzsh:   eval portico    in ~/.zshrc"
    assert join_paragraphs(table) == table
    assert join_paragraphs("Examples:\n  portico list a.py\n\nExit status: 0 success.") == (
        "Examples:\n  portico list a.py\n\nExit status: 0 success."
    )


@pytest.mark.parametrize("command", all_commands())
def test_positional_arguments_have_help(command: str) -> None:
    operands = [item for item in form_for(command).arguments if item.name != "action" and item.name != "profile"]
    assert [item.name for item in operands if "help" not in item.options] == []


def test_services_separated_by_spaces_get_a_hint(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parser_for("serve").parse(["server.py", "--services", "memory", "tasks"])
    assert ended.value.code == 2
    assert "unrecognized arguments: tasks; several services are separated by commas" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words, usage",
    [
        (["memory", "stats", "extra"], "portico memory stats [options]"),
        (["memory", "sync", "extra"], "portico memory sync [options]"),
        (["memory", "list", "extra", "--limit", "3"], "portico memory list [options]"),
        (["memory", "show", "3fb8", "extra"], "portico memory show ID [options]"),
        (["memory", "hook", "stop", "extra"], "portico memory hook NAME [options]"),
        (["items", "next", "extra"], "portico items next [options]"),
        (["items", "tree", "3fb8", "extra"], "portico items tree [ID] [options]"),
    ],
)
def test_words_that_an_action_would_ignore_are_refused(
    words: list[str], usage: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        parser_for(words[0]).parse(words[1:])
    message = capsys.readouterr().err
    assert ended.value.code == 2 and f"unexpected argument 'extra'; the usage is {usage}" in message


@pytest.mark.parametrize(
    "words",
    ["memory recall two words", "memory edit 3fb8 two words", "items done 3fb8 it works", "items block 3fb8 4a 5b"],
)
def test_texts_and_lists_have_any_number_of_words(words: str) -> None:
    command, *rest = words.split()
    assert parser_for(command).parse(rest).words == rest[1:]
