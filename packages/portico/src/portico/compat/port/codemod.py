"""Rewrites one file: resolves names of FastMCP and the SDK to their counterparts, and reports names without one."""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import libcst as cst
from libcst.metadata import (
    ExpressionContext,
    ExpressionContextProvider,
    MetadataWrapper,
    ParentNodeProvider,
    PositionProvider,
    QualifiedNameProvider,
    QualifiedNameSource,
)

from portico.compat.port.client_code import ClientSurvey
from portico.compat.port.mappings import (
    REPLACEMENT_FACTORIES,
    PorticoName,
    advice_for,
    is_foreign,
    lookup,
    star_import_names,
)
from portico.compat.port.server_code import (
    COMPAT_MEMBERS,
    RENAMED_KEYWORDS,
    SERVER_OPTION_NAMES,
    UNSUPPORTED,
    needs_compat,
    translate_keyword,
    translate_run,
)

_SERVERS = {"FastMCP", "MCPServer"}
_TYPES = ("mcp.types", "mcp_types")


class ManualStep(NamedTuple):
    """A change that must be made by hand."""

    line: int
    what: str
    advice: str


class RewriteResult(NamedTuple):
    """The rewritten source and the changes that remain."""

    source: bytes
    findings: list[ManualStep]


def rewrite(source: bytes) -> RewriteResult:
    """Rewrite a file for Portico. Raises SyntaxError if it cannot be parsed."""
    if b"mcp" not in source and b".call_tool(" not in source:
        return RewriteResult(source, [])
    try:
        wrapper = MetadataWrapper(cst.parse_module(source))
    except (cst.ParserSyntaxError, UnicodeDecodeError, SyntaxError) as mistake:
        failure = SyntaxError("it is not valid Python")
        failure.lineno = getattr(mistake, "raw_line", 0)
        raise failure from None
    survey = ImportVisitor()
    wrapper.visit(survey)
    clients = ClientSurvey()
    if not survey.imported and not survey.stars:
        if b".call_tool(" not in source or b"portico" in source:
            return RewriteResult(source, [])
        # A test that gets its client from a fixture imports nothing to rewrite, so it is reported but not changed.
        wrapper.visit(clients)
        return RewriteResult(source, sorted({ManualStep(*note) for note in clients.field_notes()}))
    wrapper.visit(clients)
    plan = RewritePlan(survey, clients)
    tree = wrapper.visit(RewriteTransformer(plan))
    # Which imports are unused is only known after rewriting, so a second pass removes them.
    if plan.leave_out_unused(tree.code):
        tree = wrapper.visit(RewriteTransformer(plan))
    return RewriteResult(tree.bytes, sorted(set(plan.findings)))


class ImportBinding(NamedTuple):
    """A name that an import binds: `import a.b as c` binds c to the module a.b, `from a import b` binds b to a.b."""

    local: str
    dotted: str
    line: int
    # Whether it is at module level, not in a function or an `if`.
    top: bool


class ImportVisitor(cst.CSTVisitor):
    """Collects the names that a file imports from FastMCP or the SDK, and their uses."""

    METADATA_DEPENDENCIES = (QualifiedNameProvider, PositionProvider, ParentNodeProvider, ExpressionContextProvider)

    def __init__(self) -> None:
        # Names of `from … import`, and modules that are imported as a whole.
        self.imported: list[ImportBinding] = []
        self.modules: list[ImportBinding] = []
        self.stars: list[ImportBinding] = []
        # Every name that the file binds in another way.
        self.bound: set[str] = set()
        # The imported names that are used, by full name, with their lines.
        self.used: dict[str, list[int]] = {}
        # The subset that is called.
        self.called: set[str] = set()
        # Transport constructors whose calls can be rewritten, with the number of such calls.
        self.transports: dict[str, int] = {}
        # Names that nothing in the file binds.
        self.loose: dict[str, int] = {}
        # Whether the file uses a feature of a server or a Context that only `portico.compat` has.
        self.compat = False
        # Server options that Portico does not support, with their lines.
        self.unsupported: list[tuple[int, str, str]] = []

    def visit_Import(self, node: cst.Import) -> bool:
        for alias in node.names:
            dotted = _dotted_name(alias.name)
            if is_foreign(dotted):
                local = _local(alias) or dotted
                self.modules.append(ImportBinding(local, dotted, self._line(node), self._at_top(node)))
                self.imported.append(self.modules[-1])
            else:
                self.bound.add(_local(alias) or dotted.partition(".")[0])
        return False

    def visit_ImportFrom(self, node: cst.ImportFrom) -> bool:
        home = "" if node.module is None or node.relative else _dotted_name(node.module)
        if isinstance(node.names, cst.ImportStar):
            if is_foreign(home):
                self.stars.append(ImportBinding("*", home, self._line(node), top=True))
            return False
        for alias in node.names:
            name = _dotted_name(alias.name)
            if is_foreign(home):
                binding = ImportBinding(_local(alias) or name, f"{home}.{name}", self._line(alias), self._at_top(node))
                self.imported.append(binding)
            else:
                self.bound.add(_local(alias) or name)
        return False

    def visit_ClassDef(self, node: cst.ClassDef) -> None:
        self.bound.add(node.name.value)

    def visit_FunctionDef(self, node: cst.FunctionDef) -> None:
        self.bound.add(node.name.value)

    def visit_Param(self, node: cst.Param) -> None:
        self.bound.add(node.name.value)

    def visit_Call(self, node: cst.Call) -> None:
        dotted = self._foreign_name(node.func)
        # After `from fastmcp import *` libcst cannot resolve names, so the well-known classes are
        # recognized by name.
        starred = node.func.value if isinstance(node.func, cst.Name) and self.stars else ""
        name = starred if starred in _SERVERS else (dotted or "").rpartition(".")[2]
        self.compat = self.compat or needs_compat(node, name if name in _SERVERS else "")
        if name in _SERVERS:
            self._note_unsupported(node, name)
        if dotted is not None:
            self.called.add(dotted)
            if transport_target(dotted, node) is not None:
                self.transports[dotted] = self.transports.get(dotted, 0) + 1

    def _note_unsupported(self, node: cst.Call, name: str) -> None:
        for arg in node.args:
            option = None if arg.keyword is None else UNSUPPORTED[name].get(arg.keyword.value)
            if option is None or arg.keyword is None:
                continue
            # Compared as source text: evaluating expressions of the file is out of the question.
            accepted = [repr(value) for value in option.accepted]
            if cst.Module([]).code_for_node(arg.value) not in accepted:
                self.unsupported.append((self._line(arg), f"{name}({arg.keyword.value}=…)", option.alternative))

    def visit_Attribute(self, node: cst.Attribute) -> None:
        self.compat = self.compat or node.attr.value in COMPAT_MEMBERS
        dotted = self._foreign_name(node)
        if dotted is not None and not _inside_longer(self, node):
            self.used.setdefault(dotted, []).append(self._line(node))

    def visit_Name(self, node: cst.Name) -> None:
        context = self.get_metadata(ExpressionContextProvider, node, None)
        if context is ExpressionContext.STORE:
            self.bound.add(node.value)
            return
        metadata = self.get_metadata(QualifiedNameProvider, node, set())
        dotted = self._foreign_name(node)
        if dotted is not None and not _inside_longer(self, node):
            self.used.setdefault(dotted, []).append(self._line(node))
        # Bound nowhere in the file: a builtin, or a name that a star import brings.
        elif not metadata and context is ExpressionContext.LOAD:
            self.loose.setdefault(node.value, self._line(node))

    def _foreign_name(self, node: cst.CSTNode) -> str | None:
        return resolve_foreign_name(self.get_metadata(QualifiedNameProvider, node, set()))

    def _line(self, node: cst.CSTNode) -> int:
        return int(self.get_metadata(PositionProvider, node).start.line)

    def _at_top(self, node: cst.CSTNode) -> bool:
        line = self.get_metadata(ParentNodeProvider, node)
        return isinstance(self.get_metadata(ParentNodeProvider, line), cst.Module)


class RewritePlan:
    """The decision for each import, made before anything is changed."""

    def __init__(self, survey: ImportVisitor, clients: ClientSurvey) -> None:
        self.survey = survey
        self.clients = clients
        self.findings: list[ManualStep] = [ManualStep(*note) for note in (*clients.notes, *survey.unsupported)]
        # The replacement for each full name.
        self.names: dict[str, str] = {}
        self.attributes: dict[str, PorticoName] = {}
        # The imports to add: module → {name: alias}.
        self.needed: dict[str, dict[str, str]] = {}
        self.whole: set[str] = set()
        # The imports to remove, by the names that they bind.
        self.gone: set[tuple[str, str]] = set()
        self.gone_stars: set[str] = set()
        modules = {(module.local, module.dotted) for module in survey.modules}
        for module in survey.imported:
            if (module.local, module.dotted) in modules or self._is_module(module):
                self._module(module)
            else:
                self._name(module)
        for star in survey.stars:
            self._star(star)
        self.whole |= {maker.rpartition(".")[0] for dotted in survey.called if (maker := _find_factory(dotted))}

    def lookup(self, dotted: str) -> PorticoName | None:
        """Return the counterpart of a name, or None."""
        return lookup(dotted, compat=self.survey.compat)

    def _is_module(self, item: ImportBinding) -> bool:
        """Return whether a name is a module whose members are used, as in `from mcp import types`."""
        module = item.dotted.rpartition(".")[2].islower()
        return (
            module
            and self.lookup(item.dotted) is None
            and any(used.startswith(item.dotted + ".") for used in self.survey.used)
        )

    def _name(self, item: ImportBinding) -> None:
        result = self.lookup(item.dotted)
        if result is None and self.rewrites_transport(item.dotted):
            self.gone.add((item.local, item.dotted))
            return
        if result is None:
            self.findings.append(ManualStep(item.line, item.dotted, advice_for(item.dotted)))
            return
        own = item.dotted.rpartition(".")[2]
        local = item.local
        # Use Portico's name, unless the file has an alias or uses that name for something else.
        if local == own and result.name not in self.survey.bound and not self._is_bound_elsewhere(result):
            local = result.name
        self.names[item.dotted] = local
        self.gone.add((item.local, item.dotted))
        if item.top:
            self._add_import(result, local)

    def rewrites_transport(self, dotted: str) -> bool:
        """Return whether every use of a transport is a call that a target of Portico's Client can replace."""
        calls = self.survey.transports.get(dotted, 0)
        # All or none: a transport that is also stored in a variable must keep its import.
        return calls > 0 and calls == len(self.survey.used.get(dotted, []))

    def leave_out_unused(self, code: str) -> bool:
        """Remove the imports that the rewritten file does not use. Returns whether there were any."""
        names, chains = _names_used(code)
        needless = {module for module in self.whole if not any(item.startswith(f"{module}.") for item in chains)}
        submodules = {module for module in self.whole - needless if module.startswith("portico.")}
        # Importing a submodule also binds its package.
        others = (item for item in chains if not any(item.startswith(f"{module}.") for module in submodules))
        if submodules or not any(item.startswith("portico.") for item in others):
            needless |= self.whole & {"portico"}
        dropped = bool(needless)
        self.whole -= needless
        # A name that the file did not use before may be re-exported, so its import stays.
        used_modules = {
            self.names[dotted.lstrip("*")] for dotted in self.names if dotted.lstrip("*") in self.survey.used
        }
        for module, imports in list(self.needed.items()):
            remaining = {name: local for name, local in imports.items() if local in names or local not in used_modules}
            dropped = dropped or remaining != imports
            if remaining:
                self.needed[module] = remaining
            else:
                del self.needed[module]
        return dropped

    def _is_bound_elsewhere(self, replacement: PorticoName) -> bool:
        """Return whether another import, which is not rewritten, binds the name."""
        others = [other for other in self.survey.imported if other.local == replacement.name]
        return any(self.lookup(other.dotted) != replacement for other in others)

    def _module(self, item: ImportBinding) -> None:
        used = {dotted for dotted in self.survey.used if dotted.startswith(item.dotted + ".")}
        left = False
        for dotted in sorted(used):
            result = self.lookup(dotted)
            if result is None and self.rewrites_transport(dotted):
                continue
            if result is None:
                left = True
                for line in self.survey.used[dotted]:
                    self.findings.append(ManualStep(line, dotted, advice_for(dotted)))
                continue
            self.attributes[dotted] = result
            if item.top:
                self.whole.add(result.module)
        # The import can go only if every use of the module was rewritten.
        if not left and used:
            self.gone.add((item.local, item.dotted))
        elif not used:
            self.findings.append(ManualStep(item.line, item.dotted, "imported but not used; remove it"))

    def _star(self, star: ImportBinding) -> None:
        imported_names = [name for name in star_import_names(star.dotted) if name in self.survey.loose]
        for name in imported_names:
            result = self.lookup(f"{star.dotted}.{name}")
            assert result is not None
            local = result.name if result.name not in self.survey.bound else name
            self.names[f"*{name}"] = local
            self._add_import(result, local)
        self.gone_stars.add(star.dotted)
        bound_names = {*imported_names, *dir(builtins)}
        for name, line in self.survey.loose.items():
            if name not in bound_names:
                self.findings.append(ManualStep(line, name, f"it may come from `from {star.dotted} import *`"))

    def _add_import(self, replacement: PorticoName, local: str) -> None:
        self.needed.setdefault(replacement.module, {})[replacement.name] = local

    def imports(self) -> list[cst.BaseSmallStatement]:
        """Return the import statements to add."""
        lines = [f"import {module}" for module in sorted(self.whole)]
        for module, names in sorted(self.needed.items()):
            listed = ", ".join(n if n == local else f"{n} as {local}" for n, local in sorted(names.items()))
            lines.append(f"from {module} import {listed}")
        return [statement for line in lines for statement in _parse_line(line)]


class RewriteTransformer(cst.CSTTransformer):
    """Applies a RewritePlan to the tree."""

    METADATA_DEPENDENCIES = (QualifiedNameProvider, ParentNodeProvider)

    def __init__(self, plan: RewritePlan) -> None:
        super().__init__()
        self._plan = plan
        self._placed = False

    # Imports

    def leave_SimpleStatementLine(self, original: cst.SimpleStatementLine, updated: Any) -> Any:
        """Replace the first removed import with all new ones; comments stay in place."""
        body: list[cst.BaseSmallStatement] = []
        touched = False
        for before, after in zip(original.body, updated.body, strict=True):
            stripped = self._strip_import(before, after)
            touched = touched or stripped is not after
            if stripped is not None:
                body.append(stripped)
        if not touched:
            return updated
        added: list[cst.BaseSmallStatement] = []
        if not self._placed and self._at_top(original):
            # All new imports in one place, the first rewritten one; formatters sort them later.
            added, self._placed = self._plan.imports(), True
        elif not self._at_top(original):
            added = self._local_imports(original)
        if not added and not body:
            # Comments above a removed import may be a license header or a section title, so they
            # stay.
            return cst.RemoveFromParent() if not updated.leading_lines else _comments(updated)
        lines: list[Any] = [cst.SimpleStatementLine([item]) for item in added]
        if body:
            body[-1] = body[-1].with_changes(semicolon=cst.MaybeSentinel.DEFAULT)
            lines.append(cst.SimpleStatementLine(body))
        lines[0] = lines[0].with_changes(leading_lines=updated.leading_lines)
        where = 0 if not body else -1
        lines[where] = lines[where].with_changes(trailing_whitespace=updated.trailing_whitespace)
        return cst.FlattenSentinel(lines)

    def _at_top(self, node: cst.CSTNode) -> bool:
        return isinstance(self.get_metadata(ParentNodeProvider, node), cst.Module)

    def _local_imports(self, line: cst.SimpleStatementLine) -> list[cst.BaseSmallStatement]:
        """Return the replacements for an import in a function or an `if`, limited to the names it binds."""
        import_lines: list[str] = []
        for node in line.body:
            for local, dotted in _bindings(node):
                result = self._plan.lookup(dotted)
                if (local, dotted) in self._plan.gone and result is not None:
                    name = self._plan.names.get(dotted, result.name)
                    called = result.name if result.name == name else f"{result.name} as {name}"
                    import_lines.append(f"from {result.module} import {called}")
                elif (local, dotted) in self._plan.gone:
                    used = sorted({w.module for d, w in self._plan.attributes.items() if d.startswith(dotted + ".")})
                    import_lines += [f"import {module}" for module in used]
        return [statement for item in import_lines for statement in _parse_line(item)]

    def _strip_import(
        self, before: cst.BaseSmallStatement, after: cst.BaseSmallStatement
    ) -> cst.BaseSmallStatement | None:
        """Return what remains of an import, or None."""
        if isinstance(before, cst.ImportFrom) and isinstance(before.names, cst.ImportStar):
            home = "" if before.module is None else _dotted_name(before.module)
            return None if home in self._plan.gone_stars else after
        if not isinstance(before, cst.Import | cst.ImportFrom) or not isinstance(after, cst.Import | cst.ImportFrom):
            return after
        stays = [binding not in self._plan.gone for binding in _bindings(before)]
        if all(stays):
            return after
        names: Sequence[cst.ImportAlias] = after.names  # type: ignore[assignment]
        left = [name for name, keep in zip(names, stays, strict=True) if keep]
        if not left:
            return None
        left[-1] = left[-1].with_changes(comma=cst.MaybeSentinel.DEFAULT)
        return after.with_changes(names=left)

    def visit_Import(self, node: cst.Import) -> bool:
        return False

    def visit_ImportFrom(self, node: cst.ImportFrom) -> bool:
        return False

    # Names

    def leave_Name(self, original: cst.Name, updated: Any) -> Any:
        dotted = self._foreign_name(original)
        if dotted in self._plan.names and not self._is_keyword(original):
            return updated.with_changes(value=self._plan.names[dotted])
        if f"*{original.value}" in self._plan.names and not self._is_resolved(original) and self._is_free(original):
            return updated.with_changes(value=self._plan.names[f"*{original.value}"])
        return updated

    def leave_Attribute(self, original: cst.Attribute, updated: Any) -> Any:
        attribute = self._plan.attributes.get(self._foreign_name(original) or "")
        if attribute is not None:
            return cst.parse_expression(f"{attribute.module}.{attribute.name}")
        clients = self._plan.clients
        if original in clients.renamed:
            return updated.with_changes(attr=cst.Name(clients.renamed[original]))
        if original not in clients.fields:
            return updated
        mark = "'" if self._in_double_quotes(original) else '"'
        index = cst.SubscriptElement(cst.Index(cst.SimpleString(f"{mark}{original.attr.value}{mark}")))
        return cst.Subscript(updated.value, [index], lpar=updated.lpar, rpar=updated.rpar)

    def _in_double_quotes(self, node: cst.CSTNode) -> bool:
        """Return whether the node is in an f-string that a double quote would end, before Python 3.12."""
        parent = self.get_metadata(ParentNodeProvider, node, None)
        while parent is not None:
            if isinstance(parent, cst.FormattedString):
                return '"' in parent.start
            parent = self.get_metadata(ParentNodeProvider, parent, None)
        return False

    def leave_SimpleString(self, original: cst.SimpleString, updated: Any) -> Any:
        """Rewrite names in a quoted annotation."""
        if not self._is_annotation(original):
            return updated
        text = original.value
        for dotted, local in self._plan.names.items():
            text = re.sub(rf"\b{re.escape(dotted.lstrip('*').rpartition('.')[2])}\b", local, text)
        return updated if text == original.value else updated.with_changes(value=text)

    def _is_annotation(self, node: cst.CSTNode) -> bool:
        parent = self.get_metadata(ParentNodeProvider, node, None)
        while parent is not None and not isinstance(parent, cst.BaseStatement | cst.Module | cst.Call):
            if isinstance(parent, cst.Annotation):
                return True
            parent = self.get_metadata(ParentNodeProvider, parent, None)
        return False

    def _is_keyword(self, node: cst.Name) -> bool:
        parent = self.get_metadata(ParentNodeProvider, node, None)
        return isinstance(parent, cst.Arg) and parent.keyword is node

    def _is_free(self, node: cst.Name) -> bool:
        parent = self.get_metadata(ParentNodeProvider, node, None)
        return not self._is_keyword(node) and not (isinstance(parent, cst.Attribute) and parent.attr is node)

    def _is_resolved(self, node: cst.CSTNode) -> bool:
        return bool(self.get_metadata(QualifiedNameProvider, node, set()))

    def _foreign_name(self, node: cst.CSTNode) -> str | None:
        return resolve_foreign_name(self.get_metadata(QualifiedNameProvider, node, set()))

    # Calls

    def leave_Call(self, original: cst.Call, updated: cst.Call) -> cst.BaseExpression:
        dotted = self._foreign_name(original.func) or ""
        if self._plan.rewrites_transport(dotted):
            return transport_target(dotted, updated) or updated
        if original in self._plan.clients.raw_calls and isinstance(updated.func, cst.Attribute):
            plain = updated.with_changes(func=updated.func.with_changes(attr=cst.Name("call_tool")))
            return _add_argument(plain, "raise_on_error", "False")
        method = original.func.attr.value if isinstance(original.func, cst.Attribute) else ""
        if method == "tool":
            return _with_task_mode(updated)
        if method in ("run", "run_async") and not self._plan.survey.compat:
            return translate_run(updated)
        if method in RENAMED_KEYWORDS and not self._plan.survey.compat:
            return translate_keyword(updated, method)
        name = dotted.rpartition(".")[2]
        starred = original.func.value if isinstance(original.func, cst.Name) else ""
        is_star = starred in _SERVERS and f"*{starred}" in self._plan.names
        if is_star or (name in _SERVERS and lookup(dotted) is not None):
            return self._server(updated, starred if is_star else name)
        if dotted.startswith(_TYPES) and lookup(dotted) is not None:
            return _content(updated, name)
        if name == "TaskConfig" and lookup(dotted) is not None:
            return _with_task_mode(updated)
        if maker := _find_factory(dotted):
            return updated.with_changes(func=cst.parse_expression(maker))
        return updated

    def _server(self, call: cst.Call, name: str) -> cst.Call:
        """Return a server constructor without unsupported options, which are reported."""
        remaining = []
        for arg in call.args:
            option = "" if arg.keyword is None else arg.keyword.value
            if option not in UNSUPPORTED[name]:
                renamed = None if self._plan.survey.compat else SERVER_OPTION_NAMES.get(option)
                remaining.append(arg if renamed is None else arg.with_changes(keyword=cst.Name(renamed)))
        return _with_args(call, remaining)


# Portico's values of `task=` and `mode=`. FastMCP's `task=True` means that a client may request a task.
_TASK_MODES = {"True": '"optional"', "False": '"never"', '"forbidden"': '"never"', "'forbidden'": "'never'"}


def _with_task_mode(call: cst.Call) -> cst.Call:
    args = []
    for arg in call.args:
        if arg.keyword is not None and arg.keyword.value in ("task", "mode"):
            mode = _TASK_MODES.get(getattr(arg.value, "value", ""))
            arg = arg if mode is None else arg.with_changes(value=cst.SimpleString(mode))
        args.append(arg)
    return call.with_changes(args=args)


# The parameters of the transports, in order, and the type of the equivalent configuration entry.
_TRANSPORTS: dict[str, tuple[tuple[str, ...], str]] = {
    "FastMCPTransport": (("mcp",), ""),
    "StdioTransport": (("command", "args", "env", "cwd"), ""),
    "StreamableHttpTransport": (("url", "headers"), ""),
    "SSETransport": (("url", "headers"), "sse"),
}
# Options that do not affect which server is used.
_TRANSPORT_DEFAULTS = ("keep_alive", "raise_exceptions")


def transport_target(dotted: str, call: cst.Call) -> cst.BaseExpression | None:
    """Return the Portico Client target that replaces a transport call, or None."""
    if not dotted.startswith("fastmcp.client") or dotted.rpartition(".")[2] not in _TRANSPORTS:
        return None
    names, kind = _TRANSPORTS[dotted.rpartition(".")[2]]
    arguments_by_name: dict[str, cst.BaseExpression] = {}
    for at, arg in enumerate(call.args):
        name = arg.keyword.value if arg.keyword is not None else names[at] if at < len(names) else ""
        if arg.star or (name not in names and name not in _TRANSPORT_DEFAULTS):
            return None
        if name in names:
            arguments_by_name[name] = arg.value
    if names[0] not in arguments_by_name:
        return None
    if len(names) == 1 or (names[0] == "url" and len(arguments_by_name) == 1 and not kind):
        return arguments_by_name[names[0]]
    if kind:
        arguments_by_name["type"] = cst.SimpleString(f'"{kind}"')
    return cst.Dict(
        [cst.DictElement(cst.SimpleString(f'"{name}"'), value) for name, value in arguments_by_name.items()]
    )


def _names_used(code: str) -> tuple[set[str], set[str]]:
    """Return the names that a file uses, including those in strings, and the dotted names."""
    names: set[str] = set()
    chains: set[str] = set()
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Name):
            names.add(node.id)
        elif isinstance(node, ast.Attribute):
            chains.add(ast.unparse(node))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            names.update(re.findall(r"\w+", node.value))
            chains.update(re.findall(r"portico[\w.]+", node.value))
    return names, chains


def _find_factory(dotted: str) -> str | None:
    return REPLACEMENT_FACTORIES.get(dotted.rpartition(".")[2]) if lookup(dotted) is not None else None


def _content(call: cst.Call, name: str) -> cst.Call:
    """Rewrite a content block: Portico's classes imply their type and use snake_case names."""
    remaining = []
    for arg in call.args:
        keyword = "" if arg.keyword is None else arg.keyword.value
        if keyword not in ("type", "result_type", "resultType"):
            named = _snake(keyword)
            remaining.append(arg if named == keyword else arg.with_changes(keyword=cst.Name(named)))
    new_call = _with_args(call, remaining)
    if name != "CallToolResult" or any(arg.keyword and arg.keyword.value == "is_error" for arg in new_call.args):
        return new_call
    return _add_argument(new_call, "is_error", "False")


def _add_argument(call: cst.Call, keyword: str, value: str) -> cst.Call:
    """Return the call with one more argument, formatted like the last one."""
    argument = cst.Arg(cst.Name(value), keyword=cst.Name(keyword), equal=_TIGHT)
    if call.args and isinstance(call.args[-1].comma, cst.Comma):
        last = call.args[-1].comma
        between = call.args[-2].comma if len(call.args) > 1 else _separator(call)
        new_args = [*call.args[:-1], call.args[-1].with_changes(comma=between)]
        return call.with_changes(args=[*new_args, argument.with_changes(comma=last)])
    return call.with_changes(args=[*_with_trailing_comma(call.args), argument])


def _separator(call: cst.Call) -> cst.Comma:
    """Return the separator between two arguments, following the layout of the first one."""
    if isinstance(call.whitespace_before_args, cst.ParenthesizedWhitespace):
        return cst.Comma(whitespace_after=call.whitespace_before_args)
    return cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))


_TIGHT = cst.AssignEqual(cst.SimpleWhitespace(""), cst.SimpleWhitespace(""))


def _with_trailing_comma(args: Sequence[cst.Arg]) -> list[cst.Arg]:
    """Return the arguments with a comma after the last one."""
    if not args or isinstance(args[-1].comma, cst.Comma):
        return list(args)
    return [*args[:-1], args[-1].with_changes(comma=cst.Comma(whitespace_after=cst.SimpleWhitespace(" ")))]


def _snake(name: str) -> str:
    return re.sub(r"(?<=[a-z])([A-Z])", lambda match: f"_{match[1].lower()}", name).removeprefix("_")


def _with_args(call: cst.Call, remaining: list[cst.Arg]) -> cst.Call:
    if len(remaining) == len(call.args):
        return call.with_changes(args=remaining)
    if remaining and remaining[-1] is not call.args[-1]:
        remaining[-1] = remaining[-1].with_changes(comma=call.args[-1].comma)
    return call.with_changes(args=remaining)


def resolve_foreign_name(names: Iterable[Any]) -> str | None:
    """Return the full FastMCP or SDK name that a name resolves to through an import, or None."""
    for item in names:
        if item.source is QualifiedNameSource.IMPORT and is_foreign(item.name):
            return str(item.name)
    return None


def _inside_longer(survey: ImportVisitor, node: cst.CSTNode) -> bool:
    """Return whether the node is a prefix of a longer name: `mcp` in `mcp.types.TextContent` is not a use."""
    parent = survey.get_metadata(ParentNodeProvider, node, None)
    return isinstance(parent, cst.Attribute) and parent.value is node and survey._foreign_name(parent) is not None


def _bindings(node: cst.BaseSmallStatement) -> list[tuple[str, str]]:
    if isinstance(node, cst.Import):
        return [(_local(name) or _dotted_name(name.name), _dotted_name(name.name)) for name in node.names]
    if isinstance(node, cst.ImportFrom) and not isinstance(node.names, cst.ImportStar) and node.module is not None:
        home = _dotted_name(node.module)
        return [(_local(name) or _dotted_name(name.name), f"{home}.{_dotted_name(name.name)}") for name in node.names]
    return []


def _local(alias: cst.ImportAlias) -> str | None:
    return alias.asname.name.value if alias.asname is not None and isinstance(alias.asname.name, cst.Name) else None


def _dotted_name(node: cst.CSTNode) -> str:
    if isinstance(node, cst.Attribute):
        return f"{_dotted_name(node.value)}.{node.attr.value}"
    return node.value if isinstance(node, cst.Name) else ""


def _parse_line(line: str) -> Sequence[cst.BaseSmallStatement]:
    statement = cst.parse_statement(line)
    assert isinstance(statement, cst.SimpleStatementLine)
    return statement.body


def _comments(line: cst.SimpleStatementLine) -> Any:
    """Return a statement that preserves only the leading comments."""
    if not any(leading_line.comment for leading_line in line.leading_lines):
        return cst.RemoveFromParent()
    return line.with_changes(body=[cst.Pass()])
