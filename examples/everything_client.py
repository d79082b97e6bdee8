"""A client with every feature of the protocol: one function per scenario.

The official conformance suite runs it once for each of its scenarios (`make conform`) and sets environment variables:
MCP_CONFORMANCE_SCENARIO is one of the names below, MCP_CONFORMANCE_PROTOCOL_VERSION the protocol version to use, and
MCP_CONFORMANCE_CONTEXT a JSON object with configuration, such as a client id.

MCP_CONFORMANCE_SCENARIO=tools_call python examples/everything_client.py http://127.0.0.1:8080/mcp

The exit status is 0 if the result is as expected, otherwise 1. In some scenarios the server is malicious, and the
expected result is that the client detects it.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from portico import Client, PorticoError
from portico.auth import (
    AuthorizationCode,
    ClientCredentials,
    ClientRegistration,
    EnterpriseManagedAuthorization,
    Grant,
    IdentityProvider,
    InvalidRedirect,
    IssuerMismatch,
    OAuth,
    ResourceMismatch,
    ScopeRejected,
    SigningKey,
    TokenStorage,
    WorkloadIdentity,
    headless_login,
)
from portico.client.skills import SkillVerificationError, list_skills, read_skill, read_skill_file
from portico.extend import LATEST_HANDSHAKE_VERSION
from portico.types import CreateMessageParams, ElicitParams

REDIRECT_URI = "http://localhost:8976/callback"


class NotAsExpected(Exception):
    """The server differs from the scenario, or the client did not detect an attack."""


def expect(true: bool, otherwise: str) -> None:
    if not true:
        raise NotAsExpected(otherwise)


@dataclass(frozen=True)
class Run:
    """URL of the server, and the configuration."""

    url: str
    revision: Any
    context: dict[str, Any]

    def client(self, **options: Any) -> Client:
        """Return a client of a fixed protocol version; without it, the version is negotiated."""
        return Client(
            self.url, client_name="everything-client", client_version="1.0.0", protocol_version=self.revision, **options
        )

    def logged_in(self, grant: Grant, *, dpop: bool | None = None) -> Client:
        """Return a client for a server that requires authentication.

        `Client(url, auth=grant)` would be enough and would store the tokens; here they are discarded at the end.
        `headless_login` replaces the browser, because this authorization server redirects without user interaction.
        """
        memory = TokenStorage()
        oauth = OAuth(self.url, grant, clock=time.time, storage=memory, dpop=dpop, protocol_version=self.revision)
        return self.client(auth=oauth, open_browser=headless_login)


Scenario = Callable[[Run], Coroutine[Any, Any, None]]
SCENARIOS: dict[str, Scenario] = {}


def scenario(*names: str) -> Callable[[Scenario], Scenario]:
    def register(function: Scenario) -> Scenario:
        SCENARIOS.update(dict.fromkeys(names, function))
        return function

    return register


# Tools, resources, prompts


@scenario("initialize")
async def say_hello(run: Run) -> None:
    async with run.client() as client:
        expect(client.server_info is not None, "the server does not say who it is")
        expect(client.protocol_version == run.revision, f"the server speaks {client.protocol_version}")


@scenario("tools_call")
async def call_a_tool(run: Run) -> None:
    async with run.client() as client:
        names = [tool.name for tool in await client.list_tools()]
        expect("add_numbers" in names, f"the tools are {', '.join(names)}")
        result = await client.call_tool("add_numbers", {"a": 5, "b": 3})
        expect("8" in result.text, f"5 and 3 are {result.text}")


@scenario("http-standard-headers")
async def use_one_of_each(run: Run) -> None:
    """Send the request headers of HTTP, which the client sets itself."""
    async with run.client() as client:
        for tool in await client.list_tools():
            await client.call_tool(tool.name)
        for resource in await client.list_resources():
            await client.read_resource(resource.uri)
        for prompt in await client.list_prompts():
            await client.get_prompt(prompt.name)


@scenario("http-custom-headers")
async def call_tools_that_mirror_arguments(run: Run) -> None:
    """Send arguments in headers, which requires the tool's definition: list the tools first."""
    async with run.client() as client:
        known_names = {tool.name for tool in await client.list_tools()}
        for call in run.context["toolCalls"]:
            expect(call["name"] in known_names, f"there is no tool {call['name']}")
            await client.call_tool(call["name"], call["arguments"])


@scenario("http-invalid-tool-headers")
async def leave_out_what_cannot_be_called(run: Run) -> None:
    """List the tools without the one with invalid annotations."""
    async with run.client() as client:
        tools = [tool.name for tool in await client.list_tools()]
        expect(tools == ["valid_tool"], f"listed as valid: {', '.join(tools)}")
        await client.call_tool("valid_tool", {"region": "us-west1"})


@scenario("json-schema-ref-no-deref")
async def follow_no_references(run: Run) -> None:
    """List a schema with a remote reference unchanged. Nothing is fetched."""
    async with run.client() as client:
        tools = await client.list_tools()
        references = [tool.input_schema["properties"]["profile"]["$ref"] for tool in tools]
        expect(all("://" in reference for reference in references) and bool(references), f"found {references}")


@scenario("json-schema-2020-12-preservation")
async def keep_schemas_as_they_are(run: Run) -> None:
    async with run.client() as client:
        schemas = {tool.name: tool.input_schema for tool in await client.list_tools()}
        await client.call_tool("json_schema_echo", {"schema": schemas["json_schema_2020_12_tool"]})


# Server-to-client requests


@scenario("elicitation-sep1034-client-defaults")
async def fill_in_a_form(run: Run) -> None:
    """Answer a form; omitted fields get their defaults."""

    def fill_in(form: ElicitParams) -> dict[str, Any]:
        return {}

    async with run.client(elicitation_handler=fill_in) as client:
        await client.list_tools()
        result = await client.call_tool("test_client_elicitation_defaults")
        expect("completed" in result.text, f"the form was not accepted: {result.text}")


@scenario("request-metadata")
async def say_what_we_can_do(run: Run) -> None:
    """Declare the features with a handler. The first request is rejected for its protocol version and retried."""

    def think(request: CreateMessageParams) -> str:
        return "a thought"

    options = {"sampling_handler": think, "elicitation_handler": dict, "roots": ["file:///tmp"]}
    # This server has tools but does not declare them.
    async with run.client(ignore_capabilities=True, **options) as client:
        await client.list_tools()


@scenario("sep-2322-client-request-state")
async def answer_in_rounds(run: Run) -> None:
    """Answer input requests of a call, which the client then repeats with the answers."""
    requests: list[str] = []

    def confirm(form: ElicitParams) -> dict[str, Any]:
        requests.append(form.message)
        return {"confirmed": True}

    async with run.client(elicitation_handler=confirm) as client:
        await client.list_tools()
        # Concurrently, so that answers of one call would be noticed in another.
        names = ["test_mrtr_echo_state", "test_mrtr_no_state", "test_mrtr_unrelated", "test_mrtr_no_result_type"]
        await asyncio.gather(*map(client.call_tool, names))
        expect(len(requests) == 2, f"{len(requests)} requests were received")


@scenario("sse-retry")
async def survive_a_broken_stream(run: Run) -> None:
    """Resume a response stream that the server closed early, after the requested delay."""
    async with run.client() as client:
        result = await client.call_tool("test_reconnection")
        expect("success" in result.text, f"the answer is {result.text}")


# Servers that require authentication


async def use_the_tool(client: Client) -> None:
    """Log in on demand, when the server requires it."""
    async with client:
        tools = await client.list_tools()
        expect(bool(tools), "there are no tools")
        await client.call_tool(tools[0].name)


@scenario(
    "auth/metadata-default",
    "auth/metadata-var1",
    "auth/metadata-var2",
    "auth/metadata-var3",
    "auth/scope-from-www-authenticate",
    "auth/scope-from-scopes-supported",
    "auth/scope-omitted-when-undefined",
    "auth/scope-step-up",
    "auth/token-endpoint-auth-basic",
    "auth/token-endpoint-auth-post",
    "auth/token-endpoint-auth-none",
    "auth/offline-access-scope",
    "auth/offline-access-not-supported",
    "auth/authorization-server-migration",
    "auth/iss-supported",
    "auth/iss-not-advertised",
    "auth/2025-03-26-oauth-metadata-backcompat",
    "auth/2025-03-26-oauth-endpoint-fallback",
)
async def log_in(run: Run) -> None:
    """Log in with a browser and dynamic client registration."""
    await use_the_tool(run.logged_in(AuthorizationCode(REDIRECT_URI)))


@scenario("auth/basic-cimd")
async def log_in_with_a_document(run: Run) -> None:
    """Log in with a client ID metadata document."""
    document = "https://conformance-test.local/client-metadata.json"
    await use_the_tool(run.logged_in(AuthorizationCode(REDIRECT_URI, client_metadata_url=document)))


@scenario("auth/pre-registration")
async def log_in_as_a_registered_client(run: Run) -> None:
    client = ClientRegistration(client_id=run.context["client_id"], client_secret=run.context["client_secret"])
    await use_the_tool(run.logged_in(AuthorizationCode(REDIRECT_URI, client=client)))


@scenario("auth/dpop", "auth/dpop-nonce")
async def bind_tokens_to_a_key(run: Run) -> None:
    """Use DPoP tokens. `dpop=None` uses them if the server supports them, True requires them."""
    await use_the_tool(run.logged_in(AuthorizationCode(REDIRECT_URI), dpop=True))


# Programs that authenticate themselves


@scenario("auth/client-credentials-basic")
async def log_in_with_a_secret(run: Run) -> None:
    client = ClientRegistration(client_id=run.context["client_id"], client_secret=run.context["client_secret"])
    await use_the_tool(run.logged_in(ClientCredentials(client)))


@scenario("auth/client-credentials-jwt")
async def log_in_with_a_key(run: Run) -> None:
    key = SigningKey(run.context["private_key_pem"], run.context["signing_algorithm"])
    client = ClientRegistration(client_id=run.context["client_id"], key=key)
    await use_the_tool(run.logged_in(ClientCredentials(client)))


@scenario("auth/enterprise-managed-authorization")
async def log_in_by_way_of_the_enterprise(run: Run) -> None:
    """Log in through the enterprise identity provider, which decides about access."""
    provider = IdentityProvider(
        run.context["idp_issuer"],
        ClientRegistration(client_id=run.context["idp_client_id"], token_endpoint_auth_method="none"),
        run.context["idp_token_endpoint"],
    )
    client = ClientRegistration(client_id=run.context["client_id"], client_secret=run.context["client_secret"])
    await use_the_tool(run.logged_in(EnterpriseManagedAuthorization(provider, client, run.context["idp_id_token"])))


@scenario("auth/wif-jwt-bearer")
async def log_in_as_a_workload(run: Run) -> None:
    """Authenticate with the platform's workload identity."""
    client = ClientRegistration(client_id=run.context["client_id"], token_endpoint_auth_method="none")
    await use_the_tool(run.logged_in(WorkloadIdentity(run.context["valid_jwt"], client)))


# Malicious servers


async def refuse(client: Client, because: type[PorticoError]) -> None:
    try:
        await use_the_tool(client)
    except because as reason:
        print(f"rejected as expected: {reason}", file=sys.stderr)
    else:
        raise NotAsExpected(f"expected the error {because.__name__}")


@scenario("auth/scope-retry-limit")
async def give_up(run: Run) -> None:
    """Stop when a server demands more scopes each time."""
    await refuse(run.logged_in(AuthorizationCode(REDIRECT_URI)), ScopeRejected)


@scenario("auth/resource-mismatch")
async def notice_metadata_of_another_server(run: Run) -> None:
    await refuse(run.logged_in(AuthorizationCode(REDIRECT_URI)), ResourceMismatch)


@scenario("auth/metadata-issuer-mismatch")
async def notice_metadata_of_another_issuer(run: Run) -> None:
    await refuse(run.logged_in(AuthorizationCode(REDIRECT_URI)), IssuerMismatch)


@scenario("auth/iss-supported-missing", "auth/iss-wrong-issuer", "auth/iss-unexpected", "auth/iss-normalized")
async def notice_a_login_somewhere_else(run: Run) -> None:
    await refuse(run.logged_in(AuthorizationCode(REDIRECT_URI)), InvalidRedirect)


# Skills


@scenario("sep-2640-client-no-prefetch")
async def look_at_skills(run: Run) -> None:
    """List skills. No file is fetched until a skill is used."""
    async with run.client() as client:
        skills = await list_skills(client)
        names = [skill.frontmatter["name"] for skill in skills]
        expect(names == ["pdf-processing"], f"the skills are {names}")


@scenario("sep-2640-client-verify-digest", "sep-2640-client-verify-size", "sep-2640-client-verify-frontmatter")
async def notice_a_forged_skill(run: Run) -> None:
    """Reject a skill that differs from the list, and read nothing else of it."""
    async with run.client() as client:
        (skill,) = await list_skills(client)
        try:
            await read_skill(client, skill)
        except SkillVerificationError as reason:
            print(f"rejected as expected: {reason}", file=sys.stderr)
            return
        # Use of a skill that matches the list.
        await read_skill_file(client, skill, "references/FORMS.md")
        raise NotAsExpected("the modified skill was accepted")


def main() -> int:
    name = os.environ.get("MCP_CONFORMANCE_SCENARIO", "tools_call")
    if len(sys.argv) != 2 or name not in SCENARIOS:
        print(f"usage: MCP_CONFORMANCE_SCENARIO=… {sys.argv[0]} URL\nknown: {', '.join(SCENARIOS)}", file=sys.stderr)
        return 2
    revision = os.environ.get("MCP_CONFORMANCE_PROTOCOL_VERSION", LATEST_HANDSHAKE_VERSION)
    context = json.loads(os.environ.get("MCP_CONFORMANCE_CONTEXT", "{}"))
    try:
        asyncio.run(SCENARIOS[name](Run(sys.argv[1], revision, context)))
    except (PorticoError, NotAsExpected) as reason:
        print(f"{name}: {reason}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
