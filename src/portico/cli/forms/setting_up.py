"""The commands that change what is around a server: clients, projects, the shell."""

from __future__ import annotations

from portico.cli.forms.parser import CommandForm, flag, word

FORMS: dict[str, CommandForm] = {
    "install": CommandForm(
        "portico install CLIENT [options] [-- SERVE …]",
        "Put `portico serve` into the configuration of a client. Shows what would change; --write changes it.",
        (word("client", choices=("claude-desktop", "claude-code", "cursor", "vscode")),),
        {
            "": (
                flag("--name", default="portico", help="what the client calls this server (default: %(default)s)"),
                flag(
                    "--scope",
                    choices=("user", "project"),
                    default="user",
                    help="for you, or for all who work on the project in this folder (default: %(default)s)",
                ),
                flag("--write", action="store_true", help="write it"),
                flag("--remove", action="store_true", help="take it out again"),
            )
        },
        "What stands behind -- is given to `portico serve`: a TARGET of your own, --services, --config …\n\n"
        "The file keeps everything else that is in it, and a copy of the old one is put beside it.",
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
    ),
}
