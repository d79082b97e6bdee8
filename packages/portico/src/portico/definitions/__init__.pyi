# Public names, and the modules that define them. `portico._lazy.attach_stub` reads this file at run time.
from portico.definitions.comparison import (
    LEVELS as LEVELS,
    DefinitionChange as DefinitionChange,
    Level as Level,
    compare_tools as compare_tools,
    highest_level as highest_level,
)
from portico.definitions.components import (
    LISTS as LISTS,
    ComponentChange as ComponentChange,
    ComponentKind as ComponentKind,
    PinnedComponent as PinnedComponent,
    components_from_list as components_from_list,
    diff_components as diff_components,
)
from portico.definitions.invisible_chars import (
    has_escaped_invisible as has_escaped_invisible,
    has_invisible as has_invisible,
    visible as visible,
    visible_json as visible_json,
)
from portico.definitions.lock_file import (
    LOCK_VERSION as LOCK_VERSION,
    LockFileError as LockFileError,
    LockKind as LockKind,
    format_lock as format_lock,
    lock_kind as lock_kind,
    parse_lock as parse_lock,
    read_lock as read_lock,
    write_lock as write_lock,
)
from portico.definitions.tools import (
    ListedTool as ListedTool,
    read_tool as read_tool,
)
