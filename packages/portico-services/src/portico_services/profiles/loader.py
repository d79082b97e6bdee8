"""The profiles: files of settings that come with Portico, each of which makes it look like another server."""

from __future__ import annotations

from pathlib import Path

from portico import UsageError

HOME = Path(__file__).parent


def names() -> list[str]:
    """Those that come with Portico."""
    return sorted(path.stem for path in HOME.glob("*.toml"))


def find(name: str) -> Path:
    """The file of a profile: one of ours by its name, any other by its path, which has a slash or ends with .toml."""
    if name.endswith(".toml") or "/" in name or "\\" in name:
        return Path(name)
    known = names()
    if name not in known:
        raise UsageError(
            f"there is no profile {name!r}; there are {', '.join(known)}. A file of your own goes by its path, "
            f"such as ./{name}.toml"
        )
    return HOME / f"{name}.toml"


def read(name: str) -> str:
    """A profile as it stands in its file, with its comments."""
    path = find(name)
    try:
        return path.read_text(encoding="utf-8")
    except OSError as failure:
        raise UsageError(f"{path} cannot be read: {failure.strerror}") from None
    except ValueError:
        raise UsageError(f"{path} is not text in UTF-8") from None
