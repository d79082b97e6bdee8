"""An authorization-server face in front of the login at an address, for the suite to judge:

python face_server.py PORT LOGIN_ISSUER CALLBACK_PORT
"""

from __future__ import annotations

import sys

from portico import Server
from portico.access.face import settings


def main(port: str, login: str, callback: str) -> None:
    issuer = f"http://127.0.0.1:{port}"
    server = Server("everything")
    said = {
        "issuer": login,
        "client_id": "portico",
        "client_secret": "known to both",
        "scopes": {"everything": "use everything"},
        "client": [
            {"id": "suite", "name": "The suite", "redirect_uris": [f"http://127.0.0.1:{callback}/callback"]},
        ],
    }
    settings.put_on(server, settings.read(said), issuer, f"{issuer}/mcp")
    server.run("http", port=int(port))


if __name__ == "__main__":
    main(*sys.argv[1:])
