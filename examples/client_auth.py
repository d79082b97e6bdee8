"""Ways for a client to authenticate."""

from __future__ import annotations

import os
import time

from portico import Client
from portico.auth import (
    AuthorizationCode,
    ClientCredentials,
    ClientRegistration,
    FileStorage,
    OAuth,
    TokenStorage,
    WorkloadIdentity,
)

URL = "https://example.com/mcp"


def with_token() -> Client:
    return Client(URL, auth=os.environ["EXAMPLE_TOKEN"])


def with_browser_login() -> Client:
    return Client(URL, auth="oauth")


def with_registered_client() -> Client:
    registered = ClientRegistration(client_id="my-agent", client_secret=os.environ["EXAMPLE_SECRET"])
    return Client(URL, auth=AuthorizationCode("http://127.0.0.1:8976/callback", client=registered))


def with_client_credentials() -> Client:
    registered = ClientRegistration(client_id="my-agent", client_secret=os.environ["EXAMPLE_SECRET"])
    return Client(URL, auth=ClientCredentials(registered))


def with_workload_identity(token: str) -> Client:
    return Client(URL, auth=WorkloadIdentity(token))


def with_all_options() -> Client:
    oauth = OAuth(
        URL,
        AuthorizationCode("http://127.0.0.1:8976/callback", metadata={"client_name": "My agent"}),
        clock=time.time,
        storage=TokenStorage(FileStorage("credentials.json")),
        scopes=["notes:read"],
        dpop=True,
    )
    return Client(URL, auth=oauth)


EXAMPLES = [with_token, with_browser_login, with_registered_client, with_client_credentials, with_all_options]
