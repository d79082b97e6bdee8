"""Contract changes: breaking, minor or patch, and the version that they require."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings, strategies as st

from portico.jsonschema import validation
from portico.jsonschema.comparison import compare_schemas
from portico.jsonschema.examples import NoExampleFound, generate_example
from portico_services.contracts import definitions, diff as diffs
from portico_services.contracts.definitions import ServerContract, contract_from_tools
from portico_services.contracts.diff import diff_contracts, migration_guide
from portico_services.contracts.invocation_names import deduplicate
from support.random_schemas import SCHEMAS, changes

Make = Callable[..., ServerContract]
Schema = dict[str, Any]

TEXT: Schema = {"type": "string"}
WHOLE: Schema = {"type": "integer"}
NUMBER: Schema = {"type": "number"}
NULL: Schema = {"type": "null"}


def members(needed: str = "", /, **properties: Any) -> Schema:
    return {"type": "object", "properties": properties, "required": needed.split(), "additionalProperties": False}


def either(*options: Any) -> Schema:
    return {"anyOf": list(options)}


OPEN = {**members(a=TEXT), "additionalProperties": True}
TREE = {**members(kids={"type": "array", "items": {"$ref": "#"}}, name=TEXT)}
OTHER_TREE = {**members(kids={"type": "array", "items": {"$ref": "#"}}, name=WHOLE)}

# Before, after, and how bad that is for what goes in and for what comes out.
CHANGES = [
    (members(a=TEXT), members(a=TEXT), "none", "none"),
    (members(a=TEXT), members(a=TEXT, b=TEXT), "minor", "minor"),
    (members(a=TEXT), members("b", a=TEXT, b=TEXT), "breaking", "minor"),
    (members(a=TEXT, b=TEXT), members(a=TEXT), "breaking", "breaking"),
    (members(a=TEXT), members(a=WHOLE), "breaking", "breaking"),
    (members(a=WHOLE), members(a=NUMBER), "minor", "breaking"),
    (members(a=NUMBER), members(a=WHOLE), "breaking", "minor"),
    (members(a=TEXT), members("a", a=TEXT), "breaking", "minor"),
    (members("a", a=TEXT), members(a=TEXT), "minor", "breaking"),
    (members(a=TEXT), members(a=either(TEXT, NULL)), "minor", "breaking"),
    (members(a=either(TEXT, NULL)), members(a=TEXT), "breaking", "minor"),
    (members(a={"type": ["string", "null"]}), members(a=either(TEXT, NULL)), "patch", "patch"),
    (members(a=either(TEXT, NULL)), members(a={"type": ["string", "null"]}), "patch", "patch"),
    (members(a=either(TEXT, WHOLE)), members(a=either(TEXT, NULL)), "breaking", "breaking"),
    (members(a=either(TEXT, WHOLE)), members(a=either(WHOLE, TEXT)), "patch", "patch"),
    (members(a={"enum": ["x", "y"]}), members(a={"enum": ["x"]}), "breaking", "minor"),
    (members(a={"enum": ["x"]}), members(a={"enum": ["x", "y"]}), "minor", "breaking"),
    (members(a={"enum": [1, True]}), members(a={"enum": [1]}), "breaking", "minor"),
    (members(a={"enum": ["x"]}), members(a=TEXT), "minor", "breaking"),
    (members(a=TEXT), members(a={"const": "x"}), "breaking", "minor"),
    (members(a={"type": "integer", "minimum": 1}), members(a={"type": "integer", "minimum": 2}), "breaking", "minor"),
    (members(a={"type": "integer", "minimum": 1}), members(a={"type": "integer", "minimum": 0}), "minor", "breaking"),
    (members(a={"type": "integer", "maximum": 9}), members(a=WHOLE), "minor", "breaking"),
    (members(a=TEXT), members(a={"type": "string", "maxLength": 5}), "breaking", "minor"),
    (members(a=TEXT), members(a={"type": "string", "pattern": "^a"}), "breaking", "minor"),
    (
        members(a={"type": "string", "pattern": "^a"}),
        members(a={"type": "string", "pattern": "^b"}),
        "breaking",
        "breaking",
    ),
    (members(a={"type": "string", "format": "date"}), members(a=TEXT), "minor", "breaking"),
    (
        members(a={"type": "integer", "multipleOf": 2}),
        members(a={"type": "integer", "multipleOf": 4}),
        "breaking",
        "minor",
    ),
    (
        members(a={"type": "integer", "multipleOf": 4}),
        members(a={"type": "integer", "multipleOf": 2}),
        "minor",
        "breaking",
    ),
    (members(a={"type": "array", "items": TEXT}), members(a={"type": "array", "items": WHOLE}), "breaking", "breaking"),
    (members(a={"type": "array", "items": TEXT}), members(a={"type": "array"}), "minor", "breaking"),
    (members(a={"type": "array"}), members(a={"type": "array", "uniqueItems": True}), "breaking", "minor"),
    (OPEN, members(a=TEXT), "breaking", "minor"),
    (members(a=TEXT), OPEN, "minor", "minor"),
    (members(a=members(b=TEXT)), members(a=members(b=WHOLE)), "breaking", "breaking"),
    (members(a={**TEXT, "description": "x"}), members(a={**TEXT, "description": "y"}), "patch", "patch"),
    (members(a={**TEXT, "default": "x"}), members(a={**TEXT, "default": "y"}), "minor", "patch"),
    (members(a={"not": TEXT}), members(a={"not": WHOLE}), "breaking", "breaking"),
    ({**members(a=TEXT), "x-order": 1}, {**members(a=TEXT), "x-order": 2}, "patch", "patch"),
    (TREE, OTHER_TREE, "breaking", "breaking"),
    (TREE, {**TREE, "description": "a tree"}, "patch", "patch"),
    (
        {**members(a={"$ref": "#/$defs/x"}), "$defs": {"x": TEXT}},
        {**members(a={"$ref": "#/$defs/x"}), "$defs": {"x": WHOLE}},
        "breaking",
        "breaking",
    ),
    ({**members(a={"$ref": "#/$defs/x"}), "$defs": {"x": TEXT}}, members(a=TEXT), "patch", "patch"),
]


@pytest.mark.parametrize("old, new, going_in, coming_out", CHANGES)
def test_how_bad_a_change_is(tool: Make, old: Schema, new: Schema, going_in: str, coming_out: str) -> None:
    assert diff_contracts(tool(old), tool(new)).level == going_in
    assert diff_contracts(tool(output=old), tool(output=new)).level == coming_out


def test_every_change_has_a_reason_and_breaking_ones_a_migration(tool: Make) -> None:
    result = diff_contracts(tool(members(a=TEXT, b=TEXT)), tool(members("c", a=WHOLE, c=TEXT)))
    assert {(change.path, change.reason) for change in result.changes} == {
        ("a", "the parameter `a` is integer now, and was string"),
        ("b", "the parameter `b` was removed"),
        ("c", "the parameter `c` is new: string"),
    }
    assert all(change.migration for change in result.changes)
    guide = migration_guide(result)
    assert "## `t` (1.0.0 to 1.0.0)" in guide
    assert "Leave out `b`." in guide
    assert "Pass `c` with every call." in guide


def test_without_breaking_changes_nothing_has_to_be_done(tool: Make) -> None:
    assert "No action is required" in migration_guide(
        diff_contracts(tool(members(a=TEXT)), tool(members(a=TEXT, b=TEXT)))
    )


# A tool as a whole


def test_removed_tool_is_breaking_and_added_tool_is_not(tool: Make) -> None:
    item, none = tool(), contract_from_tools([], server="s", version="1.0.0")
    assert diff_contracts(item, none).level == "breaking"
    assert diff_contracts(none, item).level == "minor"
    assert diff_contracts(none, item).missing_version_bumps == []
    assert [verdict.demanded for verdict in diff_contracts(item, none).missing_version_bumps] == ["2.0.0"]
    assert diff_contracts(item, contract_from_tools([], server="s", version="2.0.0")).missing_version_bumps == []


def test_migration_hint_names_the_renamed_tool() -> None:
    entry = {"description": "x", "inputSchema": members(a=TEXT)}
    old, new = (contract_from_tools([{"name": name, **entry}], server="s") for name in ("buy", "purchase"))
    assert "Call `purchase`" in diff_contracts(old, new).changes[0].migration


@pytest.mark.parametrize(
    "old, new, level",
    [
        ({"readOnlyHint": True}, {"readOnlyHint": False}, "breaking"),
        ({"readOnlyHint": True}, {}, "breaking"),
        ({}, {"readOnlyHint": True}, "minor"),
        ({"destructiveHint": False}, {"destructiveHint": True}, "breaking"),
        ({"idempotentHint": True}, {"idempotentHint": False}, "breaking"),
        ({"openWorldHint": False}, {}, "breaking"),
        ({}, {"openWorldHint": False}, "minor"),
        ({}, {"readOnlyHint": False}, "patch"),
        ({}, {"title": "x"}, "patch"),
    ],
)
def test_annotation_changes_are_compared(tool: Make, old: Any, new: Any, level: str) -> None:
    assert diff_contracts(tool(annotations=old), tool(annotations=new)).level == level


@pytest.mark.parametrize(
    "old, new, level",
    [
        ("", "optional", "minor"),
        ("optional", "required", "breaking"),
        ("optional", "forbidden", "breaking"),
        ("", "forbidden", "none"),
    ],
)
def test_whether_it_runs_as_a_task_is_a_promise(tool: Make, old: str, new: str, level: str) -> None:
    assert diff_contracts(tool(execution={"taskSupport": old}), tool(execution={"taskSupport": new})).level == level


def test_words_are_a_patch(tool: Make) -> None:
    assert diff_contracts(tool(description="x"), tool(description="y")).level == "patch"
    assert diff_contracts(tool(title="x"), tool()).level == "patch"


def test_output_schema_may_come_and_must_not_go(tool: Make) -> None:
    assert diff_contracts(tool(), tool(output=members())).level == "minor"
    assert diff_contracts(tool(output=members()), tool()).level == "breaking"


# Versions


@pytest.mark.parametrize(
    "old, new, level, declared",
    [
        ("1.2.3", "2.0.0", "breaking", True),
        ("1.2.3", "1.3.0", "breaking", False),
        ("1.2.3", "1.3.0", "minor", True),
        ("1.2.3", "1.2.4", "minor", False),
        ("1.2.3", "1.2.4", "patch", True),
        ("1.2.3", "1.2.3", "patch", False),
        ("1.2.3", "0.9.0", "patch", False),
        ("0.3.0", "1.0.0", "breaking", True),
    ],
)
def test_declared_version_must_match_the_change_level(
    tool: Make, old: str, new: str, level: str, declared: bool
) -> None:
    changed = {"breaking": members(), "minor": members(a=TEXT, b=TEXT), "patch": members(a={**TEXT, "title": "A"})}[
        level
    ]
    [verdict] = diff_contracts(tool(members(a=TEXT), version=old), tool(changed, version=new)).verdicts
    assert (verdict.level, verdict.is_declared) == (level, declared)
    assert definitions.parse_version(verdict.demanded) == definitions.required_version(
        definitions.SemanticVersion(*map(int, old.split("."))), level
    )  # type: ignore[arg-type]


@pytest.mark.parametrize("text", ["1.0", "v1.0.0", "1.0.0.0", "01.0.0", "", "1.0.x", "1" * 20 + ".0.0"])
def test_invalid_version_parses_to_none(text: str) -> None:
    assert definitions.parse_version(text) is None


@pytest.mark.parametrize(
    "wanted, offered, works",
    [
        ("1.0.0", "1.9.3", True),
        ("1.2.0", "1.1.9", False),
        ("1.0.0", "2.0.0", False),
        ("1.0.0", "x", False),
        ("1.0.0-a", "1.0.0+b", True),
    ],
)
def test_later_versions_of_the_same_major_are_compatible(wanted: str, offered: str, works: bool) -> None:
    assert definitions.is_compatible(wanted, offered) is works


# For all schemas


@settings(suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow])
@given(changes(), st.data())
def test_non_breaking_change_accepts_all_old_arguments(pair: tuple[Schema, Schema], data: st.DataObject) -> None:
    old, new = pair
    contracts = [contract_from_tools([{"name": "t", "inputSchema": item}], server="s") for item in (old, new)]
    assume(diff_contracts(*contracts).level != "breaking")
    try:
        value = generate_example(old, include_optional=data.draw(st.booleans()))
    except NoExampleFound:
        return
    assert validation.validate(new, value) == []


@given(SCHEMAS, SCHEMAS, st.data())
def test_schema_that_rejects_old_values_is_never_only_wider(old: Schema, new: Schema, data: st.DataObject) -> None:
    effects = {shift.effect for shift in compare_schemas(old, new)}
    try:
        value = generate_example(old, include_optional=data.draw(st.booleans()))
    except NoExampleFound:
        return
    if validation.validate(new, value):
        assert effects & {"narrower", "changed", "removed", "added required", "closed"}


@given(SCHEMAS)
def test_schema_has_not_changed_from_itself(schema: Schema) -> None:
    assert compare_schemas(schema, schema) == []


@given(SCHEMAS, SCHEMAS)
def test_migration_guide_is_symmetric(old: Schema, new: Schema) -> None:
    assert bool(compare_schemas(old, new)) == bool(compare_schemas(new, old))


def test_hostile_schemas_take_bounded_time(tool: Make) -> None:
    wide = {"anyOf": [{"$ref": "#"} for _ in range(30)], "type": "object"}
    other = {"anyOf": [{"$ref": "#"} for _ in range(31)], "type": "object"}
    diff_contracts(tool(wide), tool(other))
    deep: Any = {"type": "string"}
    for _ in range(200):
        deep = {"type": "object", "properties": {"x": deep}}
    assert diff_contracts(tool(deep), tool({"type": "object"})).level == "breaking"
    assert diff_contracts(tool(deep), tool({"type": "object", "properties": {"x": deep}})).level == "breaking"
    assert diff_contracts(tool(deep), tool(deep)).level == "none"
    doubling = {f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(30)}
    bomb = {"$ref": "#/$defs/d0", "$defs": {**doubling, "d30": {"type": "string"}}}
    diff_contracts(tool(bomb), tool({**bomb, "$defs": {**doubling, "d30": {"type": "integer"}}}))


def test_many_tools_are_compared_in_time_that_grows_with_their_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every tool gone, and as many new ones: what each promises is looked at once, not once for each other."""
    looked = 0
    promises = diffs._encode_schemas

    def counted(tool: Any) -> bytes:
        nonlocal looked
        looked += 1
        return promises(tool)

    monkeypatch.setattr(diffs, "_encode_schemas", counted)
    old = contract_from_tools(
        [{"name": f"old{n}", "inputSchema": {"type": "object", "title": str(n)}} for n in range(500)]
    )
    new = contract_from_tools(
        [{"name": f"new{n}", "inputSchema": {"type": "object", "title": str(n)}} for n in range(500)]
    )
    result = diffs.diff_contracts(old, new)
    assert looked == 1000
    assert result.changes[7].migration == "Call `new7` instead; its parameters and result are identical."


def test_comparison_that_is_not_wanted_any_more_ends() -> None:
    tools = contract_from_tools([{"name": f"tool{n}", "inputSchema": {"type": "object"}} for n in range(5)])
    requests: list[int] = []

    def is_over() -> bool:
        requests.append(1)
        return len(requests) > 2

    with pytest.raises(TimeoutError):
        diffs.diff_contracts(tools, tools, is_over)


def test_tools_that_want_one_name_are_numbered_one_after_the_other() -> None:
    item: dict[str, None] = {}
    for _ in range(40):
        item[deduplicate("m.tool", item)] = None
    assert list(item) == ["m.tool", *(f"m.tool_{number}" for number in range(2, 41))]


@pytest.mark.parametrize(
    "old, new, level",
    [
        (
            {"anyOf": [{"type": "integer"}, {"type": "number"}]},
            {"oneOf": [{"type": "integer"}, {"type": "number"}]},
            "breaking",
        ),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, {"oneOf": [{"type": "string"}, {"type": "null"}]}, "patch"),
        (
            {"oneOf": [{"type": "string"}, {"type": "integer"}]},
            {"oneOf": [{"type": "string"}, {"type": "integer"}, {"type": "number"}]},
            "breaking",
        ),
        (
            {"oneOf": [{"type": "string"}, {"type": "integer"}]},
            {"oneOf": [{"type": "string"}, {"type": "integer"}, {"type": "null"}]},
            "minor",
        ),
        ({"type": "string", "enum": ["a"]}, {"type": "integer", "enum": ["a"]}, "breaking"),
        ({"type": "string"}, {"type": "string", "enum": [1, 2]}, "breaking"),
        ({"type": "integer", "enum": [1, 2.0]}, {"type": "integer", "enum": [1]}, "breaking"),
        ({"type": "integer", "enum": [1, 2.0]}, {"type": "integer", "enum": [1, 2]}, "patch"),
    ],
)
def test_changes_in_alternatives_and_enums_are_detected(
    tool: Any, old: dict[str, Any], new: dict[str, Any], level: str
) -> None:
    before, after = (tool({"type": "object", "properties": {"x": item}}) for item in (old, new))
    assert diff_contracts(before, after).level == level


def test_result_that_can_be_nothing_any_more_is_broken(tool: Any) -> None:
    item, other = (
        {"type": "object", "properties": {"x": {"type": kind, "enum": ["a"]}}} for kind in ("string", "null")
    )
    assert diff_contracts(tool(output=item), tool(output=other)).level == "breaking"


def test_server_that_goes_back_is_mentioned() -> None:
    old, new = (contract_from_tools([], server="s", version=version) for version in ("2.0.0", "1.9.9"))
    assert [change.reason for change in diff_contracts(old, new).changes] == [
        "the version was downgraded from 2.0.0 to 1.9.9"
    ]


@pytest.mark.parametrize(
    "old, new, is_back",
    [
        ("1.0.0", "1.0.0-rc.1", True),
        ("1.0.0-rc.1", "1.0.0", False),
        ("1.0.0-rc.10", "1.0.0-rc.9", True),
        ("1.0.0-rc.9", "1.0.0-rc.10", False),
        ("1.0.0-rc", "1.0.0-beta.2", True),
        ("1.0.0+b", "1.0.0+a", False),
    ],
)
def test_candidate_is_older_than_its_release(tool: Any, old: str, new: str, is_back: bool) -> None:
    assert bool(diff_contracts(tool(version=old), tool(version=new)).changes) == is_back


def test_version_that_goes_back_is_mentioned(tool: Any) -> None:
    result = diff_contracts(tool(version="2.0.0"), tool(version="1.0.0"))
    assert [change.reason for change in result.changes] == ["the version was downgraded from 2.0.0 to 1.0.0"]
    assert result.missing_version_bumps
