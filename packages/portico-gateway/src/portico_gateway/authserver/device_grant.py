"""Device authorization grant (RFC 8628): a client without a browser shows a code, the user approves it elsewhere.

The rows are functions of a Transaction, as in `store`. Rows are signed: a role that can write to the database must not
be able to attach another user's grant to its device code.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping
from functools import partial

import msgspec
from msgspec import Raw, Struct

from portico.auth.client_registration import DEVICE_CODE
from portico.store.transaction import Transaction
from portico.transports.http_server import ip_rate_limit
from portico.transports.http_server.custom_routes import CustomRoute
from portico.transports.http_server.ip_rate_limit import IpRateLimiter
from portico.transports.http_server.messages import HttpRequest, HttpResponse
from portico_gateway.authserver import html, store
from portico_gateway.authserver.clients import OAuthClient
from portico_gateway.authserver.config import AuthorizationServerConfig
from portico_gateway.authserver.cookies import new_cookie_value
from portico_gateway.authserver.endpoints import authenticate_form, describe_client
from portico_gateway.authserver.errors import ErrorPageResponse, OAuthErrorResponse
from portico_gateway.authserver.identity_providers import provider_host
from portico_gateway.authserver.login_flow import LoginResult, LoginState, source_of
from portico_gateway.authserver.requests import grant_scopes, validate_resource
from portico_gateway.authserver.responses import NO_STORE, html_errors, json_response, oauth_errors, parse_parameters
from portico_gateway.authserver.server import AuthorizationServer
from portico_gateway.credentials.encryption import KeyRing, digest

CODE_TTL_SECONDS = 600.0
POLL_INTERVAL_SECONDS = 5.0
MAX_DEVICE_CODES = 50_000

# RFC 8628, section 6.1: consonants only, so that no words and no look-alikes appear. 20^8 is 34 bits.
_ALPHABET = "BCDFGHJKLMNPQRSTVWXZ"
_USER_CODE_CHARS = 8
# Attempts to enter a code, per address. A guess is right with a probability of MAX_DEVICE_CODES / 20^8 at most, one
# in 500,000.
_ENTRIES_PER_MINUTE = 10.0
# A row may be polled a little early: the client's clock starts when it receives the response.
_POLL_TOLERANCE_SECONDS = 0.5

_DEVICES, _APPROVALS = b"rows of device codes", b"approvals of device codes"
_PURPOSE = "device"
_UNKNOWN_CODE = "This code is unknown or has expired. Check it, or start again on your device."


class DeviceRow(Struct, frozen=True):
    """Device login that waits for its user."""

    id: str
    user_code: str
    client: str
    scope: str
    resource: str
    expires_at: float
    poll_interval: float
    polled_at: float
    denied_at: float | None = None
    grant_id: str | None = None
    signature: str | None = None
    grant_signature: str | None = None

    def signed_columns(self) -> tuple[str, ...]:
        """Return the fields that the signature covers."""
        return self.id, self.user_code, self.client, self.scope, self.resource, repr(self.expires_at)


_COLUMNS = ", ".join(DeviceRow.__struct_fields__)


def create_device_login(tx: Transaction, row: DeviceRow, now: float, source: store.Source, ring: KeyRing) -> None:
    tx.execute("delete from provider_device where expires_at < :now", {"now": now})
    store.make_room(tx, "provider_device", MAX_DEVICE_CODES, source)
    tx.execute(
        "insert into provider_device (id, user_code, client, scope, resource, expires_at, poll_interval, polled_at, "
        "signature, network, wider_network) values (:id, :user_code, :client, :scope, :resource, :expires_at, "
        ":poll_interval, :polled_at, :signature, :network, :wider)",
        msgspec.structs.asdict(row)
        | {
            "signature": ring.signing.sign_row(_DEVICES, *row.signed_columns()),
            "network": source.network,
            "wider": source.wider_network,
        },
    )


def find_device_login(tx: Transaction, column: str, name: str, now: float, ring: KeyRing) -> DeviceRow | None:
    """Return the login with a digest in `column`, or None if it is missing, expired or has an invalid signature."""
    row = tx.fetch_optional(
        DeviceRow, f"select {_COLUMNS} from provider_device where {column} = :name for update", {"name": name}
    )
    if row is None or row.expires_at <= now:
        return None
    return row if ring.signing.is_row_signed(_DEVICES, row.signature, *row.signed_columns()) else None


def decide_device_login(
    tx: Transaction, name: str, subject: str, identity: bytes | None, settings: AuthorizationServerConfig, ring: KeyRing
) -> bool:
    """Approve a login for a user, or deny it if `identity` is None. Return False if it was already decided."""
    now = time.time()
    row = find_device_login(tx, "id", name, now, ring)
    if row is None or row.denied_at is not None or row.grant_id is not None:
        return False
    if identity is None:
        tx.execute("update provider_device set denied_at = :now where id = :id", {"now": now, "id": name})
        return True
    scopes = tuple(row.scope.split())
    grant = store.create_grant(tx, settings, row.client, scopes, row.resource, subject, identity, ring, now)
    tx.execute(
        "update provider_device set grant_id = :grant, grant_signature = :signature where id = :id",
        {"grant": grant.id, "signature": ring.signing.sign_row(_APPROVALS, name, grant.id), "id": name},
    )
    return True


def redeem_device_code(
    tx: Transaction,
    settings: AuthorizationServerConfig,
    client: OAuthClient,
    form: Mapping[str, str],
    now: float,
    ring: KeyRing,
) -> store.IssuedGrant | OAuthErrorResponse:
    """Redeem a device code once, or return the error of RFC 8628, section 3.5, that applies.

    Errors are returned, not raised: raising would undo the count of the poll.
    """
    name = digest(form.get("device_code", ""))
    row = find_device_login(tx, "id", name, now, ring)
    if row is None or row.client != client.id:
        return OAuthErrorResponse("expired_token", "The device code is unknown, was used or has expired.")
    if row.denied_at is not None:
        tx.execute("delete from provider_device where id = :id", {"id": name})
        return OAuthErrorResponse("access_denied", "The user declined the login.")
    if row.grant_id is None:
        early = now - row.polled_at < row.poll_interval - _POLL_TOLERANCE_SECONDS
        interval = row.poll_interval + (POLL_INTERVAL_SECONDS if early else 0.0)
        tx.execute(
            "update provider_device set polled_at = :now, poll_interval = :interval where id = :id",
            {"now": now, "interval": interval, "id": name},
        )
        if early:
            return OAuthErrorResponse("slow_down", "Poll less often: the interval was increased by 5 seconds.")
        return OAuthErrorResponse("authorization_pending", "The user has not decided yet.")
    if not ring.signing.is_row_signed(_APPROVALS, row.grant_signature, name, row.grant_id):
        return OAuthErrorResponse("expired_token", "The device code is unknown, was used or has expired.")
    grant = store.find_grant(tx, row.grant_id, ring)
    if grant.revoked_at is not None:
        return OAuthErrorResponse("access_denied", "The login was revoked.")
    store.check_target(form, grant)
    tx.execute("delete from provider_device where id = :id", {"id": name})
    return store.IssuedGrant(grant, store.create_refresh_token(tx, settings, grant, now, ring))


class _PendingApproval(Struct, frozen=True):
    """Device login that waits for the user's consent and login."""

    device: str
    client: OAuthClient


class DeviceEndpoints:
    """Endpoints of the device authorization grant: one for clients, and the pages for their users."""

    def __init__(self, server: AuthorizationServer) -> None:
        self._server = server
        self._logins = server.login_flow
        self._logins.handlers[_PURPOSE] = self.on_login
        server.token_grants[DEVICE_CODE] = redeem_device_code

    def routes(self) -> list[CustomRoute]:
        """Return the routes of all endpoints."""
        tokens, entries = ip_rate_limit.TOKENS_PER_MINUTE, _ENTRIES_PER_MINUTE
        logins = ip_rate_limit.LOGINS_PER_MINUTE
        pages = [
            ("POST", "/device_authorization", IpRateLimiter(tokens).wrap(oauth_errors(self.authorize))),
            ("GET", "/device", IpRateLimiter(logins).wrap(html_errors(self.entry_page))),
            ("POST", "/device", IpRateLimiter(entries).wrap(html_errors(self.enter_code))),
            ("POST", "/device/consent", IpRateLimiter(logins).wrap(html_errors(self.consent))),
        ]
        return self._logins.mount_routes(pages)

    async def authorize(self, request: HttpRequest) -> HttpResponse:
        form, client = await authenticate_form(self._server, request)
        if client.kind == "document":
            try:
                client = await self._server.get_client(client.id, request.peer)
            except ErrorPageResponse as failure:
                raise OAuthErrorResponse("invalid_client", str(failure), 401) from None
        if not client.device_grant:
            raise OAuthErrorResponse("unauthorized_client", f"The client is not registered for {DEVICE_CODE}.")
        settings, now = self._server.settings, time.time()
        device_code, user_code = secrets.token_urlsafe(32), _new_user_code()
        row = DeviceRow(
            id=digest(device_code),
            user_code=digest(user_code),
            client=client.id,
            scope=" ".join(grant_scopes(form.get("scope"), settings)),
            resource=validate_resource(form, settings, OAuthErrorResponse),
            expires_at=now + CODE_TTL_SECONDS,
            poll_interval=POLL_INTERVAL_SECONDS,
            polled_at=0.0,
        )
        create = partial(
            create_device_login, row=row, now=now, source=source_of(request.peer), ring=self._logins.keyring
        )
        await self._server.database.write(create)
        display_code = f"{user_code[:4]}-{user_code[4:]}"
        body = {
            "device_code": device_code,
            "user_code": display_code,
            "verification_uri": settings.url("/device"),
            "verification_uri_complete": settings.url(f"/device?user_code={display_code}"),
            "expires_in": int(CODE_TTL_SECONDS),
            "interval": int(POLL_INTERVAL_SECONDS),
        }
        return json_response(200, body, NO_STORE)

    async def entry_page(self, request: HttpRequest) -> HttpResponse:
        code = parse_parameters(request.query).get("user_code", "")
        # The code is only filled in; the user still has to compare it with the one on the device and submit it.
        return html.render_code_entry(self._server.settings.url("/device"), _normalize(code))

    async def enter_code(self, request: HttpRequest) -> HttpResponse:
        form = self._logins.check_same_origin(request)
        user_code = _normalize(form.get("user_code", ""))
        find = partial(
            find_device_login, column="user_code", name=digest(user_code), now=time.time(), ring=self._logins.keyring
        )
        row = await self._server.database.write(find)
        if row is None or row.grant_id is not None or row.denied_at is not None:
            raise ErrorPageResponse(_UNKNOWN_CODE)
        client = await self._server.get_client(row.client, request.peer)
        cookie = self._logins.cookie
        browser, flow = cookie.read(request) or new_cookie_value(), new_cookie_value()
        body = Raw(msgspec.json.encode(_PendingApproval(row.id, client)))
        await self._logins.save_state(flow, browser, LoginState(_PURPOSE, body), request.peer)
        title, facts = describe_client(self._server, client, row.scope.split(), is_proven=client.secret is not None)
        facts.insert(0, ("Code", f"{user_code[:4]}-{user_code[4:]}"))
        # RFC 8628, section 5.4: an attacker may send a code to a victim and ask them to approve it.
        care = (
            "Continue only if this code is shown on a device in front of you and you started the login there. "
            "Do not approve a code that someone sent you."
        )
        action = self._server.settings.url("/device/consent")
        return html.render_confirmation(title, facts, care, action, flow, "Allow, and log in", cookie.write(browser))

    async def consent(self, request: HttpRequest) -> HttpResponse:
        form = self._logins.check_same_origin(request)
        cookie = self._logins.cookie
        browser = cookie.read(request)
        flow = await self._logins.take_state(form.get("flow", ""), browser, _PURPOSE)
        if flow.pending is not None or browser is None:
            raise ErrorPageResponse("This page has expired. Start again on your device.")
        if form.get("answer") != "yes":
            return await self._record_decision(msgspec.json.decode(flow.body, type=_PendingApproval), "", None)
        url = await self._logins.redirect_to_login(browser, _PURPOSE, flow.body, request.peer)
        return html.render_redirect(url, provider_host(self._logins.provider), cookie.write(browser))

    async def on_login(self, arrived: LoginResult) -> HttpResponse:
        pending = msgspec.json.decode(arrived.body, type=_PendingApproval)
        if arrived.who is None:
            return await self._record_decision(pending, "", None)
        return await self._record_decision(pending, arrived.who.subject, self._server.encode_identity(arrived.who))

    async def _record_decision(self, pending: _PendingApproval, subject: str, identity: bytes | None) -> HttpResponse:
        decide = partial(
            decide_device_login,
            name=pending.device,
            subject=subject,
            identity=identity,
            settings=self._server.settings,
            ring=self._logins.keyring,
        )
        if not await self._server.database.write(decide):
            raise ErrorPageResponse(_UNKNOWN_CODE)
        if identity is None:
            return html.render_page(200, "Access was declined", "<p>You can close this window.</p>")
        text = "<p>You can close this window and return to your device.</p>"
        return html.render_page(200, "Login complete", text)


def _new_user_code() -> str:
    return "".join(secrets.choice(_ALPHABET) for _ in range(_USER_CODE_CHARS))


def _normalize(code: str) -> str:
    """Return the letters of an entered code (RFC 8628, section 6.1: ignore case and punctuation)."""
    return "".join(char for char in code[:64].upper() if char in _ALPHABET)[:_USER_CODE_CHARS]
