"""The files of deploy/ are accepted by their programs, and run where possible."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shlex
import shutil
import ssl
import subprocess
import sys
import time
import tomllib
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from portico.cli.main import main
from support import debian, haproxy, nginx, node
from support.paths import ROOT
from support.worker_processes import SERVER, HttpConnection, Session, SharedFleet

DEPLOY = ROOT / "deploy"
KUBERNETES = "1.37.0"
# Kinds are named by their group and version in the schema.
KINDS = {
    "v1": "io.k8s.api.core.v1",
    "apps/v1": "io.k8s.api.apps.v1",
    "policy/v1": "io.k8s.api.policy.v1",
    "autoscaling/v2": "io.k8s.api.autoscaling.v2",
}


# The proxies: two servers that share a store, and no stickiness


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[int, int]]:
    """The ports of two servers."""
    folder = tmp_path_factory.mktemp("two")
    (folder / "server.py").write_text(SERVER)
    # A file is shared by workers only; where there is a PostgreSQL it needs none.
    words = ["serve", str(folder / "server.py"), "--transport", "http", "--port", "0", "--workers", "1"]
    env = {**os.environ, "PORTICO_STORE": str(folder / "store.db"), "TMPDIR": str(folder)}
    with ExitStack() as stack:
        ports = []
        for _ in range(2):
            command = [sys.executable, "-m", "portico", *words]
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=env)
            stack.callback(process.communicate, timeout=30)
            stack.callback(process.terminate)
            # One after the other: the second would say that it waits for the first one's tables.
            ports.append(SharedFleet(process).port)
        yield ports[0], ports[1]


@pytest.mark.parametrize(("name", "running"), [("nginx.conf", nginx.running), ("haproxy.cfg", haproxy.running)])
async def test_events_come_through_a_proxy_and_sessions_need_no_stickiness(
    two: tuple[int, int], tmp_path: Path, name: str, running: Callable[[str, int], Any]
) -> None:
    port = nginx.free_port()
    text = (DEPLOY / name).read_text()
    for meant, found in {
        "10.0.0.11:8080": f"127.0.0.1:{two[0]}",
        "10.0.0.12:8080": f"127.0.0.1:{two[1]}",
        "listen 8000;": f"listen 127.0.0.1:{port};",
        "bind :8000": f"bind 127.0.0.1:{port}",
        # Each connection is two open files, and here there may not be so many.
        "maxconn 100000": "maxconn 100",
    }.items():
        text = text.replace(meant, found)
    try:
        with running(text, port):
            await _use(port, tmp_path / "waits")
    except debian.NotInstalled as why:
        debian.without(why)


async def _use(port: int, waits: Path) -> None:
    sessions = [await Session(port).begin() for _ in range(4)]
    answers = [[(await session.call("pid")).value for _ in range(3)] for session in sessions]
    assert all(len(set(answer)) == 1 for answer in answers)
    line = await HttpConnection.to(port)
    params = {"name": "slowly", "arguments": {"path": str(waits)}, "_meta": {"progressToken": 1}}
    message = {"jsonrpc": "2.0", "id": 9, "method": "tools/call", "params": params}
    await line.send("POST", message, **sessions[0].fields)
    status, fields = await line.head()
    assert (status, fields["content-type"]) == (200, "text/event-stream")
    # The first event is here while the call still waits for us.
    seen = b""
    while b"notifications/progress" not in seen:
        seen += await line.chunk()
    await asyncio.to_thread(_remove_soon, waits)
    while chunk := await line.chunk():
        seen += chunk
    assert b"done" in seen
    assert (await line.get("/readyz")).status == 200
    await line.close()


def _remove_soon(path: Path) -> None:
    until = time.monotonic() + 10
    while not path.exists() and time.monotonic() < until:
        time.sleep(0.01)
    path.unlink()


def test_nginx_page_serves_a_prefix_with_tls(tmp_path: Path, server_file: Path) -> None:
    page = (ROOT / "docs" / "how-to" / "run-behind-nginx.md").read_text()
    text = re.findall(r"^```nginx\n(.*?)^```", page, re.MULTILINE | re.DOTALL)[0]
    command = re.findall(r"^\$ (portico serve .*?)\n```", page, re.MULTILINE | re.DOTALL)[0].replace("\\\n", " ")
    certificate, key = re.findall(r"ssl_certificate(?:_key)? (\S+);", text)
    port, behind = nginx.free_port(), nginx.free_port()
    words = ["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=acme.example", "-days", "2"]
    subprocess.run(
        ["openssl", *words, "-keyout", tmp_path / "key.pem", "-out", tmp_path / "chain.pem"],
        capture_output=True, check=True, timeout=60,
    )  # fmt: skip
    for meant, found in {
        "listen 443 ssl;": f"listen 127.0.0.1:{port} ssl;",
        certificate: str(tmp_path / "chain.pem"),
        key: str(tmp_path / "key.pem"),
        "127.0.0.1:8080": f"127.0.0.1:{behind}",
    }.items():
        text = text.replace(meant, found)
    options = shlex.split(command.replace("server.py", str(server_file)))[1:]
    served = subprocess.Popen(
        [sys.executable, "-m", "portico", *options, "--port", str(behind)],
        stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert served.stderr is not None and "Serving on" in served.stderr.readline()
        with nginx.running(text, port):
            context = ssl.create_default_context(cafile=str(tmp_path / "chain.pem"))
            context.check_hostname = False
            metadata = f"https://127.0.0.1:{port}/.well-known/oauth-protected-resource/tools/mcp"
            with urllib.request.urlopen(metadata, context=context, timeout=30) as response:
                assert json.load(response)["resource"] == "https://acme.example/tools/mcp"
            with pytest.raises(urllib.error.HTTPError, match="401"):
                urllib.request.urlopen(f"https://127.0.0.1:{port}/tools/mcp", b"{}", context=context, timeout=30)
    except debian.NotInstalled as why:
        debian.without(why)
    finally:
        served.terminate()
        served.communicate(timeout=30)


# systemd


def test_systemd_accepts_the_units(tmp_path: Path) -> None:
    if not shutil.which("systemd-analyze"):
        try:
            debian.install("systemd")
        except debian.NotInstalled as why:
            debian.without(why)
    # It asks whether the program is there.
    for path in (DEPLOY / "systemd").iterdir():
        text = path.read_text().replace("/opt/portico/bin/portico", sys.executable)
        (tmp_path / path.name).write_text(text)
    units = [str(tmp_path / name) for name in ("portico.socket", "portico.service")]
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *units], capture_output=True, text=True, timeout=60, check=False
    )
    ours = [line for line in done.stderr.splitlines() if "portico" in line]
    assert (done.returncode, ours) == (0, [])


async def test_unit_serves_on_the_socket_of_its_address(server_file: Path) -> None:
    """As systemd starts it, by systemd's own program for that."""
    if not (activate := shutil.which("systemd-socket-activate")):
        pytest.skip("there is no systemd-socket-activate")
    (started,) = re.findall("^ExecStart=(.+)$", (DEPLOY / "systemd" / "portico.service").read_text(), re.MULTILINE)
    words = [sys.executable, "-m", "portico", *shlex.split(started)[1:]]
    words[words.index("/etc/portico/server.py")] = str(server_file)
    port = nginx.free_port()
    process = await asyncio.create_subprocess_exec(
        activate, "-l", f"127.0.0.1:{port}", *(f"--setenv={name}" for name in ("PATH", "TMPDIR", "HOME")), *words,
        stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert process.stderr is not None
    try:
        async with asyncio.timeout(30):
            # The first connection starts the service, and waits in the socket until it is there.
            assert b"Listening on" in await process.stderr.readline()
            session = await Session(port).begin()
            first = (await session.call("pid")).value
            assert (await session.call("pid")).value == first != process.pid
    finally:
        process.terminate()
        await process.communicate()


# Kubernetes


@pytest.fixture(scope="module")
def schema(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], dict[str, Any]]:
    """The schemas of a version of Kubernetes, with nothing allowed that they do not name."""
    if not os.environ.get("CI"):
        pytest.skip(f"the schemas of Kubernetes are had where CI is set: kubernetes-validate {KUBERNETES}")
    folder = tmp_path_factory.mktemp("kubernetes")
    node.install_wheel(f"kubernetes-validate=={KUBERNETES}", folder)

    def read(version: str) -> dict[str, Any]:
        path = folder / f"kubernetes_validate/kubernetes-json-schema/v{version}-local-strict/_definitions.json"
        data: dict[str, Any] = json.loads(path.read_text().replace("/api/_definitions.json#", "#"))
        return data

    return read


def manifests() -> list[dict[str, Any]]:
    yaml = pytest.importorskip("yaml")
    return [item for item in yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text()) if item]


@pytest.mark.parametrize("version", ["1.30.0", KUBERNETES])
def test_kubernetes_knows_every_field_of_the_manifest(schema: Any, version: str) -> None:
    import jsonschema_rs

    definitions = schema(version)
    for manifest in manifests():
        kind = {"$ref": f"#/$defs/{KINDS[manifest['apiVersion']]}.{manifest['kind']}", "$defs": definitions["$defs"]}
        wrong = [f"{list(each.instance_path)}: {each.message}" for each in jsonschema_rs.iter_errors(kind, manifest)]
        assert not wrong, manifest["kind"]


def test_kubernetes_manifest_is_consistent() -> None:
    by_kind = {manifest["kind"]: manifest for manifest in manifests()}
    template = by_kind["Deployment"]["spec"]["template"]
    (container,) = template["spec"]["containers"]
    paths = {container[probe]["httpGet"]["path"] for probe in ("startupProbe", "readinessProbe", "livenessProbe")}
    assert paths == {"/health", "/readyz"}
    keys = {
        manifest["valueFrom"]["secretKeyRef"]["key"]
        for manifest in container["env"]
        if "secretKeyRef" in manifest.get("valueFrom", {})
    }
    assert keys == set(by_kind["Secret"]["stringData"])
    labels = template["metadata"]["labels"]
    for kind in ("Deployment", "PodDisruptionBudget"):
        assert by_kind[kind]["spec"]["selector"]["matchLabels"] == labels
    assert by_kind["Service"]["spec"]["selector"] == labels
    assert by_kind["Service"]["spec"].get("sessionAffinity") == "None"
    # What it waits for has to be over before it is killed: the pause, ten seconds for calls, and the end.
    pause = container["lifecycle"]["preStop"]["sleep"]["seconds"]
    assert template["spec"]["terminationGracePeriodSeconds"] > pause + 15


def test_commands_of_the_image_and_of_the_pods_are_understood(capsys: pytest.CaptureFixture[str]) -> None:
    image = (DEPLOY / "Dockerfile").read_text()
    (command,) = re.findall(r"^CMD (\[.+\])$", image, re.MULTILINE)
    deployment = next(manifest for manifest in manifests() if manifest["kind"] == "Deployment")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    for words in (json.loads(command), container["args"]):
        # Without a token it refuses to be reached by everybody, after it has understood everything else.
        words[words.index("/srv/server.py")] = str(ROOT / "examples" / "hello.py")
        with pytest.raises(SystemExit, match="2"):
            main(words)
        assert "token" in capsys.readouterr().err.lower()


def test_image_copies_existing_files() -> None:
    """Docker is not on the machines that run the tests, so the image itself is not built by them."""
    image = (DEPLOY / "Dockerfile").read_text()
    (server,) = re.findall(r"^ARG SERVER=(\S+)$", image, re.MULTILINE)
    copied = [word for line in re.findall(r"^COPY (?!--)(.+) \S+$", image, re.MULTILINE) for word in line.split()]
    assert all((ROOT / word.replace("${SERVER}", server)).exists() for word in copied)
    installed = re.findall(r"/source/(packages/[a-z-]+)", image)
    assert {str(path.relative_to(ROOT)) for path in ROOT.glob("packages/*")} == set(installed)
    (extras,) = re.findall(r"/source/packages/portico\[(.+)\]", image)
    text = tomllib.loads((ROOT / "packages/portico/pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert set(extras.split(",")) <= set(text)


@pytest.fixture(autouse=True)
def no_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PORTICO_TOKEN", raising=False)
