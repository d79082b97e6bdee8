"""The commands for set-up: install, port, completion."""

from __future__ import annotations

from portico.cli.specs.parser import CommandSpec, argument, option

CLIENTS = (
    "claude-desktop",
    "claude-code",
    "cursor",
    "vscode",
    "windsurf",
    "zed",
    "gemini",
    "codex",
    "goose",
    "json",
)

COMMAND_SPECS: dict[str, CommandSpec] = {
    "install": CommandSpec(
        "portico install CLIENT [options] [-- SERVE …]",
        "Add a server to a client's configuration: one that `portico serve` starts, or\n"
        "one at a URL. Shows the change; --write applies it.",
        (argument("client", choices=CLIENTS, metavar="CLIENT", help=f"client to configure: {', '.join(CLIENTS)}"),),
        {
            "": (
                option(
                    "--name", metavar="NAME", help="server name in the client (default: the name of the server or file)"
                ),
                option(
                    "--scope",
                    choices=("user", "project"),
                    default="user",
                    help="user configuration or the project in this directory (default: %(default)s)",
                ),
                option(
                    "--env",
                    action="append",
                    default=[],
                    metavar="NAME=VALUE",
                    help="environment variable for the server; repeatable",
                ),
                option(
                    "--header",
                    action="append",
                    default=[],
                    metavar="'NAME: VALUE'",
                    help="HTTP header for a URL; ${NAME} stays a reference to an environment variable; repeatable",
                ),
                option(
                    "--token-env",
                    action="append",
                    default=[],
                    metavar="NAME",
                    help="environment variable with the bearer token for a URL; the token is not written",
                ),
                option("--write", action="store_true", help="write the change instead of showing it"),
                option("--replace", action="store_true", help="replace another server of the same name"),
                option("--remove", action="store_true", help="remove the server"),
            )
        },
        "The words after -- are arguments of `portico serve`: a TARGET, --services, --config …;\nor a URL. For "
        "a client that cannot connect to URLs, the entry runs `portico serve URL`\nas a bridge.\n\nThe rest "
        "of the file is preserved, and the old file is copied next to it.\n`portico install json` prints an "
        "entry for other clients.",
        examples=(
            "install cursor",
            "install claude-code --write -- my_server.py",
            "install claude-desktop --env API_KEY=… --write -- weather.py:server",
            "install codex --token-env WEATHER_TOKEN -- https://mcp.example.com/mcp",
        ),
    ),
    "port": CommandSpec(
        "portico port PATH … [--write]",
        "Rewrite FastMCP or MCP SDK code for Portico. Shows the changes; --write applies\n"
        "them. No code of the project is run. Needs portico[port].",
        (argument("paths", "file", nargs="+", metavar="PATH", help="files or directories"),),
        {"": (option("--write", action="store_true", help="write the changes instead of showing them"),)},
        "Code that has to be changed by hand is listed on standard error with its file,\n"
        "its line and the remedy.\n\n"
        "Exit status: 0 success; 1 code left to change by hand; 2 usage error.",
        examples=("port src/", "port src/ --write"),
    ),
    "completion": CommandSpec(
        "portico completion bash|zsh|fish",
        "Print a shell completion script.",
        (argument("shell", choices=("bash", "zsh", "fish"), help="shell to complete in"),),
        {},
        'bash:  eval "$(portico completion bash)"    in ~/.bashrc\n'
        'zsh:   eval "$(portico completion zsh)"     in ~/.zshrc, after compinit\n'
        "fish:  portico completion fish | source     in ~/.config/fish/config.fish\n\n"
        "Names of tools, prompts and resources come from earlier `portico list` and\n"
        "`portico call` commands; completion starts no server and uses no network.",
        examples=("completion bash",),
    ),
}
