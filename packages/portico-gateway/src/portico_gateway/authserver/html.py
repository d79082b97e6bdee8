"""HTML pages of the login flow: no scripts, and not embeddable in a frame."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from html import escape

from portico.transports.http_server.messages import HeaderPairs, HttpResponse

_STYLE = (
    "body{font:17px/1.5 system-ui,sans-serif;max-width:34em;margin:12vh auto;padding:0 1em;"
    "color:#1b1b1b;background:#fff}"
    "h1{font-size:1.4em}dt{color:#555;margin-top:.8em}dd{margin:0;overflow-wrap:anywhere}"
    "button{font:inherit;padding:.5em 1.4em;margin:1.2em .6em 0 0;border:1px solid #444;"
    "border-radius:.4em;background:#fff}"
    "button.yes{background:#1b4d89;border-color:#1b4d89;color:#fff}.care{background:#fff3d6;padding:.6em .8em}"
    "@media(prefers-color-scheme:dark){body{color:#eee;background:#161616}dt{color:#aaa}"
    "button{background:#222;color:#eee}.care{background:#4a3a10}}"
)
FORM_CONTENT_TYPE = b"application/x-www-form-urlencoded"
_HASH = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()

# `form-action` applies to every redirect that follows a form submission. Forms are therefore never answered with a
# redirect to another origin; see `render_redirect`.
SECURITY_HEADERS: HeaderPairs = (
    (b"content-type", b"text/html; charset=utf-8"),
    (
        b"content-security-policy",
        f"default-src 'none'; style-src 'sha256-{_HASH}'; form-action 'self'; frame-ancestors 'none'; "
        "base-uri 'none'".encode(),
    ),
    (b"x-frame-options", b"DENY"),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"same-origin"),
    (b"cache-control", b"no-store"),
)


def render_page(status: int, title: str, body: str, headers: HeaderPairs = (), *, head: str = "") -> HttpResponse:
    """Return a complete HTML page with the security headers."""
    text = (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>{escape(title)}</title>{head}<style>{_STYLE}</style></head><body><h1>{escape(title)}</h1>{body}"
        "</body></html>"
    )
    return HttpResponse(status, (*SECURITY_HEADERS, *headers), text.encode())


def render_error(text: str, status: int = 400) -> HttpResponse:
    """Return an error page."""
    return render_page(status, "Something went wrong", f"<p>{escape(text)}</p><p>You can close this window.</p>")


def render_redirect(url: str, where: str, more: HeaderPairs = ()) -> HttpResponse:
    """Return a page that navigates to `url`. Used after a form, where the CSP forbids a redirect to another origin."""
    link = escape(url, quote=True)
    return render_page(
        200,
        f"Continuing to {where}",
        f'<p>If nothing happens, <a id="on" href="{link}">continue</a>.</p>',
        more,
        head=f'<meta http-equiv="refresh" content="0;url={link}">',
    )


def access_denied_page(url: str, where: str) -> HttpResponse:
    """Return a page that confirms the refusal. It links back to the client but does not redirect there."""
    link = escape(url, quote=True)
    return render_page(
        200,
        "Access was declined",
        f'<p>You can close this window, or <a id="on" href="{link}">go back</a> to {escape(where)}.</p>',
    )


def render_confirmation(
    title: str,
    facts: Sequence[tuple[str, str]],
    care: str,
    action: str,
    flow: str,
    confirm_label: str,
    more: HeaderPairs,
) -> HttpResponse:
    """Return a confirmation page with a confirm and a cancel button. `facts` are label and text pairs."""
    rows = "".join(f"<dt>{escape(name)}</dt><dd>{escape(text)}</dd>" for name, text in facts)
    warning = f'<p class="care">{escape(care)}</p>' if care else ""
    form = (
        f'<form method="post" action="{escape(action, quote=True)}">'
        f'<input type="hidden" name="flow" value="{escape(flow, quote=True)}">'
        f'<button class="yes" name="answer" value="yes">{escape(confirm_label)}</button>'
        '<button name="answer" value="no">Cancel</button></form>'
    )
    return render_page(200, title, f"<dl>{rows}</dl>{warning}{form}", more)


def render_choice(
    title: str, choices: Mapping[str, str], care: str, action: str, flow: str, yes: str, more: HeaderPairs
) -> HttpResponse:
    """Return a page with one button for each choice. `choices` maps submitted values to labels."""
    buttons = "".join(
        f'<p>{escape(text)} <button name="answer" value="{escape(value, quote=True)}">{escape(yes)}</button></p>'
        for value, text in choices.items()
    )
    form = (
        f'<form method="post" action="{escape(action, quote=True)}">'
        f'<input type="hidden" name="flow" value="{escape(flow, quote=True)}">{buttons}</form>'
    )
    return render_page(200, title, f'{form}<p class="care">{escape(care)}</p>', more)


def render_code_entry(action: str, user_code: str) -> HttpResponse:
    """Return the page on which a user enters the code that a device shows."""
    form = (
        f'<form method="post" action="{escape(action, quote=True)}"><p><label for="code">Enter the code that is shown '
        'on your device.</label></p><p><input id="code" name="user_code" autocomplete="off" '
        'autocapitalize="characters" '
        f'spellcheck="false" maxlength="16" required autofocus value="{escape(user_code, quote=True)}"></p>'
        '<button class="yes">Continue</button></form>'
    )
    return render_page(200, "Log in on another device", form)
