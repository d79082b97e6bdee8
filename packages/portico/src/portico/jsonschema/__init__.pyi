# Public names, and the modules that define them. `portico._lazy.attach_stub` reads this file at run time.
from portico.jsonschema import codegen as codegen
from portico.jsonschema.argument_issues import (
    ArgumentIssue as ArgumentIssue,
    closest_names as closest_names,
    did_you_mean as did_you_mean,
)
from portico.jsonschema.comparison import (
    UNREADABLE_KEYWORD as UNREADABLE_KEYWORD,
    ChangeEffect as ChangeEffect,
    SchemaChange as SchemaChange,
    compare_schemas as compare_schemas,
)
from portico.jsonschema.cost import MAX_SCHEMA_BYTES as MAX_SCHEMA_BYTES
from portico.jsonschema.dialects import (
    DRAFT_07 as DRAFT_07,
    simplify as simplify,
    to_draft_07 as to_draft_07,
    wrap_as_property as wrap_as_property,
)
from portico.jsonschema.examples import (
    NoExampleFound as NoExampleFound,
    generate_example as generate_example,
)
from portico.jsonschema.explanation import (
    TableField as TableField,
    describe_constraints as describe_constraints,
    format_type as format_type,
    list_fields as list_fields,
)
from portico.jsonschema.generation import schema_for_type as schema_for_type
from portico.jsonschema.reader import (
    SchemaReader as SchemaReader,
    get_alternatives as get_alternatives,
    get_definitions as get_definitions,
    get_enum_values as get_enum_values,
    get_properties as get_properties,
    get_required as get_required,
    get_types as get_types,
    json_type as json_type,
    merge_all_of as merge_all_of,
    merge_schemas as merge_schemas,
    omit_keywords as omit_keywords,
    resolve_references as resolve_references,
)
from portico.jsonschema.schema import (
    Schema as Schema,
    SchemaError as SchemaError,
)
from portico.jsonschema.validation import (
    InvalidSchema as InvalidSchema,
    ValidationIssue as ValidationIssue,
    check_schema as check_schema,
    validate as validate,
)
