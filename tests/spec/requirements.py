"""Requirements of the specification with a test each. A row has the protocol versions it applies to, its section in the
newest of these, and a paraphrase.

A test names its rows: `@pytest.mark.requirement("tools.unknown-name")`. `test_requirements.py` checks that every row
has a test, and that every test in this folder has a row.
"""

from __future__ import annotations

from typing import NamedTuple


class Requirement(NamedTuple):
    """`page` is a page of the specification of the revision `until`, and `section` a heading there."""

    since: str
    until: str
    page: str
    section: str
    sentence: str


# fmt: off
REQUIREMENTS = {
    # Messages
    "jsonrpc.id-type": Requirement(
        "2024-11-05", "2026-07-28", "basic/index", "Requests",
        "A request has an id that is a string or an integer; null, booleans, fractions and structures are refused."
    ),
    "jsonrpc.id-distinct-types": Requirement(
        "2024-11-05", "2026-07-28", "basic/index", "Responses",
        'A response bears the id of its request in the same JSON type: 1 and "1" are two requests.'
    ),
    "jsonrpc.id-not-reused": Requirement(
        "2024-11-05", "2026-07-28", "basic/index", "Requests",
        "An id that is still in flight is not accepted for a second request."
    ),
    "jsonrpc.unreadable-id-null": Requirement(
        "2024-11-05", "2025-06-18", "basic/index", "Responses",
        "Up to 2025-06-18 an error must have an id, so one that could not be read is written as null."
    ),
    "jsonrpc.unreadable-id-absent": Requirement(
        "2025-11-25", "2026-07-28", "basic/index", "Error Responses",
        "From 2025-11-25 on an error whose request had no readable id leaves the id out."
    ),
    "jsonrpc.error-without-id-accepted": Requirement(
        "2024-11-05", "2026-07-28", "basic/index", "Error Responses",
        "An error without an id, or with null, is taken from a peer in silence."
    ),
    "jsonrpc.parse-error": Requirement(
        "2024-11-05", "2026-07-28", "basic/index", "Error Responses",
        "What is not JSON is answered with -32700."
    ),
    "jsonrpc.unknown-method": Requirement(
        "2024-11-05", "2026-07-28", "basic/index", "Error Responses",
        "A method that does not exist is answered with -32601, which names it, and the conversation goes on."
    ),
    "jsonrpc.notification-unanswered": Requirement(
        "2024-11-05", "2026-07-28", "basic/index", "Notifications",
        "A notification is never answered, known or unknown, well formed or not."
    ),
    "jsonrpc.unknown-notification": Requirement(
        "2024-11-05", "2026-07-28", "basic/index", "Notifications",
        "A notification that a client does not know breaks nothing and can be heard."
    ),
    "jsonrpc.error-codes": Requirement(
        "2026-07-28", "2026-07-28", "basic/index", "Error Codes",
        "The codes of the protocol are -32020 to -32022; the numbers of the drafts are never sent and mean "
        "nothing."
    ),
    "jsonrpc.null-is-not-absence": Requirement(
        "2024-11-05", "2026-07-28", "basic/index", "Messages",
        "An optional member without a value is left out and never written as null."
    ),
    "jsonrpc.notification-id": Requirement(
        "2024-11-05", "2026-07-28", "basic/index", "Notifications",
        "A notification has no id: one that has is an unknown request."
    ),
    "jsonrpc.one-answer": Requirement(
        "2024-11-05", "2026-07-28", "basic/index", "Responses",
        "A response has one result or one error, and one that has neither or both is not taken."
    ),
    "jsonrpc.error-shape": Requirement(
        "2024-11-05", "2026-07-28", "basic/index", "Error Responses",
        "An error has a whole number for a code, and a message."
    ),
    "jsonrpc.late-response": Requirement(
        "2024-11-05", "2026-07-28", "basic/patterns/cancellation", "Behavior Requirements",
        "An answer that nobody waits for any more is ignored."
    ),
    "jsonrpc.utf-8": Requirement(
        "2025-03-26", "2026-07-28", "basic/transports/index", "Messages",
        "A message is UTF-8, and bytes that are not are a parse error."
    ),
    "jsonrpc.own-ids": Requirement(
        "2024-11-05", "2026-07-28", "basic/index", "Requests",
        "Each request of a client has an id that it has not used before."
    ),
    "jsonrpc.undefined-codes": Requirement(
        "2026-07-28", "2026-07-28", "basic/index", "Error Codes",
        "No code of the specification's range is sent that it does not define."
    ),
    "schema.frames": Requirement(
        "2024-11-05", "2026-07-28", "basic/index", "Schema",
        "Every frame that either side sends is valid against the schema of the revision, and has no member that it "
        "does not know."
    ),
    "schema.members-by-revision": Requirement(
        "2024-11-05", "2025-11-25", "basic/index", "Schema",
        "A component is listed with the members that the revision of the reader knows."
    ),
    "schemas.dialect": Requirement(
        "2025-11-25", "2026-07-28", "basic/index", "JSON Schema Usage",
        "A schema is checked by the dialect it names, else by 2020-12; one that cannot be used is refused."
    ),
    "schemas.bounded": Requirement(
        "2026-07-28", "2026-07-28", "basic/index", "Composition-Keyword Resource Use",
        "A schema that costs too much does no harm."
    ),
    "batch.received": Requirement(
        "2025-03-26", "2025-03-26", "basic/index", "Batching",
        "A server takes an array of messages and answers its requests with an array."
    ),
    "batch.members": Requirement(
        "2025-03-26", "2025-03-26", "basic/index", "Batching",
        "Each member of a batch stands alone: an invalid one has its own error, an empty array is one error."
    ),
    "batch.notifications-only": Requirement(
        "2025-03-26", "2025-03-26", "basic/transports", "Sending Messages to the Server",
        "A batch without requests has no answer; over HTTP it is 202 without a body."
    ),
    "batch.responses": Requirement(
        "2025-03-26", "2025-03-26", "basic/transports", "Sending Messages to the Server",
        "A client may send the answers to several questions as one array."
    ),
    "batch.no-initialize": Requirement(
        "2025-03-26", "2025-03-26", "basic/lifecycle", "Initialization",
        "`initialize` is never part of a batch."
    ),
    "batch.only-2025-03-26": Requirement(
        "2025-06-18", "2026-07-28", "basic/index", "Messages",
        "Other revisions have no batches: an array is an invalid request."
    ),
    # The handshake
    "lifecycle.order": Requirement(
        "2024-11-05", "2025-11-25", "basic/lifecycle", "Initialization",
        "Before `initialize` nothing but a ping is answered."
    ),
    "lifecycle.initialized": Requirement(
        "2025-03-26", "2025-11-25", "basic/lifecycle", "Initialization",
        "Between `initialize` and `notifications/initialized` only pings are answered, unless an operator is "
        "lenient."
    ),
    "lifecycle.early-list": Requirement(
        "2024-11-05", "2024-11-05", "basic/lifecycle", "Initialization",
        "Clients of 2024-11-05 may ask before they say `initialized`: many never say it."
    ),
    "lifecycle.server-silent": Requirement(
        "2024-11-05", "2025-11-25", "basic/lifecycle", "Initialization",
        "Before `initialized` a server sends nothing but pings and log messages."
    ),
    "lifecycle.once": Requirement(
        "2024-11-05", "2025-11-25", "basic/lifecycle", "Initialization",
        "A second `initialize` on a stream is refused and changes nothing."
    ),
    "lifecycle.version-echo": Requirement(
        "2024-11-05", "2025-11-25", "basic/lifecycle", "Version Negotiation",
        "A requested revision that the server speaks is agreed to."
    ),
    "lifecycle.version-counter": Requirement(
        "2024-11-05", "2025-11-25", "basic/lifecycle", "Version Negotiation",
        "Any other revision is countered with the newest that has a handshake, 2026-07-28 among the others."
    ),
    "lifecycle.server-info": Requirement(
        "2024-11-05", "2025-11-25", "basic/lifecycle", "Initialization",
        "The answer to `initialize` has the agreed revision, the capabilities and the server's name and version."
    ),
    "lifecycle.client-info": Requirement(
        "2024-11-05", "2025-11-25", "basic/lifecycle", "Initialization",
        "A client must say who it is; capabilities and revision may be missing from early clients."
    ),
    "lifecycle.negotiated-capabilities": Requirement(
        "2024-11-05", "2025-11-25", "basic/lifecycle", "Operation",
        "Neither side uses what the other has not declared."
    ),
    "lifecycle.negotiated-version": Requirement(
        "2024-11-05", "2025-11-25", "basic/lifecycle", "Operation",
        "Methods of later revisions do not exist in a session."
    ),
    "lifecycle.initialize-not-cancelled": Requirement(
        "2024-11-05", "2025-11-25", "basic/utilities/cancellation", "Behavior Requirements",
        "`initialize` cannot be cancelled."
    ),
    "lifecycle.shutdown": Requirement(
        "2024-11-05", "2025-11-25", "basic/lifecycle", "Shutdown",
        "The end of a session is the end of what it runs and listens to."
    ),
    "lifecycle.client-opens": Requirement(
        "2024-11-05", "2025-11-25", "basic/lifecycle", "Initialization",
        "A client begins with `initialize`: its revision, its capabilities and its name; then it says "
        "`initialized`."
    ),
    "lifecycle.client-newest": Requirement(
        "2024-11-05", "2025-11-25", "basic/lifecycle", "Version Negotiation",
        "A client proposes the newest revision that has a handshake, and takes an older one that it knows."
    ),
    "lifecycle.client-refuses": Requirement(
        "2024-11-05", "2025-11-25", "basic/lifecycle", "Version Negotiation",
        "A client does not go on with a server that settles on what it does not know."
    ),
    "lifecycle.client-not-cancelled": Requirement(
        "2024-11-05", "2025-11-25", "basic/utilities/cancellation", "Behavior Requirements",
        "A client that gives up on `initialize` does not cancel it."
    ),
    "lifecycle.client-shutdown": Requirement(
        "2024-11-05", "2026-07-28", "basic/transports/stdio", "Shutdown",
        "A client that leaves closes the input of its server, waits, and only then ends it."
    ),
    "lifecycle.declared": Requirement(
        "2024-11-05", "2025-11-25", "basic/lifecycle", "Capability Negotiation",
        "A capability that is not declared is a method that is not there."
    ),
    "lifecycle.question-waits": Requirement(
        "2025-03-26", "2025-11-25", "basic/lifecycle", "Initialization",
        "Over HTTP too a question waits until the client has said `initialized`."
    ),
    "lifecycle.client-declared-only": Requirement(
        "2025-06-18", "2025-11-25", "basic/lifecycle", "Operation",
        "A client asks for nothing that the server has not declared."
    ),
    "ping.empty": Requirement(
        "2024-11-05", "2025-11-25", "basic/utilities/ping", "Behavior Requirements",
        "A ping is answered at once, with an empty result, in every state."
    ),
    "ping.client": Requirement(
        "2024-11-05", "2025-11-25", "basic/utilities/ping", "Behavior Requirements",
        "A client answers a ping as well, also before the handshake is over."
    ),
    # One request alone
    "modern.envelope-required": Requirement(
        "2026-07-28", "2026-07-28", "basic/index", "`_meta`",
        "A request names its revision and the client's capabilities in `_meta`; one that does not is invalid."
    ),
    "modern.era-before-method": Requirement(
        "2026-07-28", "2026-07-28", "basic/versioning", "Backward Compatibility with Initialization-Based Versions",
        "The envelope decides the era before the method is looked at: removed methods do not exist in it."
    ),
    "modern.no-handshake": Requirement(
        "2026-07-28", "2026-07-28", "basic/index", "Statelessness",
        "A request is served without any handshake."
    ),
    "modern.no-memory": Requirement(
        "2026-07-28", "2026-07-28", "basic/index", "Statelessness",
        "Nothing is inferred from an earlier request or from a session on the same stream."
    ),
    "modern.envelope-is-no-handshake": Requirement(
        "2026-07-28", "2026-07-28", "basic/versioning", "Backward Compatibility with Initialization-Based Versions",
        "A request with an envelope opens no session."
    ),
    "modern.both-eras": Requirement(
        "2026-07-28", "2026-07-28", "basic/versioning", "Backward Compatibility with Initialization-Based Versions",
        "One stream or endpoint serves both eras at once."
    ),
    "modern.failed-probe": Requirement(
        "2026-07-28", "2026-07-28", "basic/transports/stdio", "Backward Compatibility",
        "A probe that fails leaves the stream open for a handshake."
    ),
    "modern.unsupported-version": Requirement(
        "2026-07-28", "2026-07-28", "basic/versioning", "Protocol Version Negotiation",
        "A revision that is not supported is -32022 with what was asked for and the same list that "
        "`server/discover` has."
    ),
    "modern.client-info-optional": Requirement(
        "2026-07-28", "2026-07-28", "basic/index", "`_meta`",
        "`clientInfo` may be missing; malformed it is refused."
    ),
    "modern.client-info-decides-nothing": Requirement(
        "2026-07-28", "2026-07-28", "basic/index", "`_meta`",
        "The client's name and version change nothing about an answer."
    ),
    "modern.server-info": Requirement(
        "2026-07-28", "2026-07-28", "basic/index", "`_meta`",
        "Every result has the server's name and version in `_meta`, failures and questions included."
    ),
    "modern.result-type": Requirement(
        "2026-07-28", "2026-07-28", "basic/index", "Result Responses",
        "Every result says what kind of result it is."
    ),
    "modern.result-type-missing": Requirement(
        "2026-07-28", "2026-07-28", "basic/index", "Result Responses",
        "A missing result type counts as complete."
    ),
    "modern.result-type-unknown": Requirement(
        "2026-07-28", "2026-07-28", "basic/index", "Result Responses",
        "A client does not read an unknown kind of result as an answer."
    ),
    "modern.nothing-for-older-clients": Requirement(
        "2024-11-05", "2025-11-25", "basic/index", "Responses",
        "Results for older clients have neither a result type, nor cache hints, nor the server's name."
    ),
    "modern.no-server-requests": Requirement(
        "2026-07-28", "2026-07-28", "basic/patterns/index", "Request and Response",
        "A server never sends a request."
    ),
    "modern.missing-capability": Requirement(
        "2026-07-28", "2026-07-28", "basic/index", "Error Codes",
        "What needs a capability that the request did not declare is -32021 with the capabilities it needs."
    ),
    "modern.missing-400": Requirement(
        "2026-07-28", "2026-07-28", "basic/index", "`_meta`",
        "Over HTTP a request without what it has to bring is 400."
    ),
    "modern.client-info-sent": Requirement(
        "2026-07-28", "2026-07-28", "basic/index", "`_meta`",
        "A client brings its revision, its capabilities and its name with every request."
    ),
    "modern.other-process": Requirement(
        "2026-07-28", "2026-07-28", "basic/index", "Statelessness",
        "What was begun on one connection may go on with another process."
    ),
    "modern.no-client-responses": Requirement(
        "2026-07-28", "2026-07-28", "basic/transports/stdio", "Sending Messages",
        "A client sends no responses: a question in this revision is not answered."
    ),
    "modern.extension-fallback": Requirement(
        "2026-07-28", "2026-07-28", "basic/versioning", "Extension Negotiation",
        "Where the other side lacks an extension there is the core, or a refusal."
    ),
    "discover.result": Requirement(
        "2026-07-28", "2026-07-28", "server/discover", "Response",
        "`server/discover` lists revisions, capabilities and instructions; the server's name stands in `_meta`."
    ),
    "discover.era": Requirement(
        "2026-07-28", "2026-07-28", "basic/versioning", "Backward Compatibility with Initialization-Based Versions",
        "A client finds out the era by asking, whatever an older server answers, and asks it once."
    ),
    "discover.era-changes": Requirement(
        "2026-07-28", "2026-07-28", "basic/versioning", "Backward Compatibility with Initialization-Based Versions",
        "A server that contradicts what is remembered of it is asked again."
    ),
    "discover.not-evidence": Requirement(
        "2026-07-28", "2026-07-28", "basic/versioning", "Backward Compatibility with Initialization-Based Versions",
        "Slowness and absence say nothing about the era."
    ),
    "discover.pinned": Requirement(
        "2026-07-28", "2026-07-28", "basic/versioning", "Protocol Version Negotiation",
        "A client that shares no revision with a server says so."
    ),
    "discover.not-one-code": Requirement(
        "2026-07-28", "2026-07-28", "basic/transports/stdio", "Backward Compatibility",
        "No single error decides that a server is an older one, and an error of this revision decides that it "
        "is not."
    ),
    # Questions in the middle of a request
    "mrtr.retry-is-new": Requirement(
        "2026-07-28", "2026-07-28", "basic/patterns/mrtr", "Client Requirements (Basic Workflow)",
        "A retry has an id of its own and the method and params of the first request."
    ),
    "mrtr.answers-of-one-round": Requirement(
        "2026-07-28", "2026-07-28", "basic/patterns/mrtr", "Client Requirements (Basic Workflow)",
        "A retry has the answers to the questions of its round and no earlier ones."
    ),
    "mrtr.state-echoed": Requirement(
        "2026-07-28", "2026-07-28", "basic/patterns/mrtr", "Client Requirements (Basic Workflow)",
        "The state goes back exactly as it came, and only when there was one."
    ),
    "mrtr.state-continues": Requirement(
        "2026-07-28", "2026-07-28", "basic/patterns/mrtr", "Server Requirements (Basic Workflow)",
        "With its state and the answers a call goes on where it stopped."
    ),
    "mrtr.state-integrity": Requirement(
        "2026-07-28", "2026-07-28", "basic/patterns/mrtr", "Security Considerations",
        "A state that was changed is refused."
    ),
    "mrtr.state-bound-to-request": Requirement(
        "2026-07-28", "2026-07-28", "basic/patterns/mrtr", "Security Considerations",
        "A state is good for the tool and the arguments it was made for."
    ),
    "mrtr.state-bound-to-principal": Requirement(
        "2026-07-28", "2026-07-28", "basic/patterns/mrtr", "Security Considerations",
        "A state is good for the principal it was given to."
    ),
    "mrtr.state-expires": Requirement(
        "2026-07-28", "2026-07-28", "basic/patterns/mrtr", "Security Considerations",
        "A state has an end, and past it the advice is to begin again."
    ),
    "mrtr.declared-only": Requirement(
        "2026-07-28", "2026-07-28", "basic/patterns/mrtr", "Server Requirements (Basic Workflow)",
        "Only what the client declared is asked, down to the modes of elicitation and the tools of sampling."
    ),
    "mrtr.supported-requests": Requirement(
        "2026-07-28", "2026-07-28", "basic/patterns/mrtr", "Supported Requests",
        "Lists, completions and discovery are never answered with questions."
    ),
    "mrtr.over-http": Requirement(
        "2026-07-28", "2026-07-28", "basic/patterns/mrtr", "InputRequiredResult",
        "Over HTTP a question is the result of the request."
    ),
    "mrtr.kinds": Requirement(
        "2026-07-28", "2026-07-28", "basic/patterns/mrtr", "Server Requirements (Basic Workflow)",
        "What is asked is a form, a page, a sample or the roots, each under a key of its own."
    ),
    "mrtr.missing-again": Requirement(
        "2026-07-28", "2026-07-28", "basic/patterns/mrtr", "Error Handling",
        "What was not answered is asked again, and what was is kept."
    ),
    "mrtr.unknown-ignored": Requirement(
        "2026-07-28", "2026-07-28", "basic/patterns/mrtr", "Error Handling",
        "Answers to what was not asked are ignored."
    ),
    "mrtr.sealed": Requirement(
        "2026-07-28", "2026-07-28", "basic/patterns/mrtr", "Server Requirements (Basic Workflow)",
        "An answer in a state cannot be replaced by another."
    ),
    "mrtr.malformed": Requirement(
        "2026-07-28", "2026-07-28", "basic/patterns/mrtr", "Error Handling",
        "An answer of the wrong shape is an error of the protocol."
    ),
    "mrtr.handlers": Requirement(
        "2025-03-26", "2026-07-28", "client/elicitation", "Capabilities",
        "A handler's questions need what the client declared, as a server's do."
    ),
    "mrtr.client-once": Requirement(
        "2026-07-28", "2026-07-28", "basic/patterns/mrtr", "Client Requirements (Basic Workflow)",
        "A resource that asks is asked for once in each round, with its state."
    ),
    "questions.on-the-stream": Requirement(
        "2025-03-26", "2025-11-25", "basic/transports", "Sending Messages to the Server",
        "In a session a question travels on the stream of its call, and the answer is a POST."
    ),
    "questions.refused": Requirement(
        "2025-06-18", "2025-11-25", "client/elicitation", "Error Handling",
        "A client that answers with an error fails the tool and nothing else."
    ),
    "elicitation.since": Requirement(
        "2025-06-18", "2026-07-28", "client/elicitation", "Capabilities",
        "Before 2025-06-18 a client is never elicited, whatever it declares."
    ),
    "elicitation.flat": Requirement(
        "2025-06-18", "2026-07-28", "client/elicitation", "Requested Schema",
        "A form is a flat object of plain fields; another is not sent."
    ),
    "elicitation.titles": Requirement(
        "2025-06-18", "2026-07-28", "client/elicitation", "Requested Schema",
        "Choices with titles are said as the revision has them."
    ),
    "elicitation.url": Requirement(
        "2025-11-25", "2026-07-28", "client/elicitation", "URL Mode Elicitation Requests",
        "A page has an absolute address with a host, and no form."
    ),
    "elicitation.url-id": Requirement(
        "2025-11-25", "2025-11-25", "client/elicitation", "URL Mode Elicitation Requests",
        "In 2025-11-25 the question for a page has an id."
    ),
    "elicitation.modes": Requirement(
        "2025-11-25", "2026-07-28", "client/elicitation", "Capabilities",
        "A mode that the client does not have is not asked for."
    ),
    "elicitation.answers-fit": Requirement(
        "2025-06-18", "2026-07-28", "client/elicitation", "Form Mode Security",
        "A server takes an answer that fits its form, and no other."
    ),
    "elicitation.declined": Requirement(
        "2025-06-18", "2026-07-28", "client/elicitation", "Error Handling",
        "Who is asked may decline and may leave, and the body learns which."
    ),
    "elicitation.defaults": Requirement(
        "2025-11-25", "2026-07-28", "client/elicitation", "Requested Schema",
        "A form comes with its defaults filled in."
    ),
    "elicitation.not-invited": Requirement(
        "2024-11-05", "2025-11-25", "client/elicitation", "Error Handling",
        "A client refuses a question that it has no handler for."
    ),
    "elicitation.consent": Requirement(
        "2025-11-25", "2026-07-28", "client/elicitation", "Safe URL Handling",
        "A page is shown in full, with its host, and opened by nobody who has not agreed."
    ),
    "elicitation.decline-any-time": Requirement(
        "2025-06-18", "2026-07-28", "client/elicitation", "Security Considerations",
        "A person can decline a form, and leave it, at any time."
    ),
    "elicitation.client-rules": Requirement(
        "2025-06-18", "2026-07-28", "client/elicitation", "Error Handling",
        "A question that breaks the rules of its mode reaches nobody, and is refused."
    ),
    "elicitation.client-fits": Requirement(
        "2025-06-18", "2026-07-28", "client/elicitation", "Form Mode Security",
        "An answer that does not fit its form is not sent."
    ),
    "elicitation.client-page": Requirement(
        "2025-11-25", "2026-07-28", "client/elicitation", "Safe URL Handling",
        "The fields of a form do not agree to a page, and what is no page is not shown."
    ),
    "elicitation.client-modes": Requirement(
        "2025-11-25", "2026-07-28", "client/elicitation", "Capabilities",
        "A client declares the modes it was told to, and tools for sampling only then."
    ),
    "sampling.stop-reason-open": Requirement(
        "2024-11-05", "2026-07-28", "client/sampling", "Creating Messages",
        "The reason why a model stopped may be any text."
    ),
    "sampling.messages-by-revision": Requirement(
        "2024-11-05", "2025-11-25", "client/sampling", "Creating Messages",
        "A question to the model has what its revision knows: tools and several blocks since 2025-11-25."
    ),
    "sampling.tools-declared": Requirement(
        "2025-11-25", "2026-07-28", "client/sampling", "Tools in Sampling",
        "Tools are for clients that declared that they take them."
    ),
    "sampling.balance": Requirement(
        "2025-11-25", "2026-07-28", "client/sampling", "Tool Use and Result Balance",
        "Every use of a tool has its result in the next message, which has nothing else."
    ),
    "roots.declared": Requirement(
        "2024-11-05", "2026-07-28", "client/roots", "Capabilities",
        "A client declares roots, sampling and elicitation when it has them, and not otherwise."
    ),
    "roots.file": Requirement(
        "2024-11-05", "2026-07-28", "client/roots", "Root",
        "A root is a `file://` address; a server leaves others out."
    ),
    "roots.client-file": Requirement(
        "2024-11-05", "2026-07-28", "client/roots", "Root",
        "A client gives folders as `file://` addresses, and nothing else as roots."
    ),
    # Patterns
    "cancellation.no-response": Requirement(
        "2024-11-05", "2025-11-25", "basic/utilities/cancellation", "Behavior Requirements",
        "A cancelled request is stopped and not answered."
    ),
    "cancellation.unknown": Requirement(
        "2024-11-05", "2025-11-25", "basic/utilities/cancellation", "Error Handling",
        "Cancelling what is unknown, finished or malformed does nothing."
    ),
    "cancellation.id-type": Requirement(
        "2024-11-05", "2025-11-25", "basic/utilities/cancellation", "Behavior Requirements",
        "The text of a number does not cancel the request with that number."
    ),
    "cancellation.own-session": Requirement(
        "2025-03-26", "2025-11-25", "basic/utilities/cancellation", "Behavior Requirements",
        "A session cancels its own requests and no others."
    ),
    "cancellation.batch": Requirement(
        "2025-03-26", "2025-03-26", "basic/utilities/cancellation", "Behavior Requirements",
        "A cancelled member is left out of the answer to a batch."
    ),
    "cancellation.http-disconnect": Requirement(
        "2026-07-28", "2026-07-28", "basic/patterns/cancellation", "Transport-Specific Cancellation",
        "Over HTTP a closed connection cancels its request and no other."
    ),
    "cancellation.http-client": Requirement(
        "2026-07-28", "2026-07-28", "basic/patterns/cancellation", "Transport-Specific Cancellation",
        "A client cancels by closing the stream of the request."
    ),
    "cancellation.session-client": Requirement(
        "2025-03-26", "2025-11-25", "basic/transports", "Sending Messages to the Server",
        "In a session a client that stops waiting says so: a closed stream says nothing."
    ),
    "cancellation.silence": Requirement(
        "2024-11-05", "2026-07-28", "basic/transports/stdio", "Cancellation",
        "After its answer or its cancellation nothing is said of a request any more."
    ),
    "cancellation.client-tells": Requirement(
        "2024-11-05", "2026-07-28", "basic/patterns/cancellation", "Transport-Specific Cancellation",
        "A client that stops waiting on a stream says so."
    ),
    "cancellation.server-only-listen": Requirement(
        "2026-07-28", "2026-07-28", "basic/patterns/cancellation", "Behavior Requirements",
        "A server cancels nothing but subscriptions."
    ),
    "cancellation.timeout": Requirement(
        "2025-03-26", "2026-07-28", "basic/patterns/cancellation", "Timeouts",
        "A request has a time, which can be chosen for each, and is taken back when it is over."
    ),
    "cancellation.question-time": Requirement(
        "2025-03-26", "2025-11-25", "basic/lifecycle", "Timeouts",
        "A question to a client has a time as well."
    ),
    "cancellation.no-extension": Requirement(
        "2025-03-26", "2026-07-28", "basic/patterns/cancellation", "Timeouts",
        "No sign of life lengthens the time of a call without end."
    ),
    "progress.increases": Requirement(
        "2024-11-05", "2026-07-28", "basic/patterns/progress", "Behavior Requirements",
        "Progress grows with each notification, also when a body runs again with its answers."
    ),
    "progress.own-stream": Requirement(
        "2025-03-26", "2026-07-28", "basic/patterns/progress", "Behavior Requirements",
        "Progress is told to the request whose token it has, and nowhere else."
    ),
    "progress.only-with-token": Requirement(
        "2024-11-05", "2026-07-28", "basic/patterns/progress", "Progress Flow",
        "Without a token there is no progress."
    ),
    "progress.message-since": Requirement(
        "2025-03-26", "2026-07-28", "basic/patterns/progress", "Progress Flow",
        "A message beside the numbers exists since 2025-03-26."
    ),
    "progress.token": Requirement(
        "2024-11-05", "2026-07-28", "basic/patterns/progress", "Progress Flow",
        "A token is a text or a whole number, and comes back as it was."
    ),
    "progress.token-unique": Requirement(
        "2024-11-05", "2026-07-28", "basic/patterns/progress", "Progress Flow",
        "Calls of a client at the same time have tokens of their own."
    ),
    "progress.active-only": Requirement(
        "2024-11-05", "2026-07-28", "basic/patterns/progress", "Behavior Requirements",
        "Progress for a token that no call has is ignored."
    ),
    "progress.stops": Requirement(
        "2024-11-05", "2026-07-28", "basic/patterns/progress", "Implementation Notes",
        "Progress stops with the answer."
    ),
    "progress.number": Requirement(
        "2024-11-05", "2026-07-28", "basic/patterns/progress", "Progress Flow",
        "Progress is a finite number, and so is its total."
    ),
    "progress.flooding": Requirement(
        "2024-11-05", "2026-07-28", "basic/patterns/progress", "Implementation Notes",
        "Neither side is flooded: what can be missed is dropped."
    ),
    "progress.token-in-use": Requirement(
        "2024-11-05", "2026-07-28", "basic/patterns/progress", "Progress Flow",
        "A token that an active request of the stream has is not accepted for a second."
    ),
    "progress.client-late": Requirement(
        "2024-11-05", "2026-07-28", "basic/patterns/progress", "Implementation Notes",
        "Progress after the answer reaches nobody."
    ),
    "subscriptions.listen-only": Requirement(
        "2026-07-28", "2026-07-28", "basic/patterns/subscriptions", "Receiving Notifications",
        "Changes are told to those who listen, and to no one for having made requests."
    ),
    "subscriptions.acknowledged-first": Requirement(
        "2026-07-28", "2026-07-28", "basic/patterns/subscriptions", "Acknowledgment",
        "The acknowledgement is the first message of a listen stream."
    ),
    "subscriptions.acknowledged-subset": Requirement(
        "2026-07-28", "2026-07-28", "basic/patterns/subscriptions", "Acknowledgment",
        "The acknowledgement has the part of the filter that the server honours."
    ),
    "subscriptions.id": Requirement(
        "2026-07-28", "2026-07-28", "basic/patterns/subscriptions", "Receiving Notifications",
        "Each notification bears the id of its listen request in the same JSON type."
    ),
    "subscriptions.filter": Requirement(
        "2026-07-28", "2026-07-28", "basic/patterns/subscriptions", "Notification Filter",
        "What was not asked for is not told."
    ),
    "subscriptions.filter-open": Requirement(
        "2026-07-28", "2026-07-28", "basic/patterns/subscriptions", "Notification Filter",
        "Kinds of notification that do not exist yet may be asked for; the filter has the names of the revision."
    ),
    "subscriptions.all-connections": Requirement(
        "2026-07-28", "2026-07-28", "basic/patterns/subscriptions", "Multiple Concurrent Subscriptions",
        "A change made on one connection reaches the listeners on all."
    ),
    "subscriptions.graceful-end": Requirement(
        "2026-07-28", "2026-07-28", "basic/patterns/subscriptions", "Graceful Closure",
        "A server that ends a listen stream sends its result."
    ),
    "subscriptions.client-end": Requirement(
        "2026-07-28", "2026-07-28", "basic/patterns/subscriptions", "Cancellation",
        "A listener that closes its stream is forgotten."
    ),
    "subscriptions.correlated": Requirement(
        "2026-07-28", "2026-07-28", "basic/patterns/subscriptions", "Receiving Notifications",
        "A client takes each notification for the listener whose id it bears."
    ),
    "subscriptions.client-looks": Requirement(
        "2026-07-28", "2026-07-28", "basic/patterns/subscriptions", "Acknowledgment",
        "A client can see what of its filter was honoured."
    ),
    "subscriptions.renewed": Requirement(
        "2026-07-28", "2026-07-28", "basic/patterns/subscriptions", "Graceful Closure",
        "When a connection is made anew a client listens anew."
    ),
    "subscriptions.cancelled": Requirement(
        "2026-07-28", "2026-07-28", "basic/patterns/cancellation", "Behavior Requirements",
        "A client whose subscription the server cancels listens again, and takes its time."
    ),
    # Caching
    "caching.hints": Requirement(
        "2026-07-28", "2026-07-28", "server/utilities/caching", "Cacheable Results",
        "Lists, reads and discovery have a time to live and a scope; other results have neither."
    ),
    "caching.fresh": Requirement(
        "2026-07-28", "2026-07-28", "server/utilities/caching", "Freshness Calculation",
        "What is fresh is not asked for again, and what is stale is."
    ),
    "caching.no-questions": Requirement(
        "2026-07-28", "2026-07-28", "server/utilities/caching", "Cacheable Results",
        "An answer that questions led to is never kept."
    ),
    "caching.notices": Requirement(
        "2026-07-28", "2026-07-28", "server/utilities/caching", "Interaction with Notifications",
        "A notification makes stale what it is about."
    ),
    "caching.private": Requirement(
        "2026-07-28", "2026-07-28", "server/utilities/caching", "Cache Scope Field",
        "A private answer belongs to the login that asked for it."
    ),
    "caching.pages": Requirement(
        "2026-07-28", "2026-07-28", "server/utilities/caching", "Interaction with Pagination",
        "Each page of a list is kept by itself, and all have the same hints."
    ),
    "caching.older": Requirement(
        "2024-11-05", "2025-11-25", "server/utilities/pagination", "Response Format",
        "Before 2026-07-28 there are no hints, and nothing is kept."
    ),
    "caching.key": Requirement(
        "2026-07-28", "2026-07-28", "server/utilities/caching", "Cache Key",
        "What was kept for one request is not given for another."
    ),
    "caching.expires": Requirement(
        "2026-07-28", "2026-07-28", "server/utilities/caching", "Freshness Calculation",
        "When its time is over an answer is asked for anew, and not before somebody wants it."
    ),
    "caching.hints-valid": Requirement(
        "2026-07-28", "2026-07-28", "server/utilities/caching", "Time-to-Live (TTL) Field",
        "A time to live is not negative, and a scope is one of the two."
    ),
    "caching.after-questions": Requirement(
        "2026-07-28", "2026-07-28", "server/utilities/caching", "Cache Key",
        "What was read after a question is marked as not to be kept."
    ),
    "caching.cursor-dead": Requirement(
        "2026-07-28", "2026-07-28", "server/utilities/caching", "Interaction with Pagination",
        "A kept page whose cursor has died is forgotten, and the list is fetched from its beginning."
    ),
    # Tools
    "tools.closed-schema": Requirement(
        "2024-11-05", "2026-07-28", "server/tools", "Tool",
        "Arguments are described by a JSON Schema object, which allows no others."
    ),
    "tools.result": Requirement(
        "2024-11-05", "2026-07-28", "server/tools", "Tool Result",
        "A tool's answer is a list of content blocks that says whether it failed."
    ),
    "tools.failure": Requirement(
        "2024-11-05", "2026-07-28", "server/tools", "Error Handling",
        "A tool that fails gives a result with `isError` and a text for the model."
    ),
    "tools.unknown-name": Requirement(
        "2024-11-05", "2026-07-28", "server/tools", "Error Handling",
        "An unknown tool is -32602: no tool ran, so there is no result."
    ),
    "tools.arguments-isError": Requirement(
        "2025-11-25", "2026-07-28", "server/tools", "Error Handling",
        "Wrong arguments are a failed result, for the model to read and try again."
    ),
    "tools.arguments-protocol-error": Requirement(
        "2024-11-05", "2025-06-18", "server/tools", "Error Handling",
        "Up to 2025-06-18 wrong arguments are -32602, with the problems one by one."
    ),
    "tools.names": Requirement(
        "2025-11-25", "2026-07-28", "server/tools", "Tool Names",
        "A name has 1 to 128 letters, digits, underscores, hyphens and dots; a mistake shows while the server is "
        "built."
    ),
    "tools.names-aggregated": Requirement(
        "2025-11-25", "2026-07-28", "server/tools", "Tool Names",
        "Equal names of several servers are told apart by a prefix the author chose, in references and addresses "
        "too."
    ),
    "tools.list-changed": Requirement(
        "2024-11-05", "2025-11-25", "server/tools", "List Changed Notification",
        "A session hears of tools that come and go at run time."
    ),
    "tools.list-changed-declared": Requirement(
        "2024-11-05", "2025-11-25", "server/tools", "Capabilities",
        "A server that does not declare `listChanged` does not tell."
    ),
    "tools.list-stable": Requirement(
        "2026-07-28", "2026-07-28", "server/tools", "Listing Tools",
        "A list is the same on every connection and after any call, in the order in which things were added."
    ),
    "tools.list-empty": Requirement(
        "2024-11-05", "2026-07-28", "server/tools", "Listing Tools",
        "A server without tools has an empty list."
    ),
    "tools.schema-untouched": Requirement(
        "2025-11-25", "2026-07-28", "server/tools", "Tool",
        "A schema is passed on with every keyword it has, known or unknown."
    ),
    "tools.remote-ref": Requirement(
        "2026-07-28", "2026-07-28", "basic/index", "`$ref` Resolution",
        "A reference to another place is never fetched, and what cannot be checked is not let through."
    ),
    "tools.output-conforms": Requirement(
        "2025-06-18", "2026-07-28", "server/tools", "Output Schema",
        "Structured content conforms to the output schema that was listed."
    ),
    "tools.output-errors": Requirement(
        "2025-06-18", "2026-07-28", "server/tools", "Output Schema",
        "A failed result owes nothing to the output schema, for servers and for clients."
    ),
    "tools.structured-null": Requirement(
        "2026-07-28", "2026-07-28", "server/tools", "Structured Content",
        "A structured null is a value, and another thing than none."
    ),
    "tools.structured-object": Requirement(
        "2025-06-18", "2025-11-25", "server/tools", "Structured Content",
        "In 2025-06-18 and 2025-11-25 structured content is an object, so anything else is put into one, schema "
        "and all."
    ),
    "tools.structured-since": Requirement(
        "2024-11-05", "2025-03-26", "server/tools", "Tool Result",
        "Before 2025-06-18 a result is content alone."
    ),
    "tools.output-client": Requirement(
        "2025-06-18", "2026-07-28", "server/tools", "Output Schema",
        "A client holds a result to the output schema that was listed."
    ),
    "tools.structured-text": Requirement(
        "2025-06-18", "2026-07-28", "server/tools", "Structured Content",
        "What is structured is in the text as well."
    ),
    "tools.unique": Requirement(
        "2025-11-25", "2026-07-28", "server/tools", "Tool Names",
        "No two tools have the same name, and names have a case."
    ),
    "tools.validated": Requirement(
        "2024-11-05", "2026-07-28", "server/tools", "Security Considerations",
        "Arguments are validated before a tool runs, and what it returns before it is sent."
    ),
    "tools.limited": Requirement(
        "2024-11-05", "2026-07-28", "server/tools", "Security Considerations",
        "There are bounds to the calls of one client."
    ),
    "tools.output-author": Requirement(
        "2025-06-18", "2026-07-28", "server/tools", "Output Schema",
        "A schema that the author wrote is kept like one that was derived, and is a schema."
    ),
    "tools.declared": Requirement(
        "2024-11-05", "2026-07-28", "server/tools", "Capabilities",
        "A server declares tools, resources, prompts, completions and logging, each if it has it."
    ),
    "tools.list-changed-first": Requirement(
        "2024-11-05", "2025-11-25", "server/tools", "List Changed Notification",
        "A change in the first call after `initialized` is told as well."
    ),
    "tools.annotations-untrusted": Requirement(
        "2025-03-26", "2026-07-28", "server/tools", "Tool",
        "What a tool says of itself is not believed, unless its server is trusted."
    ),
    "content.audio-since": Requirement(
        "2025-03-26", "2026-07-28", "server/tools", "Audio Content",
        "Audio exists since 2025-03-26 and is told in words before."
    ),
    "content.link-since": Requirement(
        "2025-06-18", "2026-07-28", "server/tools", "Resource Links",
        "Resource links exist since 2025-06-18 and are told in words, with their address, before."
    ),
    "content.base64": Requirement(
        "2024-11-05", "2026-07-28", "server/prompts", "Image Content",
        "Images and sounds are base64, and have a type."
    ),
    "tasks.only-where-offered": Requirement(
        "2025-11-25", "2025-11-25", "basic/utilities/tasks", "Capability Negotiation",
        "Without tasks their methods do not exist on any revision."
    ),
    "tasks.not-forced": Requirement(
        "2026-07-28", "2026-07-28", "server/tools", "Calling Tools",
        "A client that offers to poll still gets the result of a tool that makes no tasks."
    ),
    "tasks.declared": Requirement(
        "2025-11-25", "2025-11-25", "basic/utilities/tasks", "Capabilities",
        "A server with tasks says so, and each tool says whether it can be one."
    ),
    "tasks.forbidden": Requirement(
        "2025-11-25", "2025-11-25", "basic/utilities/tasks", "Tool-Level Negotiation",
        "What cannot be a task is -32601 as one."
    ),
    "tasks.required": Requirement(
        "2025-11-25", "2025-11-25", "basic/utilities/tasks", "Tool-Level Negotiation",
        "What has to be a task is -32601 otherwise."
    ),
    "tasks.undeclared-ignored": Requirement(
        "2024-11-05", "2025-11-25", "basic/utilities/tasks", "Task Support and Handling",
        "Where there are no tasks a wish for one means nothing."
    ),
    "tasks.created": Requirement(
        "2025-11-25", "2025-11-25", "basic/utilities/tasks", "Result Retrieval",
        "A wish is answered at once, with a task that works, its times and its time to live."
    ),
    "tasks.ids": Requirement(
        "2025-11-25", "2025-11-25", "basic/utilities/tasks", "Task ID Requirements",
        "The id of a task is a text of the server's that nobody guesses."
    ),
    "tasks.status": Requirement(
        "2025-11-25", "2025-11-25", "basic/utilities/tasks", "Task Status Lifecycle",
        "A task that is over stays as it is."
    ),
    "tasks.input-required": Requirement(
        "2025-11-25", "2025-11-25", "basic/utilities/tasks", "Input Required Status",
        "A task that asks says so, and asks whoever waits for its result, naming itself."
    ),
    "tasks.result-waits": Requirement(
        "2025-11-25", "2025-11-25", "basic/utilities/tasks", "Result Retrieval",
        "The result of a task is waited for until it is over."
    ),
    "tasks.result": Requirement(
        "2025-11-25", "2025-11-25", "basic/utilities/tasks", "Result Retrieval",
        "The result of a task is what the call would have given, and names the task."
    ),
    "tasks.list": Requirement(
        "2025-11-25", "2025-11-25", "basic/utilities/tasks", "Task Listing",
        "All tasks are listed, page by page, each as looking at it would say."
    ),
    "tasks.cancelled": Requirement(
        "2025-11-25", "2025-11-25", "basic/utilities/tasks", "Task Cancellation",
        "A task that was cancelled is so in the answer, and stays so whatever its body does."
    ),
    "tasks.cancel-terminal": Requirement(
        "2025-11-25", "2025-11-25", "basic/utilities/tasks", "Task Cancellation",
        "A task that is over cannot be cancelled: -32602."
    ),
    "tasks.unknown": Requirement(
        "2025-11-25", "2025-11-25", "basic/utilities/tasks", "Protocol Errors",
        "An id that is no task's, and a cursor that is none, are -32602."
    ),
    "tasks.isolated": Requirement(
        "2025-11-25", "2025-11-25", "basic/utilities/tasks", "Task Isolation and Access Control",
        "The tasks of others are not there: not to look at, nor to cancel, nor in a list."
    ),
    "tasks.no-list": Requirement(
        "2025-11-25", "2025-11-25", "basic/utilities/tasks", "Task Isolation and Access Control",
        "Where nobody says who they are nobody gets a list."
    ),
    "tasks.bounded": Requirement(
        "2025-11-25", "2025-11-25", "basic/utilities/tasks", "Task Isolation and Access Control",
        "Nobody has more tasks open than there is room for."
    ),
    "tasks.ttl": Requirement(
        "2025-11-25", "2025-11-25", "basic/utilities/tasks", "Resource Management",
        "A task that has outlived its time is gone."
    ),
    "tasks.told": Requirement(
        "2025-11-25", "2025-11-25", "basic/utilities/tasks", "Task Notifications",
        "Whoever made a task is told how it comes along, and nobody else."
    ),
    "tasks.client": Requirement(
        "2025-11-25", "2025-11-25", "basic/utilities/tasks", "Tool-Level Negotiation",
        "A client asks for a task where server and tool have them, and calls what has to be one as one."
    ),
    "tasks.progress": Requirement(
        "2025-11-25", "2025-11-25", "basic/utilities/progress", "Behavior Requirements",
        "The progress of a task is told under the token of its call, until it is over."
    ),
    # Resources, prompts, completion, logging, pages
    "resources.missing-modern": Requirement(
        "2026-07-28", "2026-07-28", "server/resources", "Error Handling",
        "A resource that does not exist is -32602 with its address, never an empty list."
    ),
    "resources.missing-handshake": Requirement(
        "2024-11-05", "2025-11-25", "server/resources", "Error Handling",
        "A resource that does not exist is -32002 with its address."
    ),
    "resources.list-changed": Requirement(
        "2024-11-05", "2025-11-25", "server/resources", "List Changed Notification",
        "A session hears of resources that come and go at run time."
    ),
    "resources.subscribe": Requirement(
        "2024-11-05", "2025-11-25", "server/resources", "Subscriptions",
        "A subscriber hears of its resource and of no other, until it unsubscribes."
    ),
    "resources.internal": Requirement(
        "2024-11-05", "2026-07-28", "server/resources", "Error Handling",
        "A resource that fails is -32603, with nothing of the failure."
    ),
    "resources.missing-accepted": Requirement(
        "2026-07-28", "2026-07-28", "server/resources", "Error Handling",
        "A client takes either code for a resource that is missing."
    ),
    "resources.binary": Requirement(
        "2024-11-05", "2026-07-28", "server/resources", "Security Considerations",
        "What is not text is base64."
    ),
    "resources.uris-validated": Requirement(
        "2024-11-05", "2026-07-28", "server/resources", "Security Considerations",
        "An address that is none is a resource that is missing, and its variables are checked."
    ),
    "resources.inside": Requirement(
        "2026-07-28", "2026-07-28", "server/resources", "Security Considerations",
        "No address leads out of the folder that is served."
    ),
    "resources.subscribe-existing": Requirement(
        "2024-11-05", "2026-07-28", "server/resources", "Subscriptions",
        "What does not exist cannot be subscribed to."
    ),
    "resources.uri-syntax": Requirement(
        "2025-06-18", "2026-07-28", "server/resources", "Custom URI Schemes",
        "A resource has an address by RFC 3986, and what else the protocol forbids is not built either."
    ),
    "prompts.get": Requirement(
        "2024-11-05", "2026-07-28", "server/prompts", "Getting a Prompt",
        "A prompt filled with its arguments is a list of messages."
    ),
    "prompts.missing-argument": Requirement(
        "2024-11-05", "2026-07-28", "server/prompts", "Error Handling",
        "A missing argument is -32602, which names it."
    ),
    "prompts.unknown": Requirement(
        "2024-11-05", "2026-07-28", "server/prompts", "Error Handling",
        "An unknown prompt is -32602."
    ),
    "prompts.validated": Requirement(
        "2024-11-05", "2026-07-28", "server/prompts", "Implementation Considerations",
        "Arguments of a prompt are validated before it is filled."
    ),
    "prompts.list-changed": Requirement(
        "2024-11-05", "2025-11-25", "server/prompts", "List Changed Notification",
        "A session hears of prompts that come and go at run time."
    ),
    "completion.bounded": Requirement(
        "2024-11-05", "2026-07-28", "server/utilities/completion", "Completion Results",
        "At most a hundred values are sent."
    ),
    "completion.context": Requirement(
        "2025-06-18", "2026-07-28", "server/utilities/completion", "Requesting Completions",
        "What is known so far helps to complete the next variable."
    ),
    "completion.unknown": Requirement(
        "2024-11-05", "2026-07-28", "server/utilities/completion", "Error Handling",
        "A prompt or template that does not exist cannot be completed."
    ),
    "completion.declared": Requirement(
        "2025-03-26", "2026-07-28", "server/utilities/completion", "Capabilities",
        "A server without completions has no such method."
    ),
    "completion.validated": Requirement(
        "2024-11-05", "2026-07-28", "server/utilities/completion", "Security",
        "A request for a completion is validated."
    ),
    "completion.argument-unknown": Requirement(
        "2024-11-05", "2026-07-28", "server/utilities/completion", "Error Handling",
        "An argument that there is not cannot be completed."
    ),
    "logging.level": Requirement(
        "2024-11-05", "2025-11-25", "server/utilities/logging", "Setting Log Level",
        "What is sent is at or above the level that was set, for that session."
    ),
    "logging.level-invalid": Requirement(
        "2024-11-05", "2025-11-25", "server/utilities/logging", "Error Handling",
        "A level that does not exist is -32602."
    ),
    "logging.per-request": Requirement(
        "2026-07-28", "2026-07-28", "server/utilities/logging", "Per-request log level",
        "Without a level in the request there are no log messages."
    ),
    "logging.any-json": Requirement(
        "2024-11-05", "2026-07-28", "server/utilities/logging", "Log Message Notifications",
        "What is logged may be any JSON, null included."
    ),
    "logging.declared": Requirement(
        "2024-11-05", "2026-07-28", "server/utilities/logging", "Capabilities",
        "Only a server that declares logging logs."
    ),
    "logging.unknown-level": Requirement(
        "2026-07-28", "2026-07-28", "server/utilities/logging", "Error Handling",
        "A request with a level that does not exist is refused."
    ),
    "logging.own-stream": Requirement(
        "2026-07-28", "2026-07-28", "server/utilities/logging", "Per-request log level",
        "What a request logs is on the stream of its answer, and on no other."
    ),
    "pagination.cursor-opaque": Requirement(
        "2024-11-05", "2026-07-28", "server/utilities/pagination", "Implementation Guidelines",
        "A cursor says nothing of what it means, and comes back as it was given."
    ),
    "pagination.cursor-invalid": Requirement(
        "2024-11-05", "2026-07-28", "server/utilities/pagination", "Error Handling",
        "A cursor that was not issued is -32602."
    ),
    "pagination.end": Requirement(
        "2024-11-05", "2026-07-28", "server/utilities/pagination", "Response Format",
        "The last page has no next cursor; an empty text is a cursor, and null is the end."
    ),
    "pagination.client": Requirement(
        "2024-11-05", "2026-07-28", "server/utilities/pagination", "Pagination Model",
        "A client reads all pages, whatever their size."
    ),
    "pagination.cursor-own-list": Requirement(
        "2024-11-05", "2026-07-28", "server/utilities/pagination", "Error Handling",
        "A cursor is good for the list it was given with, and for any process of the server."
    ),
    # stdio
    "stdio.end-of-input": Requirement(
        "2024-11-05", "2026-07-28", "basic/transports/stdio", "Shutdown",
        "The end of input ends the server, which exits with 0."
    ),
    "stdio.stdout-is-protocol": Requirement(
        "2024-11-05", "2026-07-28", "basic/transports/stdio", "Sending Messages",
        "Nothing but messages goes to standard output; what is printed or logged goes to standard error."
    ),
    "stdio.lines": Requirement(
        "2024-11-05", "2026-07-28", "basic/transports/stdio", "Sending Messages",
        "A message is one line, whatever stands in it."
    ),
    "stdio.stderr": Requirement(
        "2025-11-25", "2026-07-28", "basic/transports/stdio", "Receiving Messages",
        "What a server says on standard error means nothing, and has a bound."
    ),
    "stdio.restart": Requirement(
        "2026-07-28", "2026-07-28", "basic/transports/stdio", "Unexpected Termination",
        "A server that died is started again."
    ),
    "stdio.environment": Requirement(
        "2025-03-26", "2026-07-28", "basic/index", "Auth",
        "Credentials of a server on stdio come from its environment, which is not ours."
    ),
    # HTTP, one request alone
    "http.ladder": Requirement(
        "2026-07-28", "2026-07-28", "basic/transports/streamable-http", "Server Validation",
        "Of several mistakes the first in the order of validation is told."
    ),
    "http.version-header": Requirement(
        "2026-07-28", "2026-07-28", "basic/transports/streamable-http", "Protocol Version Header",
        "Header and body name the same revision, or it is -32020."
    ),
    "http.standard-headers": Requirement(
        "2026-07-28", "2026-07-28", "basic/transports/streamable-http", "Standard Request Headers",
        "Method and name stand in headers, once each, and agree with the body."
    ),
    "http.header-case": Requirement(
        "2026-07-28", "2026-07-28", "basic/transports/streamable-http", "Case Sensitivity",
        "Names of headers have no case, and values have."
    ),
    "http.header-base64": Requirement(
        "2026-07-28", "2026-07-28", "basic/transports/streamable-http", "Value Encoding",
        "What a header cannot carry is base64 of UTF-8 in its marker, and is decoded before it is compared."
    ),
    "http.param-headers": Requirement(
        "2026-07-28", "2026-07-28", "basic/transports/streamable-http", "Server Behavior for Custom Headers",
        "A parameter in a header says what the body says, or it is -32020; the body is what runs."
    ),
    "http.param-headers-client": Requirement(
        "2026-07-28", "2026-07-28", "basic/transports/streamable-http", "Client Behavior",
        "A client mirrors parameters as headers can carry them, and hides the one tool whose annotation is wrong."
    ),
    "http.param-headers-stale": Requirement(
        "2026-07-28", "2026-07-28", "basic/transports/streamable-http", "Client Behavior",
        "After -32020 a client lists the tools anew and tries again, not without end."
    ),
    "http.unknown-method-404": Requirement(
        "2026-07-28", "2026-07-28", "basic/transports/streamable-http", "Sending Messages",
        "A method that does not exist is 404 with -32601."
    ),
    "http.notification-202": Requirement(
        "2025-03-26", "2026-07-28", "basic/transports/streamable-http", "Sending Messages",
        "A notification is 202 without a body."
    ),
    "http.json-or-events": Requirement(
        "2025-03-26", "2026-07-28", "basic/transports/streamable-http", "Receiving Messages",
        "An answer is JSON, or events that end with the response."
    ),
    "http.no-buffering": Requirement(
        "2026-07-28", "2026-07-28", "basic/transports/streamable-http", "Receiving Messages",
        "A stream asks proxies not to hold it back."
    ),
    "http.no-resumption": Requirement(
        "2026-07-28", "2026-07-28", "basic/transports/streamable-http", "Receiving Messages",
        "Events have no ids, and a broken stream is not taken up again."
    ),
    "http.no-sessions": Requirement(
        "2026-07-28", "2026-07-28", "basic/transports/streamable-http", "Earlier Streamable HTTP Revisions",
        "A session id is ignored, never given and never taken."
    ),
    "http.post-only": Requirement(
        "2026-07-28", "2026-07-28", "basic/transports/streamable-http", "Earlier Streamable HTTP Revisions",
        "GET and DELETE are not of this revision."
    ),
    "http.origin": Requirement(
        "2024-11-05", "2026-07-28", "basic/transports/streamable-http", "Security & Endpoint",
        "A page of another origin is refused with 403, on every method."
    ),
    "http.host": Requirement(
        "2025-11-25", "2026-07-28", "basic/transports/streamable-http", "Security & Endpoint",
        "A server on this machine is reached by the names of this machine alone."
    ),
    "http.one-endpoint": Requirement(
        "2025-03-26", "2026-07-28", "basic/transports/streamable-http", "Streamable HTTP",
        "There is one endpoint for everything."
    ),
    "http.one-message": Requirement(
        "2025-06-18", "2026-07-28", "basic/transports/streamable-http", "Sending Messages",
        "The body of a POST is one message."
    ),
    "http.not-accepted": Requirement(
        "2025-03-26", "2025-11-25", "basic/transports", "Sending Messages to the Server",
        "What cannot be accepted is an HTTP error."
    ),
    "http.accept": Requirement(
        "2025-03-26", "2026-07-28", "basic/transports/streamable-http", "Sending Messages",
        "Every POST of a client takes JSON and events, and names its revision where there is a header for it."
    ),
    "http.client-both": Requirement(
        "2025-03-26", "2026-07-28", "basic/transports/streamable-http", "Sending Messages",
        "A client takes an answer as JSON and as events."
    ),
    "http.own-answer": Requirement(
        "2026-07-28", "2026-07-28", "basic/transports/streamable-http", "Receiving Messages",
        "What is said before an answer belongs to its request: nothing of another call is in it."
    ),
    "http.standard-headers-client": Requirement(
        "2026-07-28", "2026-07-28", "basic/transports/streamable-http", "Standard Request Headers",
        "A client repeats revision, method and name in its headers."
    ),
    "http.local": Requirement(
        "2024-11-05", "2026-07-28", "basic/transports/streamable-http", "Security & Endpoint",
        "Without a word nothing listens but on this machine, and beyond it only with a token."
    ),
    # HTTP, sessions
    "sessions.id": Requirement(
        "2025-03-26", "2025-11-25", "basic/transports", "Session Management",
        "A session id is visible ASCII, cannot be guessed, and comes with the answer to `initialize`."
    ),
    "sessions.id-sent": Requirement(
        "2025-03-26", "2025-11-25", "basic/transports", "Session Management",
        "A client names its session in all that follows, if it was given one."
    ),
    "sessions.missing-400": Requirement(
        "2025-03-26", "2025-11-25", "basic/transports", "Session Management",
        "A request without its session id is 400."
    ),
    "sessions.gone-404": Requirement(
        "2025-03-26", "2025-11-25", "basic/transports", "Session Management",
        "A session that has ended is 404."
    ),
    "sessions.delete": Requirement(
        "2025-03-26", "2025-11-25", "basic/transports", "Session Management",
        "DELETE ends a session and what it runs."
    ),
    "sessions.other-principal": Requirement(
        "2025-03-26", "2025-11-25", "basic/transports", "Session Management",
        "The session of another principal does not exist."
    ),
    "sessions.version-header": Requirement(
        "2025-06-18", "2025-11-25", "basic/transports", "Protocol Version Header",
        "Later requests name the agreed revision; one that is not supported is 400, and absence is forgiven."
    ),
    "sessions.get-stream": Requirement(
        "2025-03-26", "2025-11-25", "basic/transports", "Listening for Messages from the Server",
        "GET is a stream of what belongs to no request, and never of responses."
    ),
    "sessions.one-stream": Requirement(
        "2025-03-26", "2025-11-25", "basic/transports", "Multiple Connections",
        "A message is sent on one stream."
    ),
    "sessions.event-ids": Requirement(
        "2025-03-26", "2025-11-25", "basic/transports", "Resumability and Redelivery",
        "Ids of events are unique in their session."
    ),
    "sessions.resumed": Requirement(
        "2025-03-26", "2025-11-25", "basic/transports", "Resumability and Redelivery",
        "A stream is resumed after the last event that was seen, with its own events alone."
    ),
    "sessions.primed": Requirement(
        "2025-11-25", "2025-11-25", "basic/transports", "Sending Messages to the Server",
        "A stream begins with an id to come back with, for clients that know it."
    ),
    "sessions.let-go": Requirement(
        "2025-11-25", "2025-11-25", "basic/transports", "Sending Messages to the Server",
        "A server may let a client go, which comes back; older clients are not let go."
    ),
    "sessions.client-lost": Requirement(
        "2025-03-26", "2025-11-25", "basic/transports", "Session Management",
        "A client whose session is 404 begins another."
    ),
    "sessions.client-leaves": Requirement(
        "2025-03-26", "2025-11-25", "basic/transports", "Session Management",
        "A client that leaves deletes its session."
    ),
    "sessions.no-cancel": Requirement(
        "2025-03-26", "2025-11-25", "basic/transports", "Sending Messages to the Server",
        "A connection that is gone cancels nothing in a session."
    ),
    "sessions.get-405": Requirement(
        "2025-03-26", "2025-11-25", "basic/transports", "Listening for Messages from the Server",
        "GET is a stream of events for those who take events."
    ),
    "sessions.client-resumes": Requirement(
        "2025-03-26", "2025-11-25", "basic/transports", "Resumability and Redelivery",
        "A client takes a broken stream up where it was, and not before the server said."
    ),
    "sessions.several-streams": Requirement(
        "2025-03-26", "2025-11-25", "basic/transports", "Multiple Connections",
        "A client may hold several streams."
    ),
    "sessions.event-ids-once": Requirement(
        "2025-03-26", "2025-11-25", "basic/transports", "Resumability and Redelivery",
        "No id of an event is given twice."
    ),
    "old-sse.endpoint": Requirement(
        "2024-11-05", "2024-11-05", "basic/transports", "HTTP with SSE",
        "The first event of a stream says where to post."
    ),
    "old-sse.messages": Requirement(
        "2024-11-05", "2024-11-05", "basic/transports", "HTTP with SSE",
        "All messages of the server come on the one stream, and a session ends with it."
    ),
    "old-sse.fallback": Requirement(
        "2025-03-26", "2026-07-28", "basic/transports/streamable-http", "HTTP+SSE Transport (2024-11-05)",
        "A client falls back to the old transport where the endpoint is not there, and to nothing else."
    ),
    # Authorization
    "auth.header-only": Requirement(
        "2025-03-26", "2026-07-28", "basic/authorization/index", "Token Requirements",
        "A token is on every request, in its header, and never in an address."
    ),
    "auth.challenge": Requirement(
        "2025-03-26", "2026-07-28", "basic/authorization/index", "Error Handling",
        "A missing or wrong token is 401 with a challenge."
    ),
    "auth.token-for-one-server": Requirement(
        "2025-06-18", "2026-07-28",
        "basic/authorization/security-considerations", "Token Audience Binding and Validation",
        "A token goes to the server it was made for, and not in the clear."
    ),
    "auth.resource-metadata": Requirement(
        "2025-06-18", "2026-07-28",
        "basic/authorization/authorization-server-discovery", "Protected Resource Metadata Discovery Requirements",
        "The challenge says where the metadata is; else the path of the server is tried and then the root."
    ),
    "auth.metadata-published": Requirement(
        "2025-06-18", "2026-07-28",
        "basic/authorization/authorization-server-discovery", "Protected Resource Metadata Discovery Requirements",
        "A server publishes its metadata with its authorization servers, and its challenge says where."
    ),
    "auth.tokens-validated": Requirement(
        "2025-03-26", "2026-07-28", "basic/authorization/index", "Token Handling",
        "A server takes tokens that were issued for it, and refuses all others."
    ),
    "auth.scopes-all-at-once": Requirement(
        "2025-11-25", "2026-07-28", "basic/authorization/index", "Runtime Insufficient Scope Errors",
        "A token that lacks scopes is 403 with all scopes that the operation needs."
    ),
    "auth.scope-hierarchy": Requirement(
        "2026-07-28", "2026-07-28", "basic/authorization/index", "Runtime Insufficient Scope Errors",
        "Whether scopes suffice is decided with what they imply."
    ),
    "auth.resource-matches": Requirement(
        "2025-06-18", "2026-07-28",
        "basic/authorization/authorization-server-discovery", "Protected Resource Metadata Discovery Requirements",
        "Metadata about another server is refused."
    ),
    "auth.server-metadata": Requirement(
        "2025-06-18", "2026-07-28",
        "basic/authorization/authorization-server-discovery", "Authorization Server Metadata Discovery",
        "The addresses of server metadata are tried in the order that is prescribed."
    ),
    "auth.issuer-equal": Requirement(
        "2026-07-28", "2026-07-28",
        "basic/authorization/authorization-server-discovery", "Authorization Server Metadata Discovery",
        "The issuer is compared to the letter."
    ),
    "auth.fallback-2025-03-26": Requirement(
        "2025-03-26", "2025-03-26", "basic/authorization", "Fallbacks for Servers without Metadata Discovery",
        "Without metadata the default paths at the root are used."
    ),
    "auth.pkce": Requirement(
        "2025-03-26", "2026-07-28", "basic/authorization/security-considerations", "Authorization Code Protection",
        "There is no login without PKCE."
    ),
    "auth.response-state": Requirement(
        "2025-03-26", "2026-07-28", "basic/authorization/security-considerations", "Open Redirection",
        "An answer to another question is dropped."
    ),
    "auth.response-issuer": Requirement(
        "2026-07-28", "2026-07-28", "basic/authorization/index", "Authorization Response Validation",
        "An answer from another issuer, or without the promised name, is dropped unread."
    ),
    "auth.resource-parameter": Requirement(
        "2025-06-18", "2026-07-28", "basic/authorization/index", "Resource Parameter Implementation",
        "The server's canonical address is in every request for a token, to the letter."
    ),
    "auth.canonical-uri": Requirement(
        "2025-06-18", "2026-07-28", "basic/authorization/index", "Canonical Server URI",
        "A server that does not say is called by its canonical address."
    ),
    "auth.registration-order": Requirement(
        "2025-11-25", "2026-07-28", "basic/authorization/client-registration", "Client ID Metadata Documents",
        "A client that was given comes first, then a document of its own, then registration."
    ),
    "auth.metadata-document": Requirement(
        "2025-11-25", "2026-07-28", "basic/authorization/client-registration", "Implementation Requirements",
        "The address of a client's document is https with a path."
    ),
    "auth.application-type": Requirement(
        "2026-07-28", "2026-07-28",
        "basic/authorization/client-registration", "Application Type and Redirect URI Constraints",
        "A registration says whether the client is native or on the web."
    ),
    "auth.issuer-binding": Requirement(
        "2026-07-28", "2026-07-28", "basic/authorization/client-registration", "Authorization Server Binding",
        "Credentials are kept by issuer and shown to no other."
    ),
    "auth.redirect-uris": Requirement(
        "2025-03-26", "2026-07-28", "basic/authorization/security-considerations", "Communication Security",
        "A redirect address is https or on this machine."
    ),
    "auth.scopes": Requirement(
        "2025-11-25", "2026-07-28", "basic/authorization/index", "Scope Selection Strategy",
        "The scopes of the challenge come first, then those of the metadata, then none."
    ),
    "auth.step-up": Requirement(
        "2025-11-25", "2026-07-28", "basic/authorization/index", "Step-Up Authorization Flow",
        "Scopes that are missing are asked for on top of those had, a bounded number of times."
    ),
    "auth.refresh": Requirement(
        "2026-07-28", "2026-07-28", "basic/authorization/index", "Refresh Tokens",
        "A token that ran out is refreshed; `offline_access` is asked for where it is offered."
    ),
    "auth.no-private-networks": Requirement(
        "2025-11-25", "2026-07-28",
        "basic/authorization/security-considerations", "Client ID Metadata Document Security",
        "What a server names is not fetched from networks that only we can reach."
    ),
    "auth.secure-storage": Requirement(
        "2025-03-26", "2026-07-28", "basic/authorization/security-considerations", "Token Theft",
        "Tokens are kept in a file of their owner's alone."
    ),
    "auth.endpoints-https": Requirement(
        "2025-03-26", "2026-07-28", "basic/authorization/security-considerations", "Communication Security",
        "What an authorization server offers in the clear is not used."
    ),
    "auth.exact-challenge": Requirement(
        "2025-06-18", "2026-07-28",
        "basic/authorization/authorization-server-discovery", "Protected Resource Metadata Discovery Requirements",
        "A client reads what a challenge says, however it is written."
    ),
    "auth.rotation": Requirement(
        "2025-03-26", "2026-07-28", "basic/authorization/security-considerations", "Token Theft",
        "A refresh token that is replaced is used no more."
    ),
    "auth.insufficient-scope": Requirement(
        "2025-11-25", "2026-07-28", "basic/authorization/index", "Runtime Insufficient Scope Errors",
        "A challenge for scopes leads to a login for them, and not without end."
    ),
    "auth.registration-refused": Requirement(
        "2025-03-26", "2026-07-28", "basic/authorization/client-registration", "Dynamic Client Registration",
        "Without a way to register the user is told what to do."
    ),
    "auth.several-servers": Requirement(
        "2025-06-18", "2026-07-28",
        "basic/authorization/authorization-server-discovery", "Authorization Server Location",
        "Of several authorization servers a client chooses one that works."
    ),
    "auth.error-codes": Requirement(
        "2025-06-18", "2026-07-28", "basic/authorization/index", "Error Handling",
        "A refused token is replaced once, and what is forbidden is left to the caller."
    ),
    "auth.issuer-moves": Requirement(
        "2026-07-28", "2026-07-28", "basic/authorization/client-registration", "Authorization Server Binding",
        "A server that moves to another issuer takes nothing along."
    ),
    "auth.registration-error": Requirement(
        "2026-07-28", "2026-07-28",
        "basic/authorization/client-registration", "Application Type and Redirect URI Constraints",
        "A registration that is refused tells why."
    ),
    "auth.response-silent": Requirement(
        "2026-07-28", "2026-07-28", "basic/authorization/index", "Authorization Response Validation",
        "Nothing is shown of an answer that is not from the right issuer."
    ),
    "auth.refresh-optional": Requirement(
        "2026-07-28", "2026-07-28", "basic/authorization/index", "Refresh Tokens",
        "A refresh token may be missing or revoked: then there is a login."
    ),
    "auth.scopes-kept": Requirement(
        "2026-07-28", "2026-07-28", "basic/authorization/index", "Scope Selection Strategy",
        "A login for more scopes keeps those that were had."
    ),
    "auth.confidential": Requirement(
        "2025-03-26", "2026-07-28", "basic/authorization/security-considerations", "Token Theft",
        "No secret is in any text."
    ),
    "auth.not-redirected": Requirement(
        "2025-06-18", "2026-07-28", "basic/authorization/security-considerations", "Communication Security",
        "What carries credentials is not redirected."
    ),
    "auth.invalid-token": Requirement(
        "2025-03-26", "2026-07-28", "basic/authorization/index", "Token Handling",
        "A wrong token is said to be one."
    ),
}
