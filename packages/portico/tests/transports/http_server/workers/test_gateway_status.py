"""Every worker reports the same upstream status."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from portico.extend import http_request
from support.worker_processes import HttpConnection

UPSTREAM = """
from portico import Server
server = Server("one")
@server.tool
def work() -> str:
    return "done"
server.run()
"""
CALLS = 12


async def test_workers_agree_about_upstreams(serve: Any, tmp_path: Path) -> None:
    (tmp_path / "one.py").write_text(UPSTREAM)
    file = tmp_path / "gateway.toml"
    command = [sys.executable, str(tmp_path / "one.py")]
    file.write_text(f'[upstream.one]\ncommand = {command}\n[upstream.dead]\ncommand = ["/there/is/no/such/program"]\n')
    env = {"TMPDIR": str(tmp_path), "PORTICO_OPERATOR_TOKEN": "op-token"}
    fleet = await serve("--workers", "2", "--no-auth", "--data", str(tmp_path), target=file, env=env)
    url = f"http://127.0.0.1:{fleet.port}"

    async def get(path: str, token: str = "op-token") -> tuple[int, str]:
        headers = [("Authorization", f"Bearer {token}")]
        answer = await http_request("GET", url + path, headers=headers, timeout=20, max_response_bytes=1 << 20)
        return answer.status, answer.body.decode()

    async def states() -> dict[str, Any]:
        report = json.loads((await get("/gateway/status"))[1])
        assert report["workers"] == 2
        return {item["alias"]: item for item in report["upstreams"]}

    assert [item["state"] for item in (await states()).values()] == ["not tried", "not tried"]
    for _ in range(CALLS):
        # Each on a connection of its own, so that both workers get some.
        line = await HttpConnection.to(fleet.port)
        await line.request_stateless("tools/list", {})
        await line.call("one_work")
        await line.close()
    for _ in range(CALLS):
        result = await states()
        assert (result["one"]["state"], result["one"]["calls"] >= CALLS) == ("ok", True)
        assert (result["dead"]["state"], result["dead"]["up"]) == ("away", False)
        metrics = (await get("/metrics"))[1].splitlines()
        assert 'portico_upstream_up{upstream="one"} 1' in metrics
        assert 'portico_upstream_up{upstream="dead"} 0' in metrics
    assert (await get("/gateway/status", "wrong"))[0] in (401, 403)
