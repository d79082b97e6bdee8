"""Servers that want to know who is asking: the ways to tell them."""

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


def with_a_token() -> Client:
    return Client(URL, auth=os.environ["EXAMPLE_TOKEN"])


def at_a_browser() -> Client:
    return Client(URL, auth="oauth")


def as_a_registered_client() -> Client:
    registered = ClientRegistration(client_id="my-agent", client_secret=os.environ["EXAMPLE_SECRET"])
    return Client(URL, auth=AuthorizationCode("http://127.0.0.1:8976/callback", client=registered))


def on_its_own_behalf() -> Client:
    registered = ClientRegistration(client_id="my-agent", client_secret=os.environ["EXAMPLE_SECRET"])
    return Client(URL, auth=ClientCredentials(registered))


def as_a_workload(token: str) -> Client:
    return Client(URL, auth=WorkloadIdentity(token))


def with_everything_said() -> Client:
    oauth = OAuth(
        URL,
        AuthorizationCode("http://127.0.0.1:8976/callback", metadata={"client_name": "My agent"}),
        clock=time.time,
        storage=TokenStorage(FileStorage("credentials.json")),
        scopes=["notes:read"],
        dpop=True,
    )
    return Client(URL, auth=oauth)


WAYS = [with_a_token, at_a_browser, as_a_registered_client, on_its_own_behalf, with_everything_said]
