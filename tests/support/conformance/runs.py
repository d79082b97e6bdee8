"""Runs of the conformance suite, and how many checks must pass.

A green line of the suite can mean that nothing was looked at, so every scenario has a number: how many of its checks
must pass at each revision. A leg is held to the scenarios and the sums that follow from the table.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from support.paths import ROOT

EXPECTED = ROOT / "tests" / "conformance" / "expected"

# Checks that must pass, by scenario and revision; `-` where the suite does not run it. The last column is for the
# extensions, which have no protocol version and run at 2026-07-28.
SERVER_CHECKS = """
scenario                                        2025-06-18  2025-11-25  2026-07-28  extension
server-initialize                                        3           3           -          -
server-session-lifecycle                                 3           3           -          -
server-stateless                                         -           -          30          -
logging-set-level                                        2           2           -          -
ping                                                     2           2           -          -
completion-complete                                      2           2           2          -
tools-list                                               2           3           4          -
tools-call-simple-text                                   2           2           2          -
tools-call-image                                         2           2           2          -
tools-call-audio                                         2           2           2          -
tools-call-embedded-resource                             2           2           2          -
tools-call-mixed-content                                 2           2           2          -
tools-call-with-logging                                  2           2           -          -
tools-call-error                                         2           2           2          -
tools-call-with-progress                                 2           2           2          -
tools-call-sampling                                      2           2           -          -
tools-call-elicitation                                   2           2           -          -
json-schema-2020-12                                      -           8           8          -
elicitation-sep1034-defaults                             -           6           -          -
server-sse-polling                                       -           3           -          -
server-sse-multiple-streams                              -           2           1          -
elicitation-sep1330-enums                                -           6           -          -
resources-list                                           2           2           2          -
resources-read-text                                      2           2           2          -
resources-read-binary                                    2           2           2          -
resources-templates-read                                 2           2           2          -
resources-subscribe                                      2           2           -          -
resources-unsubscribe                                    2           2           -          -
sep-2164-resource-not-found                              -           -           4          -
sep-2640-skills-directory                                -           -           -          7
sep-2640-skills-enumeration                              -           -           -         32
sep-2640-skills-manifest                                 -           -           -          6
prompts-list                                             2           2           2          -
prompts-get-simple                                       2           2           2          -
prompts-get-with-args                                    2           2           2          -
prompts-get-embedded-resource                            2           2           2          -
prompts-get-with-image                                   2           2           2          -
dns-rebinding-protection                                 -           2           2          -
caching                                                  -           -           8          -
http-header-validation                                   -           -          14          -
http-custom-header-server-validation                     -           -          10          -
tasks-lifecycle                                          -           -           -          9
tasks-capability-negotiation                             -           -           -          5
tasks-wire-fields                                        -           -           -          4
tasks-request-state-removal                              -           -           -          3
tasks-mrtr-input                                         -           -           -          4
tasks-request-headers                                    -           -           -          5
tasks-dispatch-and-envelope                              -           -           -          9
tasks-status-notifications                               -           -           -          0
tasks-required-task-error                                -           -           -          3
tasks-mrtr-composition                                   -           -           -          2
input-required-result-basic-elicitation                  -           -           3          -
input-required-result-basic-sampling                     -           -           3          -
input-required-result-basic-list-roots                   -           -           3          -
input-required-result-request-state                      -           -           3          -
input-required-result-multiple-input-requests            -           -           3          -
input-required-result-multi-round                        -           -           4          -
input-required-result-missing-input-response             -           -           2          -
input-required-result-non-tool-request                   -           -           3          -
input-required-result-result-type                        -           -           2          -
input-required-result-unsupported-methods                -           -           2          -
input-required-result-tampered-state                     -           -           2          -
input-required-result-capability-check                   -           -           2          -
input-required-result-ignore-extra-params                -           -           2          -
input-required-result-validate-input                     -           -           3          -
"""

# The same for a client.
CLIENT_CHECKS = """
scenario                                        2025-03-26  2025-06-18  2025-11-25  2026-07-28
initialize                                               -           1           1           -
tools_call                                               -           2           2           2
elicitation-sep1034-client-defaults                      -           -           5           -
sse-retry                                                -           -           3           -
request-metadata                                         -           -           -           8
auth/metadata-default                                    -           -          18          18
auth/metadata-var1                                       -           -          18          18
auth/metadata-var2                                       -           -          18          18
auth/metadata-var3                                       -           -          18          18
auth/basic-cimd                                          -           -          13          12
auth/scope-from-www-authenticate                         -           -          14          14
auth/scope-from-scopes-supported                         -           -          14          14
auth/scope-omitted-when-undefined                        -           -          14          14
auth/scope-step-up                                       -           -          22          25
auth/scope-retry-limit                                   -           -          18          19
auth/token-endpoint-auth-basic                           -          19          19          19
auth/token-endpoint-auth-post                            -          19          19          19
auth/token-endpoint-auth-none                            -          19          19          19
auth/pre-registration                                    -           -          13          12
auth/2025-03-26-oauth-metadata-backcompat               12           -           -           -
auth/2025-03-26-oauth-endpoint-fallback                  7           -           -           -
auth/resource-mismatch                                   -           -           -           2
auth/offline-access-scope                                -           -           -          15
auth/offline-access-not-supported                        -           -           -          14
auth/authorization-server-migration                      -           -           -          27
auth/iss-supported                                       -           -           -          14
auth/iss-not-advertised                                  -           -           -          14
auth/iss-supported-missing                               -           -           -           8
auth/iss-wrong-issuer                                    -           -           -           8
auth/iss-unexpected                                      -           -           -           8
auth/iss-normalized                                      -           -           -           8
auth/metadata-issuer-mismatch                            -           -           -           3
sep-2322-client-request-state                            -           -           -           5
http-standard-headers                                    -           -           -           9
http-custom-headers                                      -           -           -          18
http-invalid-tool-headers                                -           -           -          12
json-schema-ref-no-deref                                 -           -           -           1
json-schema-2020-12-preservation                         -           -           9           9
"""

# Extensions have no protocol version, and run at two.
CLIENT_EXTENSION_CHECKS = """
scenario                                        2025-11-25  2026-07-28
auth/client-credentials-jwt                              8           7
auth/client-credentials-basic                            8           7
auth/enterprise-managed-authorization                    9           8
auth/dpop                                               12          13
auth/dpop-nonce                                         14          15
auth/wif-jwt-bearer                                      8           7
sep-2640-client-no-prefetch                              1           1
sep-2640-client-verify-digest                            1           1
sep-2640-client-verify-size                              1           1
sep-2640-client-verify-frontmatter                       1           1
"""

# And for an authorization server: our face in front of a login.
AUTHORIZATION_CHECKS = """
scenario                                        2025-11-25  2026-07-28
authorization-server-metadata-endpoint                   2           2
authorization-code-grant                                 1           1
"""

# Run with a requirement set and reported, but no part of the set: the suite itself does not judge them, we do.
BESIDE_THE_SET = {
    "2025-11-25": {
        "server-session-lifecycle",
        "json-schema-2020-12",
        "server-sse-polling",
        "json-schema-2020-12-preservation",
    },
    "2026-07-28": {
        "json-schema-2020-12",
        "http-header-validation",
        "http-custom-header-server-validation",
        "json-schema-2020-12-preservation",
    },
}

# Checks that the suite skips whatever is done, by the name that they have in their scenario.
ALWAYS_SKIPPED = {
    "tasks-status-notifications": {"TasksStatusNotificationsScenario"},
    # It also requires the handshake, which 2026-07-28 does not have.
    "http-standard-headers": {
        "ClientMcpMethodHeader_initialize",
        "ClientMcpMethodHeader_notifications_initialized",
    },
}


@dataclass(frozen=True)
class Leg:
    """One run of the suite; or, where a client is run by force, one run for each scenario."""

    name: str
    side: str  # what is under test, which is also the suite's command: "server", "client" or "authorization"
    options: tuple[str, ...]
    checks: dict[str, int]  # how many must pass, by scenario
    required: frozenset[str] = frozenset()  # the scenarios of a requirement set
    upstream: str = ""  # through a gateway: the revision that the server behind it is spoken to in

    @property
    def expected_file(self) -> Path:
        return EXPECTED / f"{self.name}.yml"

    @property
    def required_checks(self) -> int:
        return sum(self.checks[scenario] for scenario in self.required)


def expected_failures(path: Path, side: str) -> frozenset[str]:
    """Return the scenarios in a file of expected failures, as the suite reads it.

    Of YAML we read what we write: a key for each side, and below it one whole scenario a line. Anything else is an
    error, for a line that only one of the two readers understands would be excused by one and not by the other.
    """
    results: dict[str, list[str]] = {}
    scenarios: list[str] | None = None
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        text = line.partition("#")[0].rstrip()
        if not text:
            continue
        if text in ("server: []", "client: []", "server:", "client:"):
            key, _, empty = text.partition(":")
            results[key] = []
            scenarios = None if empty else results[key]
        elif text.startswith("  - ") and scenarios is not None and not set(text[4:]) & set(" :'\""):
            scenarios.append(text[4:])
        else:
            raise ValueError(f"{path.name}, line {number}: neither a side nor `  - scenario`: {line!r}")
    return frozenset(results.get(side, ()))


def _table(text: str) -> dict[str, dict[str, int]]:
    """Return the columns: scenario to number."""
    head, *rows = (line.split() for line in text.strip().splitlines())
    return {
        column: {row[0]: int(row[place]) for row in rows if row[place] != "-"}
        for place, column in enumerate(head[1:], 1)
    }


def _server_legs() -> list[Leg]:
    table = _table(SERVER_CHECKS)
    extensions = table["extension"]
    tasks = {scenario: number for scenario, number in extensions.items() if scenario.startswith("tasks-")}

    def required(revision: str, more: dict[str, int]) -> Leg:
        scored = frozenset(table[revision].keys() - BESIDE_THE_SET[revision])
        options = ("--requirements", revision)
        return Leg(f"server-required-{revision}", "server", options, table[revision] | more, scored)

    def everything(revision: str) -> Leg:
        options = ("--suite", "all", "--spec-version", revision)
        return Leg(f"server-all-{revision}", "server", options, table[revision])

    # With no revision named, the suite speaks 2025-11-25 where a scenario has it and 2026-07-28 elsewhere.
    bare = table["2026-07-28"] | table["2025-11-25"] | extensions
    return [
        required("2025-11-25", {}),
        required("2026-07-28", tasks),
        everything("2025-06-18"),
        everything("2025-11-25"),
        everything("2026-07-28"),
        Leg("server-all", "server", ("--suite", "all"), bare),
    ]


def _gateway_legs() -> list[Leg]:
    """Return runs of a client of each generation at a gateway with a server of each generation."""
    table, eras = _table(SERVER_CHECKS), ("2025-11-25", "2026-07-28")
    # A server that hangs up in the middle of a call, to be polled, has a gateway wait for it all the same.
    table["2025-11-25"]["server-sse-polling"] -= 1
    return [
        Leg(
            f"gateway-{revision}-to-{upstream}",
            "server",
            ("--suite", "all", "--spec-version", revision),
            table[revision],
            upstream=upstream,
        )
        for revision in eras
        for upstream in eras
    ]


def _client_legs() -> list[Leg]:
    legs = []
    for revision, checks in _table(CLIENT_CHECKS).items():
        scored = checks.keys() - BESIDE_THE_SET[revision] if revision in BESIDE_THE_SET else ()
        options = ("--suite", "all", "--spec-version", revision)
        legs.append(Leg(f"client-{revision}", "client", options, checks, frozenset(scored)))
    for revision, checks in _table(CLIENT_EXTENSION_CHECKS).items():
        # What is of no revision is run at one by force only, and alone.
        options = ("--spec-version", revision, "--force")
        legs.append(Leg(f"client-extensions-{revision}", "client", options, checks))
    return legs


def _authorization_legs() -> list[Leg]:
    return [
        Leg(f"authorization-{revision}", "authorization", ("--spec-version", revision), checks)
        for revision, checks in _table(AUTHORIZATION_CHECKS).items()
    ]


SERVER_LEGS = _server_legs()
GATEWAY_LEGS = _gateway_legs()
CLIENT_LEGS = _client_legs()
AUTHORIZATION_LEGS = _authorization_legs()
LEGS = {leg.name: leg for leg in (*SERVER_LEGS, *GATEWAY_LEGS, *AUTHORIZATION_LEGS, *CLIENT_LEGS)}
