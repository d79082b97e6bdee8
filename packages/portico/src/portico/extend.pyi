# Public names, and the modules that define them. `portico._lazy.attach_stub` reads this file at run time.
from portico._options import expand_paths as expand_paths, validated_kwargs as validated_kwargs
from portico.protocol.completion import MAX_COMPLETION_VALUES as MAX_COMPLETION_VALUES
from portico.protocol.content import Result as Result
from portico.protocol.errors import error_from_response as error_from_response
from portico.protocol.json_depth import decode_bounded as decode_bounded, exceeds_depth as exceeds_depth
from portico.protocol.meta import RequestParams as RequestParams
from portico.protocol.methods import Method as Method, register_method as register_method
from portico.protocol.prompts import GetPromptParams as GetPromptParams
from portico.protocol.resources import ReadResourceParams as ReadResourceParams
from portico.protocol.tasks import TASKS_EXTENSION as TASKS_EXTENSION
from portico.protocol.tools import (
    ERROR_META_KEY as ERROR_META_KEY,
    RESULT as RESULT,
    WRAP_RESULT_KEY as WRAP_RESULT_KEY,
    CallToolParams as CallToolParams,
)
from portico.protocol.uri_template import UriTemplate as UriTemplate
from portico.protocol.versions import (
    FIRST_MODERN_VERSION as FIRST_MODERN_VERSION,
    LATEST_HANDSHAKE_VERSION as LATEST_HANDSHAKE_VERSION,
)
from portico.rpc.call import (
    Call as Call,
    CallbackReply as CallbackReply,
    ClientConnection as ClientConnection,
    Handler as Handler,
    HandlerCapabilities as HandlerCapabilities,
    HandlerMiddleware as HandlerMiddleware,
    NotificationCallback as NotificationCallback,
    Reply as Reply,
    get_capabilities as get_capabilities,
)
from portico.rpc.dispatcher import (
    dispatch_in_process as dispatch_in_process,
    exception_to_result as exception_to_result,
)
from portico.rpc.fair_queue import FairPlaces as FairPlaces
from portico.rpc.identity import principal_id as principal_id
from portico.rpc.rate_limit import RateLimit as RateLimit, RateLimiter as RateLimiter
from portico.rpc.supervision import BackgroundTasks as BackgroundTasks, run_in_thread as run_in_thread
from portico.rpc.visible_tools import ToolPage as ToolPage, VisibleTools as VisibleTools
from portico.server.components.completion import CallerCompleter as CallerCompleter, Completer as Completer
from portico.server.components.lazy import LazyPrompt as LazyPrompt, LazyResource as LazyResource, LazyTool as LazyTool
from portico.server.components.prompts import PromptOptions as PromptOptions
from portico.server.components.resources import ResourceOptions as ResourceOptions
from portico.server.components.results import to_json as to_json
from portico.server.components.runtime import ArgumentErrorMode as ArgumentErrorMode, Runtime as Runtime
from portico.server.components.tools import ToolOptions as ToolOptions, validate_tool_name as validate_tool_name
from portico.server.context.current import run_blocking as run_blocking
from portico.server.context.input_rounds import get_rounds as get_rounds
from portico.server.http import serve_http as serve_http
from portico.server.policy.interfaces import (
    AccessPolicy as AccessPolicy,
    AuditHook as AuditHook,
    Decision as Decision,
    Kind as Kind,
    PolicyContext as PolicyContext,
    QualifiedName as QualifiedName,
    RequestLimiter as RequestLimiter,
    Visibility as Visibility,
)
from portico.server.policy.settings import configure_access as configure_access
from portico.server.registry.service import CompletionBinding as CompletionBinding, Component as Component
from portico.server.results.service import ResultLimits as ResultLimits
from portico.store.data_directory import resolve_data_directory as resolve_data_directory
from portico.store.database import Database as Database, retry_until_ready as retry_until_ready
from portico.store.keys import SigningKeys as SigningKeys
from portico.store.rows import encode_json_column as encode_json_column
from portico.store.sqlite_transaction import (
    SqliteTransaction as SqliteTransaction,
    translate_sqlite_error as translate_sqlite_error,
)
from portico.store.transaction import Event as Event, Transaction as Transaction
from portico.telemetry.request_log import enable_request_log as enable_request_log
from portico.transports.http_client.simple_request import SimpleResponse as SimpleResponse, http_request as http_request
from portico.transports.http_server.bind_address import is_loopback as is_loopback
