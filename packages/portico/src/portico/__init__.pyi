# Public names, and the modules that define them. `portico._lazy.attach_stub` reads this file at run time.
__version__: str
from portico.client.client import Client as Client
from portico.client.sync_client import SyncClient as SyncClient
from portico.protocol.errors import (
    PorticoError as PorticoError,
    ProtocolError as ProtocolError,
    ToolError as ToolError,
    UsageError as UsageError,
)
from portico.protocol.meta import Icon as Icon
from portico.protocol.tools import ToolAnnotations as ToolAnnotations
from portico.server.apps import AppPage as AppPage
from portico.server.components.dependencies import Depends as Depends
from portico.server.components.prompts import Message as Message, Prompt as Prompt
from portico.server.components.resources import Resource as Resource
from portico.server.components.results import Audio as Audio, File as File, Image as Image, ToolResult as ToolResult
from portico.server.components.tools import TaskConfig as TaskConfig, Tool as Tool
from portico.server.context.context import Context as Context
from portico.server.middleware import Middleware as Middleware, MiddlewareContext as MiddlewareContext
from portico.server.registry.registration import ComponentDefaults as ComponentDefaults
from portico.server.registry.service import (
    Service as Service,
    completion as completion,
    prompt as prompt,
    resource as resource,
    tool as tool,
)
from portico.server.server import Server as Server
from portico.server.skills.service import Skills as Skills
