"""Equal subject ids of two issuers are different principals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from portico import Client, Server
from portico.auth import JwtVerifier, Principal, ResourceServer
from portico.auth.verifiers.base import RequestCredentials, VerifiedToken
from portico.compat.fastmcp.auth import MultiAuth, RemoteAuthProvider
from portico.protocol.errors import UsageError
from portico.rpc.call import Call
from portico.server.policy import settings as access_settings
from portico_services.memory import Memory

A, B = "https://a.example", "https://b.example"


def may(server: Server, principal: Principal) -> bool:
    assert server.policy is not None and server.policy.access_policy is not None
    call = Call(method="tools/call", principal=principal, address="192.0.2.1")
    return server.policy.access_policy.decide(call, "tool", server.qualified_name("tool", "look"), b"").allowed


def desk(tables: dict[str, Any]) -> Server:
    server = Server("desk")

    @server.tool
    def look() -> str:
        """Look."""
        return "seen"

    access_settings.apply(server, access_settings.read(tables))
    return server


def test_bare_id_is_rejected_with_several_issuers(tmp_path: Path) -> None:
    (tmp_path / "tokens.toml").write_text("")
    rule = [{"principal": "alice", "tool": "desk.look"}]
    with pytest.raises(
        UsageError,
        match=f"rule 1: principal = 'alice' is ambiguous, since 2 issuers may issue that id: .*'{A}#alice'",
    ):
        desk({"auth": {"issuers": [A, B]}, "rule": rule})
    with pytest.raises(UsageError, match="'tokens#alice'"):
        desk({"auth": {"issuers": [A], "token_file": str(tmp_path / "tokens.toml")}, "rule": rule})
    # Where there is one, nothing has changed; and to deny too many is no danger.
    alice = Principal("alice", issuer=A)
    assert may(desk({"auth": {"issuers": [A]}, "rule": rule}), alice)
    both = {"issuers": [A, B]}
    denied = desk({"auth": both, "rule": [{"principal": "alice", "deny": True}, {"principal": "*"}]})
    assert not may(denied, alice) and not may(denied, Principal("alice", issuer=B))


@pytest.mark.parametrize("who", [f"{A}#alice", f"alice and issuer:{A}"])
def test_rule_names_the_issuer(who: str) -> None:
    server = desk({"auth": {"issuers": [A, B]}, "rule": [{"principal": who, "tool": "desk.look"}]})
    assert may(server, Principal("alice", issuer=A, qualify_by_issuer=True))
    assert not may(server, Principal("alice", issuer=B, qualify_by_issuer=True))
    assert not may(server, Principal("bob", issuer=A, qualify_by_issuer=True))


def test_bare_id_rules_do_not_match_after_issuers_are_added() -> None:
    server = desk({"rule": [{"principal": "alice", "tool": "desk.look"}]})
    assert not may(server, Principal("alice", issuer=B, qualify_by_issuer=True))
    assert may(server, Principal("alice", issuer=B))
    # An id that looks like a name of ours is written with `id:`.
    web = desk({"rule": [{"principal": f"id:{A}#me"}]})
    assert may(web, Principal(f"{A}#me")) and not may(web, Principal("me", issuer=A))


class Issuer:
    def __init__(self, issuer: str) -> None:
        self.issuer = issuer

    async def __call__(self, credentials: RequestCredentials) -> VerifiedToken | None:
        if credentials.token != f"alice of {self.issuer}":
            return None
        return VerifiedToken(Principal("alice", issuer=self.issuer))


async def test_display_name_includes_the_issuer_if_there_are_several() -> None:
    item, two = ResourceServer([Issuer(A)]), ResourceServer([Issuer(A), Issuer(B)])
    result = RequestCredentials(token=f"alice of {A}")
    alone = (await item.verify(b"1", result)).verified.principal
    among = (await two.verify(b"1", result)).verified.principal
    assert (alone.display_name, among.display_name) == ("alice", f"{A}#alice")
    assert alone.identity == among.identity


async def test_login_and_verifier_are_different_issuers() -> None:
    login = RemoteAuthProvider(Issuer(A), [A], "https://desk.example")
    both = Server("desk", auth=MultiAuth(server=login, verifiers=[Issuer(B)])).auth
    assert both is not None
    result = (await both.verify(b"1", RequestCredentials("bearer", f"alice of {B}"))).verified.principal
    assert result.qualify_by_issuer and result.display_name == f"{B}#alice"
    # What the other says may depend on where a request comes from.
    near = JwtVerifier(A)
    joined = Server(
        "desk", auth=MultiAuth(server=RemoteAuthProvider(near, [A], "https://desk.example"), verifiers=[Issuer(B)])
    )
    assert joined.auth is not None and joined.auth.by_address and not ResourceServer([near]).by_address


async def test_group_of_a_memory_has_the_one_and_not_the_other(tmp_path: Path) -> None:
    server = Server("desk")
    server.add(Memory(str(tmp_path / "memory.db"), tools="all"))
    ours, theirs = (Principal("alice", issuer=member, qualify_by_issuer=True) for member in (A, B))
    async with Client(server, principal=ours) as our, Client(server, principal=theirs) as their:
        made = await our.call_tool("memory_groups", {"action": "create", "name": "board"})
        assert [member["member"] for member in made.structured["groups"][0]["members"]] == [f"{A}#alice"]
        more = {"action": "add_member", "name": "board", "member": "eve", "role": "admin"}
        assert (await their.call_tool("memory_groups", more, raise_on_error=False)).is_error
        assert not (await our.call_tool("memory_groups", more)).is_error
