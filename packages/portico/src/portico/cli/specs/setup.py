"""The commands that change what is around a server: clients, projects, the shell."""

from __future__ import annotations

from portico.cli.specs.parser import CommandForm, flag, word

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

FORMS: dict[str, CommandForm] = {
    "install": CommandForm(
        "portico install CLIENT [options] [-- SERVE …]",
        "Add a server to the configuration of a client: one that `portico serve` starts, or one at a URL. Shows what\n"
        "would change; --write changes it.",
        (word("client", choices=CLIENTS),),
        {
            "": (
                flag("--name", help="the name of the entry (default: the server's name, or that of its file)"),
                flag(
                    "--scope",
                    choices=("user", "project"),
                    default="user",
                    help="for you, or for everyone who works on the project in this folder (default: %(default)s)",
                ),
                flag(
                    "--env",
                    action="append",
                    default=[],
                    metavar="NAME=VALUE",
                    help="an environment variable for the server; may be repeated",
                ),
                flag(
                    "--header",
                    action="append",
                    default=[],
                    metavar="'NAME: VALUE'",
                    help="a header for a URL; ${NAME} stays a reference to an environment variable; may be repeated",
                ),
                flag(
                    "--token-env",
                    action="append",
                    default=[],
                    metavar="NAME",
                    help="the environment variable that holds the bearer token for a URL; the token is not written",
                ),
                flag("--write", action="store_true", help="write the file"),
                flag("--replace", action="store_true", help="replace another server that has the same name"),
                flag("--remove", action="store_true", help="remove the entry"),
            )
        },
        "The words after -- are those of `portico serve`: a TARGET of your own, --services, --config …; or a URL.\n"
        "A client that cannot connect to URLs starts `portico serve URL` as a bridge.\n\n"
        "Everything else in the file is preserved, and a copy of the old file is put beside it.\n"
        "`portico install json` prints an entry for clients that are not listed.\n\n"
        "examples:\n"
        "  portico install cursor -- weather.py\n"
        "  portico install claude-desktop --env API_KEY=… --write -- weather.py:server\n"
        "  portico install codex --token-env WEATHER_TOKEN -- https://weather.example.com/mcp",
        examples=("install cursor", "install claude-code --write -- my_server.py"),
    ),
    "port": CommandForm(
        "portico port PATH … [--write]",
        "Rewrite a project that uses FastMCP or the official SDK for Portico. Shows what would change; --write changes "
        "it. No code of the project is run.",
        (word("paths", "file", nargs="+", metavar="PATH", help="files, or folders with the files in them"),),
        {"": (flag("--write", action="store_true", help="change the files"),)},
        "What it cannot do is listed on standard error: the file, the line, and what to do.\n\n"
        "exit status: 0 all is done, 1 something is left to do by hand, 2 a mistake on the line.\n\n"
        "It needs libcst: install portico[port].",
        examples=("port src/", "port src/ --write"),
    ),
    "completion": CommandForm(
        "portico completion bash|zsh|fish",
        "Print the script that completes `portico` in a shell.",
        (word("shell", choices=("bash", "zsh", "fish")),),
        {},
        'bash:  eval "$(portico completion bash)"              in ~/.bashrc\n'
        'zsh:   eval "$(portico completion zsh)"               in ~/.zshrc, behind compinit\n'
        "fish:  portico completion fish | source               in ~/.config/fish/config.fish\n\n"
        "Names of tools, prompts and resources are those that `portico list` and `portico call` have seen before: TAB\n"
        "starts no server and waits for no network.",
        examples=("completion bash",),
    ),
}
