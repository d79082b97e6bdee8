"""`portico login` and `portico logout`: obtain or delete the token of a server."""

from __future__ import annotations

import argparse
import asyncio
import time

from portico.auth.authorization_code import AuthorizationCode
from portico.auth.client_registration import ClientRegistration
from portico.auth.device_code import DeviceCode, UserLogin
from portico.auth.grants import Grant
from portico.auth.oauth import OAuth
from portico.auth.token_storage import TokenStorage
from portico.cli.connect import TIMEOUT_MARGIN_SECONDS
from portico.cli.specs import parser_for
from portico.cli.terminal_text import to_single_line
from portico.client.auth import DEFAULT_REDIRECT_URI, token_backend
from portico.protocol.errors import UsageError
from portico.transports.http_client.browser_login import BrowserLogin, has_browser
from portico.transports.http_client.oauth import OAuthTransport
from portico.transports.targets import UrlTarget, parse_target


def run(words: list[str]) -> int:
    """Log in and store the token."""
    arguments = parser_for("login").parse_args(words)
    url = _server_url(arguments.url)
    oauth = OAuth(
        url, _grant(arguments), clock=time.time, storage=TokenStorage(token_backend()), scopes=arguments.scope
    )
    asyncio.run(_login(oauth, arguments.timeout))
    token = oauth.token
    assert token is not None
    scopes = f" with the scopes {to_single_line(token.scope)}" if token.scope else ""
    print(f"Logged in to {url}{scopes}. The token is stored; other commands use it.")
    return 0


def run_logout(words: list[str]) -> int:
    """Delete the stored token."""
    url = _server_url(parser_for("logout").parse_args(words).url)
    oauth = OAuth(url, AuthorizationCode(DEFAULT_REDIRECT_URI), clock=time.time, storage=TokenStorage(token_backend()))
    had_token = oauth.token is not None
    oauth.logout()
    print(f"Deleted the token for {url}." if had_token else f"No token is stored for {url}.")
    return 0


def _grant(arguments: argparse.Namespace) -> Grant:
    client = ClientRegistration(client_id=arguments.client_id) if arguments.client_id else None
    if arguments.device:
        return DeviceCode(DEFAULT_REDIRECT_URI, client=client)
    if client is not None:
        return AuthorizationCode(DEFAULT_REDIRECT_URI, client=client)
    return UserLogin(DEFAULT_REDIRECT_URI, has_browser)


async def _login(oauth: OAuth, timeout: float) -> None:
    transport = OAuthTransport(oauth, BrowserLogin(timeout=timeout))
    try:
        async with asyncio.timeout(timeout + TIMEOUT_MARGIN_SECONDS):
            await transport.login()
    except TimeoutError:
        raise UsageError(f"the login was not completed within {timeout:g} s") from None
    finally:
        await transport.close()


def _server_url(target: str) -> str:
    parsed = parse_target(target)
    if not isinstance(parsed, UrlTarget):
        raise UsageError(f"expected the URL of a server, got {target!r}")
    return parsed.url
