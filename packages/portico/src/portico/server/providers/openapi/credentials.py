"""What proves to an API who we are, put where the document's security schemes say that it belongs."""

from __future__ import annotations

import asyncio
import time
from base64 import b64encode
from collections.abc import Awaitable, Callable, Mapping
from typing import Any
from urllib.parse import urlencode

from portico.protocol.errors import Error, ToolError, UsageError
from portico.protocol.json_depth import decode_bounded
from portico.server.providers.openapi.binding import OUR_HEADERS, TOKEN, ApiRequest
from portico.server.providers.openapi.document import ApiDocument
from portico.server.providers.openapi.operations import Operation
from portico.server.providers.openapi.parameter_styles import escape_name, escaped
from portico.transports.http_client.simple_request import http_exchange

TOKEN_SECONDS, LONGEST_TOKEN = 30.0, 64 * 1024
# A token is not used in its last moments.
EARLY_SECONDS = 30.0

Credential = Any
"""A key or a token; (name, password); or a table with `client_id` and `client_secret`."""


class SecuritySchemes:
    """The schemes of a document, and the credentials that there are for them.

    `auth` is one credential, for whichever scheme an operation names; or several, by the names of their schemes.
    """

    def __init__(self, document: ApiDocument, auth: Any) -> None:
        self._document = document
        self._auth = auth
        # By scheme, and what an operation needs of it.
        self._tokens: dict[tuple[str, ...], ClientToken] = {}
        if isinstance(auth, Mapping) and "client_id" not in auth:
            for name, credential in auth.items():
                self._check(name, credential)
        elif auth is not None and not isinstance(auth, str | tuple | list | Mapping):
            raise UsageError("auth is a text, a name with its password, or a table of them by scheme")

    def _check(self, name: str, credential: Credential) -> None:
        scheme = self._document.component("securitySchemes", name)
        if scheme is None:
            raise UsageError(f"auth has {name!r}, and the document has no security scheme of this name")
        if not isinstance(credential, str | tuple | list | Mapping):
            raise UsageError(f"auth of {name!r} is a text, a name with its password, or a table")

    async def put(self, request: ApiRequest, operation: Operation) -> None:
        """Put the credentials on a request, if there are some for it."""
        if self._auth is None:
            return
        said = operation.what.security
        wanted = self._document.security if said is None else said
        for alternative in wanted:
            found = {name: self._credential(name) for name in alternative}
            if found and all(one is not None for one in found.values()):
                for name, credential in found.items():
                    await self._put(request, name, credential, alternative[name])
                return
        if not wanted and said is None and isinstance(self._auth, str):
            # A document that says nothing of it, and someone who does: then it is a bearer token.
            request.headers.append(("Authorization", f"Bearer {self._auth}"))

    def _credential(self, name: str) -> Credential | None:
        if isinstance(self._auth, Mapping) and "client_id" not in self._auth:
            return self._auth.get(name)
        return self._auth

    async def _put(self, request: ApiRequest, name: str, credential: Credential, scopes: list[str]) -> None:
        found = self._document.resolved(self._document.component("securitySchemes", name))
        scheme = found if isinstance(found, dict) else {}
        kind = scheme.get("type")
        if isinstance(credential, Mapping):
            token = await self._token(name, scheme, credential, scopes)
            request.headers.append(("Authorization", f"Bearer {token}"))
        elif kind == "apiKey" and isinstance(credential, str):
            _put_key(request, scheme, credential)
        elif kind == "http" and str(scheme.get("scheme", "")).lower() == "basic":
            pair = credential if isinstance(credential, str) else ":".join(map(str, credential))
            request.headers.append(("Authorization", "Basic " + b64encode(pair.encode()).decode()))
        elif isinstance(credential, str):
            request.headers.append(("Authorization", f"Bearer {credential}"))

    async def _token(self, name: str, scheme: Any, client: Mapping[str, Any], scopes: list[str]) -> str:
        key = (name, *scopes)
        if key not in self._tokens:
            flows = scheme.get("flows") if isinstance(scheme, dict) else None
            flow = flows.get("clientCredentials") if isinstance(flows, dict) else None
            url = client.get("token_url") or (flow.get("tokenUrl") if isinstance(flow, dict) else None)
            if not isinstance(url, str):
                raise ToolError(f"The API has no place for tokens ({name}): give token_url.", kind="PermissionError")
            self._tokens[key] = ClientToken(url, client, tuple(scopes), configured="token_url" in client)
        return await self._tokens[key].get()


def _put_key(request: ApiRequest, scheme: dict[str, Any], key: str) -> None:
    place, name = scheme.get("in"), str(scheme.get("name", ""))
    if place != "query" and (not TOKEN.fullmatch(name) or name.lower() in OUR_HEADERS):
        raise ToolError("The API has a security scheme that no request can have.", kind="ToolExecutionError")
    if place == "query":
        request.query = [(known, value) for known, value in request.query if known != escape_name(name)]
        request.query.append((escape_name(name), escaped(key)))
    elif place == "cookie":
        request.cookies = [(known, value) for known, value in request.cookies if known != name]
        request.cookies.append((name, escaped(key)))
    else:
        request.headers = [(known, value) for known, value in request.headers if known.lower() != name.lower()]
        request.headers.append((name, key))


class ClientToken:
    """A token for ourselves, by the client credentials grant (RFC 6749, section 4.4); kept until it ends.

    `configured`: an operator said where it is fetched; otherwise the document did, and it is fetched over https, from
    the open internet only.
    """

    def __init__(self, url: str, client: Mapping[str, Any], scopes: tuple[str, ...], *, configured: bool) -> None:
        self._url = url
        self._client = client
        self._scopes = tuple(client.get("scopes", scopes))
        self._public = not configured
        self._token = ""
        self._until = 0.0
        self._lock = asyncio.Lock()

    async def get(self) -> str:
        async with self._lock:
            if time.monotonic() >= self._until:
                await self._fetch()
            return self._token

    async def _fetch(self) -> None:
        pair = f"{escaped(str(self._client['client_id']))}:{escaped(str(self._client.get('client_secret', '')))}"
        form = {"grant_type": "client_credentials", **({"scope": " ".join(self._scopes)} if self._scopes else {})}
        headers = (
            ("Authorization", "Basic " + b64encode(pair.encode()).decode()),
            ("Content-Type", "application/x-www-form-urlencoded"),
            ("Accept", "application/json"),
        )
        try:
            answer = await http_exchange(
                "POST",
                self._url,
                headers=headers,
                body=urlencode(form).encode(),
                seconds=TOKEN_SECONDS,
                longest=LONGEST_TOKEN,
                public=self._public,
            )
            said = decode_bounded(answer.body) if answer.status == 200 else {}
            token, lasts = said.get("access_token"), said.get("expires_in", 300)
        except (Error, ValueError, AttributeError) as failure:
            raise ToolError(f"The API's token could not be fetched: {failure}", kind="PermissionError") from None
        if not isinstance(token, str) or not isinstance(lasts, int | float):
            raise ToolError(f"The API gives no token: status {answer.status}.", kind="PermissionError")
        self._token, self._until = token, time.monotonic() + max(0.0, lasts - EARLY_SECONDS)


Authorize = Callable[[ApiRequest, Operation], Awaitable[None]]
