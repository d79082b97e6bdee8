"""Profiles: bundled settings files, each of which makes Portico compatible with another server."""

from __future__ import annotations

from pathlib import Path

from portico import UsageError

PROFILES_DIR = Path(__file__).parent


def list_profiles() -> list[str]:
    """Return the names of the bundled profiles."""
    return sorted(path.stem for path in PROFILES_DIR.glob("*.toml"))


def find_profile(name: str) -> Path:
    """Return the path of a profile, given by name or, if it contains a slash or ends with .toml, by path.

    Raises `UsageError` for an unknown name.
    """
    # A path needs a slash or the suffix, so that a file in the working directory cannot shadow a bundled profile.
    if name.endswith(".toml") or "/" in name or "\\" in name:
        return Path(name)
    profiles = list_profiles()
    if name not in profiles:
        # Imported here: only an error needs it.
        from difflib import get_close_matches

        suggestions = get_close_matches(name, profiles, n=1)
        hint = f"did you mean {suggestions[0]!r}?" if suggestions else f"expected one of {', '.join(profiles)}"
        raise UsageError(f"unknown profile {name!r} ({hint}); a file is named by its path, such as ./{name}.toml")
    return PROFILES_DIR / f"{name}.toml"


def read_profile(name: str) -> str:
    """Return the text of a profile, including its comments. Raises `UsageError`."""
    path = find_profile(name)
    try:
        return path.read_text(encoding="utf-8")
    except OSError as failure:
        raise UsageError(f"{path} cannot be read: {failure.strerror}") from None
    except ValueError:
        raise UsageError(f"{path} is not valid UTF-8") from None
