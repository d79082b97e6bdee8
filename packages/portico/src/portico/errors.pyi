# Public names, and the modules that define them. `portico._lazy.attach_stub` reads this file at run time.
from portico.auth.errors import (
    AuthorizationError as AuthorizationError,
    DiscoveryError as DiscoveryError,
    GrantDenied as GrantDenied,
    InvalidRedirect as InvalidRedirect,
    IssuerMismatch as IssuerMismatch,
    RegistrationError as RegistrationError,
    ResourceMismatch as ResourceMismatch,
    ScopeRejected as ScopeRejected,
    TokenRejected as TokenRejected,
    UnsafeUrl as UnsafeUrl,
)
from portico.client.input_handlers import InvalidHandlerResult as InvalidHandlerResult
from portico.client.results import OutputValidationError as OutputValidationError
from portico.client.skills import SkillVerificationError as SkillVerificationError
from portico.protocol.errors import (
    ClientRequestFailed as ClientRequestFailed,
    ComponentNotFound as ComponentNotFound,
    ConnectError as ConnectError,
    ConnectionClosed as ConnectionClosed,
    HeaderMismatch as HeaderMismatch,
    HttpStatusError as HttpStatusError,
    InsufficientScope as InsufficientScope,
    InternalError as InternalError,
    InvalidParams as InvalidParams,
    InvalidRequest as InvalidRequest,
    MethodNotFound as MethodNotFound,
    MissingClientCapability as MissingClientCapability,
    ParseError as ParseError,
    PorticoError as PorticoError,
    ProtocolError as ProtocolError,
    RequestTimeout as RequestTimeout,
    ResourceNotFound as ResourceNotFound,
    SessionExpired as SessionExpired,
    TaskRequired as TaskRequired,
    ToolError as ToolError,
    TooManyRequests as TooManyRequests,
    TransportError as TransportError,
    UnsupportedProtocolVersion as UnsupportedProtocolVersion,
    UsageError as UsageError,
)
from portico.store.errors import StoreError as StoreError
