"""Build the wheels and sdists of the four packages, and optionally their SBOM.

    python release/build.py dist            wheels and sdists, reproducible: the same commit gives the same bytes
    python release/build.py dist --sbom     also dist/portico-VERSION.cdx.json (CycloneDX)

Needs requirements/dist.txt. Timestamps are those of the commit, or SOURCE_DATE_EPOCH.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

from version import read_version

ROOT = Path(__file__).parents[1]
PACKAGES = ("portico", "portico-gateway", "portico-services", "portico-console")
SBOM_SPEC_VERSION = "1.6"
CHECKSUMS = "SHA256SUMS"


def build(output: Path) -> list[Path]:
    """Build wheels and sdists into a folder and return their paths."""
    env = {"SOURCE_DATE_EPOCH": _commit_time(), **os.environ}
    output.mkdir(parents=True, exist_ok=True)
    for name in PACKAGES:
        command = [sys.executable, "-m", "hatchling", "build", "-d", str(output.resolve())]
        subprocess.run(command, cwd=ROOT / "packages" / name, env=env, check=True, stdout=subprocess.DEVNULL)
    return sorted([*output.glob("*.whl"), *output.glob("*.tar.gz")])


def write_sbom(wheels: list[Path], output: Path) -> Path:
    """Write the SBOM of the wheels and their required dependencies at the pinned versions, and return its path."""
    path = output / f"portico-{read_version()}.cdx.json"
    with tempfile.TemporaryDirectory(prefix="portico-sbom-") as folder:
        # Versions are those of an installation: metadata alone has only lower bounds.
        venv.create(folder, with_pip=True)
        python = next(path for path in Path(folder).glob("*/python*") if path.stem == "python")
        install = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run(
            [*install, "--constraint", str(ROOT / "constraints.txt"), *(str(path.resolve()) for path in wheels)],
            check=True,
        )
        # pip and setuptools were only needed here.
        subprocess.run([str(python), "-m", "pip", "uninstall", "--quiet", "--yes", "setuptools", "pip"], check=True)
        options = [
            "--spec-version",
            SBOM_SPEC_VERSION,
            "--output-reproducible",
            "--validate",
            "--output-file",
            str(path),
        ]
        pyproject = ["--pyproject", str(ROOT / "packages" / "portico" / "pyproject.toml")]
        subprocess.run(
            [sys.executable, "-m", "cyclonedx_py", "environment", *options, *pyproject, str(python)], check=True
        )
    # The tool writes the path of this machine as the origin of the wheels.
    path.write_text(
        path.read_text(encoding="utf-8").replace(f"{wheels[0].resolve().parent.as_uri()}/", ""), encoding="utf-8"
    )
    return path


def write_checksums(files: list[Path], output: Path) -> None:
    """Write the SHA-256 of each file, in the format of `sha256sum --check`."""
    lines = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in files]
    (output / CHECKSUMS).write_text("".join(lines), encoding="utf-8")


def _commit_time() -> str:
    """Return the time of the commit. Outside of a git checkout it is 1980, the first year that a zip file can hold."""
    command = ["git", "-C", str(ROOT), "log", "-1", "--format=%ct"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "315532800"


def main() -> None:
    """Build into the folder of the command line."""
    parser = argparse.ArgumentParser(description="Build the wheels and sdists of the four packages.")
    parser.add_argument("output", type=Path, help="folder for the files")
    parser.add_argument("--sbom", action="store_true", help="also write a CycloneDX SBOM")
    arguments = parser.parse_args()
    files = build(arguments.output)
    if arguments.sbom:
        files.append(write_sbom([path for path in files if path.suffix == ".whl"], arguments.output))
    write_checksums(files, arguments.output)
    for path in [*files, arguments.output / CHECKSUMS]:
        print(path)


if __name__ == "__main__":
    main()
