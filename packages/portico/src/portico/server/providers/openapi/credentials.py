"""Credentials for an API, applied as the document's security schemes require."""

from __future__ import annotations

import asyncio
import time
from base64 import b64encode
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

from portico.protocol.errors import PorticoError, ToolError, UsageError
from portico.protocol.json_depth import decode_bounded
from portico.server.providers.openapi.binding import CONNECTION_HEADERS, HEADER_NAME, ApiRequest
from portico.server.providers.openapi.document import OpenApiDocument
from portico.server.providers.openapi.operations import Operation
from portico.server.providers.openapi.parameter_styles import percent_encode, percent_encode_name
from portico.transports.http_client.simple_request import http_request

TOKEN_TIMEOUT_SECONDS, MAX_TOKEN_RESPONSE_BYTES = 30.0, 64 * 1024
# Refresh a token this long before it expires.
TOKEN_REFRESH_MARGIN_SECONDS = 30.0

Credential = Any
"""A key or a token; (name, password); or a table with `client_id` and `client_secret`."""


class SecuritySchemes:
    """The security schemes of a document, and the credentials configured for them.

    `credentials` is one credential for every scheme that an operation names, or several by scheme name.
    """

    def __init__(self, document: OpenApiDocument, credentials: Any) -> None:
        self._document = document
        self._auth = credentials
        # By scheme name and required scopes.
        self._tokens: dict[tuple[str, ...], ClientCredentialsToken] = {}
        if isinstance(credentials, Mapping) and "client_id" not in credentials:
            for name, credential in credentials.items():
                self._check(name, credential)
        elif credentials is not None and not isinstance(credentials, str | tuple | list | Mapping):
            raise UsageError("auth must be a string, a (name, password) pair, or a table of them by scheme")

    def _check(self, name: str, credential: Credential) -> None:
        scheme = self._document.component("securitySchemes", name)
        if scheme is None:
            raise UsageError(f"auth contains {name!r}, but the document has no security scheme of this name")
        if not isinstance(credential, str | tuple | list | Mapping):
            raise UsageError(f"auth of {name!r} must be a string, a (name, password) pair or a table")

    async def apply(self, request: ApiRequest, operation: Operation) -> None:
        """Add credentials to a request, if there are any for the operation."""
        if self._auth is None:
            return
        operation_security = operation.decode.security
        requirements = self._document.security if operation_security is None else operation_security
        # The first alternative for which all credentials are configured wins (OpenAPI, Security Requirement Object).
        for alternative in requirements:
            result = {name: self._resolve_credential(name) for name in alternative}
            if result and all(value is not None for value in result.values()):
                for name, credential in result.items():
                    await self._apply_scheme(request, name, credential, alternative[name])
                return
        if not requirements and operation_security is None and isinstance(self._auth, str):
            # The document declares no security, but a credential is configured: send it as a bearer token.
            request.headers.append(("Authorization", f"Bearer {self._auth}"))

    def _resolve_credential(self, name: str) -> Credential | None:
        if isinstance(self._auth, Mapping) and "client_id" not in self._auth:
            return self._auth.get(name)
        return self._auth

    async def _apply_scheme(self, request: ApiRequest, name: str, credential: Credential, scopes: list[str]) -> None:
        result = self._document.resolve(self._document.component("securitySchemes", name))
        scheme = result if isinstance(result, dict) else {}
        kind = scheme.get("type")
        if isinstance(credential, Mapping):
            token = await self._client_token(name, scheme, credential, scopes)
            request.headers.append(("Authorization", f"Bearer {token}"))
        elif kind == "apiKey" and isinstance(credential, str):
            _apply_api_key(request, scheme, credential)
        elif kind == "http" and str(scheme.get("scheme", "")).lower() == "basic":
            pair = credential if isinstance(credential, str) else ":".join(map(str, credential))
            request.headers.append(("Authorization", "Basic " + b64encode(pair.encode()).decode()))
        elif isinstance(credential, str):
            request.headers.append(("Authorization", f"Bearer {credential}"))

    async def _client_token(self, name: str, scheme: Any, client: Mapping[str, Any], scopes: list[str]) -> str:
        key = (name, *scopes)
        if key not in self._tokens:
            flows = scheme.get("flows") if isinstance(scheme, dict) else None
            flow = flows.get("clientCredentials") if isinstance(flows, dict) else None
            url = client.get("token_url") or (flow.get("tokenUrl") if isinstance(flow, dict) else None)
            if not isinstance(url, str):
                raise ToolError(
                    f"The API's security scheme {name} has no token URL: set token_url.", error_type="PermissionError"
                )
            self._tokens[key] = ClientCredentialsToken(url, client, tuple(scopes), trust_url="token_url" in client)
        return await self._tokens[key].get()


def _apply_api_key(request: ApiRequest, scheme: dict[str, Any], key: str) -> None:
    location, name = scheme.get("in"), str(scheme.get("name", ""))
    if location != "query" and (not HEADER_NAME.fullmatch(name) or name.lower() in CONNECTION_HEADERS):
        raise ToolError("The API's security scheme cannot be applied to a request.", error_type="ToolExecutionError")
    if location == "query":
        # Replace an argument of the same name: a caller must not override the operator's key.
        request.query = [
            (parameter, value) for parameter, value in request.query if parameter != percent_encode_name(name)
        ]
        request.query.append((percent_encode_name(name), percent_encode(key)))
    elif location == "cookie":
        request.cookies = [(parameter, value) for parameter, value in request.cookies if parameter != name]
        request.cookies.append((name, percent_encode(key)))
    else:
        request.headers = [
            (parameter, value) for parameter, value in request.headers if parameter.lower() != name.lower()
        ]
        request.headers.append((name, key))


class ClientCredentialsToken:
    """An access token of the client credentials grant (RFC 6749, section 4.4), cached until it expires.

    `trust_url`: the operator configured the token URL. A URL from the document is only used with https and a public
    address.
    """

    def __init__(self, url: str, client: Mapping[str, Any], scopes: tuple[str, ...], *, trust_url: bool) -> None:
        self._url = url
        self._client = client
        self._scopes = tuple(client.get("scopes", scopes))
        self._public = not trust_url
        self._token = ""
        self._expires_at = 0.0
        self._lock = asyncio.Lock()

    async def get(self) -> str:
        # One fetch at a time: concurrent calls wait for it and share the token.
        async with self._lock:
            if time.monotonic() >= self._expires_at:
                await self._fetch()
            return self._token

    async def _fetch(self) -> None:
        client_id = percent_encode(str(self._client["client_id"]))
        client_secret = percent_encode(str(self._client.get("client_secret", "")))
        pair = f"{client_id}:{client_secret}"
        form = {"grant_type": "client_credentials", **({"scope": " ".join(self._scopes)} if self._scopes else {})}
        headers = (
            ("Authorization", "Basic " + b64encode(pair.encode()).decode()),
            ("Content-Type", "application/x-www-form-urlencoded"),
            ("Accept", "application/json"),
        )
        try:
            answer = await http_request(
                "POST",
                self._url,
                headers=headers,
                body=urlencode(form).encode(),
                timeout=TOKEN_TIMEOUT_SECONDS,
                max_response_bytes=MAX_TOKEN_RESPONSE_BYTES,
                public_only=self._public,
            )
            token_response = decode_bounded(answer.body) if answer.status == 200 else {}
            token, lasts = token_response.get("access_token"), token_response.get("expires_in", 300)
        except (PorticoError, ValueError, AttributeError) as failure:
            raise ToolError(
                (f"Failed to fetch the API's access token: {failure}"), error_type="PermissionError"
            ) from None
        if not isinstance(token, str) or not isinstance(lasts, int | float):
            raise ToolError(
                (f"The API's token endpoint returned no token: status {answer.status}."), error_type="PermissionError"
            )
        self._token, self._expires_at = token, time.monotonic() + max(0.0, lasts - TOKEN_REFRESH_MARGIN_SECONDS)
