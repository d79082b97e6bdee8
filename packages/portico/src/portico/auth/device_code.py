"""The device authorization grant (RFC 8628), for users without a browser on this machine.

The user opens a page on another device, enters a short code and approves there; meanwhile the client polls the token
endpoint.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import Any

from portico.auth.assertions import SigningKey
from portico.auth.authorization_code import AuthorizationCode, InteractiveGrant
from portico.auth.client_registration import DEVICE_CODE, ClientRegistration, authenticate_client
from portico.auth.errors import AuthorizationError, DiscoveryError, GrantDenied, quote_untrusted
from portico.auth.flow import AuthFlow, DeviceCodeRequest, FetchResponse, WaitRequest, post_form
from portico.auth.grants import TokenRequest, request_token, to_token
from portico.auth.tokens import Token, to_error
from portico.auth.url_policy import check_url

# RFC 8628, section 3.2: the interval of a server that names none.
_DEFAULT_INTERVAL_SECONDS = 5.0
# RFC 8628, section 3.5: added to the interval by each `slow_down`.
_SLOW_DOWN_SECONDS = 5.0
# Bounds of what the server may ask for: it must neither make the client flood it nor keep it waiting for a day.
_MIN_INTERVAL_SECONDS, _MAX_INTERVAL_SECONDS = 1.0, 60.0
_MAX_LIFETIME_SECONDS = 1800.0
# Codes and URLs are shown on a terminal, so they must not contain control or invisible characters.
_USER_CODE = re.compile(r"[\x21-\x7e](?:[\x20-\x7e]{0,62}[\x21-\x7e])?")
_DISPLAYED_URL = re.compile(r"[\x21-\x7e]{1,2000}")


class DeviceCode(InteractiveGrant):
    """Device authorization grant: the user approves on another device, and the client polls for the token.

    The parameters are those of `AuthorizationCode`. `redirect_uri` is only used to register the client, so that the
    registration is also valid for a login with a browser.
    """

    _needs_device_grant = True

    def __init__(
        self,
        redirect_uri: str | None = None,
        *,
        client: ClientRegistration | None = None,
        client_metadata_url: str | None = None,
        client_key: SigningKey | None = None,
        metadata: Mapping[str, object] | None = None,
        offline_access: bool = True,
    ) -> None:
        super().__init__(redirect_uri, client, client_metadata_url, client_key, metadata, offline_access)

    def _authorize(self, request: TokenRequest, client: ClientRegistration) -> AuthFlow[Token]:
        authorization = yield from _request_codes(request, client)
        yield authorization.prompt
        action = f"Waiting for the login at {quote_untrusted(request.issuer)}"
        form = request.build_form(DEVICE_CODE, device_code=authorization.device_code)
        form.pop("scope", None)  # the scope was fixed with the device code
        # The waits are added up, because the clock of the machine may be set in the meantime: a login on a device that
        # has just started is a typical case.
        interval, left = authorization.interval, authorization.prompt.expires_in
        while True:
            yield WaitRequest(interval)
            left -= interval
            if left <= 0:
                raise AuthorizationError("The login was not completed in time and its code has expired. Start again.")
            try:
                issued = yield from request_token(request, form, client, action)
            except GrantDenied as error:
                if error.error == "slow_down":
                    interval = min(interval + _SLOW_DOWN_SECONDS, _MAX_INTERVAL_SECONDS)
                elif error.error != "authorization_pending":
                    raise
            except AuthorizationError:
                # RFC 8628, section 3.5: after a timeout or a server failure, poll less often.
                interval = min(interval * 2, _MAX_INTERVAL_SECONDS)
            else:
                return to_token(request, issued, action)


class UserLogin:
    """Login of a user: with a browser where there is one, otherwise with a device code where the server supports it.

    Without either, the login page is printed, and the redirect must reach this machine.
    """

    offline_access = True

    def __init__(self, redirect_uri: str, has_browser: Callable[[], bool]) -> None:
        self._has_browser = has_browser
        self._code_grant = AuthorizationCode(redirect_uri)
        self._device_grant = DeviceCode(redirect_uri)

    def token(self, request: TokenRequest) -> AuthFlow[Token]:
        """Return a token, after the user has approved access."""
        supports_device_grant = request.authorization_server.server.device_authorization_endpoint is not None
        use_device_grant = supports_device_grant and not self._has_browser()
        return (self._device_grant if use_device_grant else self._code_grant).token(request)

    def refresh(self, request: TokenRequest, token: Token) -> AuthFlow[Token]:
        """Exchange the refresh token of `token` for a new token."""
        return self._code_grant.refresh(request, token)


class _DeviceAuthorization:
    """Parsed response of the device authorization endpoint. Raises `AuthorizationError` if it is unusable."""

    def __init__(self, response: Mapping[str, Any], issuer: str) -> None:
        self.device_code = _text(response, "device_code", issuer)
        user_code, uri = _text(response, "user_code", issuer), _text(response, "verification_uri", issuer)
        complete = response.get("verification_uri_complete")
        if not _USER_CODE.fullmatch(user_code):
            raise AuthorizationError(f"{quote_untrusted(issuer)} sent a user code that cannot be displayed.")
        _check_displayed_url(uri, issuer)
        if isinstance(complete, str):
            _check_displayed_url(complete, issuer)
        lifetime = _parse_positive_number(response.get("expires_in")) or _MAX_LIFETIME_SECONDS
        interval = _parse_positive_number(response.get("interval")) or _DEFAULT_INTERVAL_SECONDS
        self.interval = min(max(interval, _MIN_INTERVAL_SECONDS), _MAX_INTERVAL_SECONDS)
        self.prompt = DeviceCodeRequest(
            uri, user_code, complete if isinstance(complete, str) else None, min(lifetime, _MAX_LIFETIME_SECONDS)
        )


def _request_codes(request: TokenRequest, client: ClientRegistration) -> AuthFlow[_DeviceAuthorization]:
    server = request.authorization_server.server
    endpoint = server.device_authorization_endpoint
    if endpoint is None:
        raise DiscoveryError(
            f"{quote_untrusted(request.issuer)} does not support the device authorization grant. Log in with a browser."
        )
    scope = {"scope": " ".join(request.scopes)} if request.scopes else {}
    credentials, headers = authenticate_client(client, server, request.clock())
    form = {"client_id": client.client_id, "resource": request.authorization_server.resource, **scope, **credentials}
    response: FetchResponse = yield from post_form(endpoint, form, tuple(headers.items()))
    result = response.json_object()
    if response.status != 200 or result is None or "error" in result:
        raise to_error(response, f"Asking {quote_untrusted(request.issuer)} for a device code")
    return _DeviceAuthorization(result, request.issuer)


def _text(response: Mapping[str, Any], name: str, issuer: str) -> str:
    value = response.get(name)
    if not isinstance(value, str) or not value:
        raise AuthorizationError(f"The device authorization response of {quote_untrusted(issuer)} has no {name}.")
    return value


def _check_displayed_url(url: str, issuer: str) -> None:
    if not _DISPLAYED_URL.fullmatch(url):
        raise AuthorizationError(f"{quote_untrusted(issuer)} sent a verification URL that cannot be displayed.")
    check_url(url)


def _parse_positive_number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value <= 0:
        return None
    return float(value)
