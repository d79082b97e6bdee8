"""Passwords are found in any notation: Unicode spaces and signs, HTML entities, other languages."""

from __future__ import annotations

import pytest

from portico.auth.verifiers.token_file import generate_token
from portico.screening import ScreeningPolicy, screen
from portico.screening.detector import find
from portico.screening.normalization import normalize_text

VALUE = "kV9_tr4w-Lq2z"

SPACES = ["\u00a0", "\u2003", "\u2009", "\u202f", "\u3000", "\ufeff", "\u200b"]


def assert_found(text: str) -> None:
    """Found, and where it is."""
    spans = [text[item.start : item.end] for item in find(text, ("secret",))]
    assert spans == [VALUE], text
    hidden = screen(text, ScreeningPolicy(secrets="redact")).text or ""
    assert VALUE not in hidden and hidden.startswith(text[:3])


@pytest.mark.parametrize("space", SPACES, ids=lambda one: f"U+{ord(one):04X}")
@pytest.mark.parametrize(
    "form", ["password:{0}{1}", "password{0}= {1}", "password{0}:{0}{1}", "the password{0}is{0}{1}"]
)
def test_other_spaces(space: str, form: str) -> None:
    assert_found(form.format(space, VALUE))


@pytest.mark.parametrize(
    "char", ["\u200b", "\u00ad", "\ufeff", "\u034f", "\ufe0f", "\u2063", "\U000e0041", "\0"], ids=ascii
)
@pytest.mark.parametrize("key", ["ghp_a8F3kL0pQ2rS5tU7vW9xY1zA4bC6dE8fG0hJ", generate_token()], ids=["github", "own"])
def test_invisible_characters_in_a_key(char: str, key: str) -> None:
    for written in (char.join(key), key[:7] + char + key[7:], key[:-1] + char + key[-1:]):
        text = f"use {written} for the build"
        (finding,) = find(text, ("secret",))
        assert text[finding.start : finding.end] == written
        hidden = screen(text, ScreeningPolicy(secrets="redact")).text or ""
        assert hidden == f"use [REDACTED:{finding.name}] for the build"


def test_invisible_characters_in_prose_find_nothing() -> None:
    assert (
        find("family \U0001f468\u200d\U0001f469\u200d\U0001f467 \u2764\ufe0f co\u00adop\u00ader\u00ada\u00adtion " * 50)
        == []
    )


@pytest.mark.parametrize("sign", ["：", "＝", " ： ", "﹕", "\u3000：\u3000"])
def test_full_width_signs(sign: str) -> None:
    assert_found(f"password{sign}{VALUE}")
    assert_found(f"ｐａｓｓｗｏｒｄ{sign}{VALUE}")


@pytest.mark.parametrize(
    "form",
    [
        "password:&nbsp;{0}",
        "password&nbsp;=&nbsp;{0}",
        "password&#58; {0}",
        "password&colon;&nbsp;{0}",
        "password&#x3D;{0}",
        "password&#160;&#61;&#160;{0}",
        "password = &quot;{0}&quot;",
        "<b>password</b>:&#xA0;{0}",
        "password=&#39;{0}&#39;",
    ],
)
def test_entities(form: str) -> None:
    assert_found(form.format(VALUE))


@pytest.mark.parametrize(
    "text",
    [
        "Das Passwort lautet {0}",
        "Kennwort: {0}",
        "Le mot de passe est {0}",
        "mot de passe : {0}",
        "La contraseña es {0}",
        "A senha é {0}",
        "La password è {0}",
        "Het wachtwoord is {0}",
        "wachtwoord: {0}",
        "Hasło to {0}",
        "hasło: {0}",
        "Пароль: {0}",
        "пароль — {0}",
        "密码：{0}",
        "密码是{0}",
        "密碼是{0}",
        "密码为 {0}",
        "口令：{0}",
        "パスワード：{0}",
        "パスワードは{0}",
        "비밀번호: {0}",
        "비밀번호는 {0}",
        "şifre: {0}",
        "parola: {0}",
        "lösenord: {0}",
        "passord: {0}",
        "adgangskode: {0}",
        "salasana: {0}",
        "heslo: {0}",
        "jelszó: {0}",
        "κωδικός: {0}",
        "סיסמה: {0}",
        "كلمة المرور: {0}",
        "पासवर्ड: {0}",
        "mật khẩu: {0}",
        "kata sandi: {0}",
        "รหัสผ่าน: {0}",
    ],
)
def test_password_in_other_languages(text: str) -> None:
    assert_found(text.format(VALUE))


@pytest.mark.parametrize(
    "text",
    [
        "密码是必填项",
        "パスワードは必須です",
        "Das Passwort ist falsch",
        "parola d'ordine",
        "La contraseña es obligatoria",
        "the password&nbsp;is required",
        "Пароль должен быть длинным",
        "hasło jest wymagane",
        "R&amp;D: password policy",
    ],
)
def test_sentences_about_passwords_are_left_alone(text: str) -> None:
    assert find(text, ("secret",)) == []


def test_redaction_preserves_positions() -> None:
    for text in ("a\u00a0b：ｃ", "密码是x", "x&nbsp;=&quot;y&quot;", "&#58;", "&", "&&;", "&nbsp", "é\ufeff"):
        assert len(normalize_text(text)) == len(text)
