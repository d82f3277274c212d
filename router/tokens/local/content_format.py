"""Whether a chat template takes a message's content as one text or as a list of parts.

vLLM (0.6.3 to 0.33) looks for a loop over a message's content in the template's syntax tree, and hands over
lists where it finds one. What it finds decides the tokens, so the same is looked for here, blind spots
included: scopes are not told apart, a loop over anything named `content` outside of macros counts, and what
it cannot follow (a message taken apart into several variables) ends the search.
"""

from __future__ import annotations

from collections.abc import Iterator

from jinja2 import nodes

from router.tokens.local.conversation import ContentFormat


def content_format_of(template: nodes.Template) -> ContentFormat:
    """The format that a template's syntax tree asks for."""
    try:
        has_loop = any(_content_loops(template))
    except _NotFollowed:
        has_loop = False
    return ContentFormat.PARTS if has_loop else ContentFormat.STRING


class _NotFollowed(Exception):
    """Something of interest is bound to more than one name, or to none."""


def _content_loops(template: nodes.Template) -> Iterator[bool]:
    """True for each loop over a message's content."""
    messages = {
        _bound_name(loop.target)
        for loop in template.find_all(nodes.For)
        if any(_reads(loop.iter, name) for name in _names_of(template, "messages"))
    }
    parameters = _content_parameters(template, messages)
    for loop in template.find_all(nodes.For):
        names = parameters.get(id(loop), {"content"})
        is_named = isinstance(loop.iter, nodes.Name) and loop.iter.name in names
        if is_named or any(_reads(loop.iter, name, "content") for name in messages):
            _bound_name(loop.target)
            yield True


def _bound_name(target: nodes.Node) -> str:
    if not isinstance(target, nodes.Name):
        raise _NotFollowed
    return target.name


def _names_of(template: nodes.Template, name: str) -> set[str]:
    """`name` and all variables that are set to it, or to a slice or a filtering of it."""
    names = {name}
    waiting = [name]
    while waiting:
        source = waiting.pop()
        for assignment in template.find_all(nodes.Assign):
            if _reads(assignment.node, source) and (bound := _bound_name(assignment.target)) not in names:
                names.add(bound)
                waiting.append(bound)
    return names


def _content_parameters(template: nodes.Template, messages: set[str]) -> dict[int, set[str]]:
    """For each loop inside a macro (by identity), the macro's parameters that a message's content is passed
    to."""
    found: dict[int, set[str]] = {}
    for macro in template.find_all(nodes.Macro):
        parameters = {
            parameter
            for call in template.find_all(nodes.Call)
            if isinstance(call.node, nodes.Name) and call.node.name == macro.name
            for parameter, argument in _arguments(call, macro)
            if any(_reads(argument, name, "content") for name in messages)
        }
        for loop in macro.find_all(nodes.For):
            if parameters or id(loop) not in found:
                found[id(loop)] = parameters
    return found


def _arguments(call: nodes.Call, macro: nodes.Macro) -> Iterator[tuple[str, nodes.Expr]]:
    names = [parameter.name for parameter in macro.args]
    yield from zip(names, call.args, strict=False)
    for keyword in call.kwargs:
        if keyword.key in names:
            yield keyword.key, keyword.value


def _reads(node: nodes.Node | None, name: str, key: str | None = None) -> bool:
    """Whether an expression is the variable `name`, or its attribute `key`: itself, sliced, filtered,
    tested."""
    while (inner := _applied_to(node)) is not None:
        node = inner
    if key is None:
        return isinstance(node, nodes.Name) and node.ctx == "load" and node.name == name
    if isinstance(node, nodes.Getattr):
        return node.attr == key and _reads_itself(node.node, name)
    if isinstance(node, nodes.Getitem):
        is_key = isinstance(node.arg, nodes.Const) and node.arg.value == key
        return is_key and _reads_itself(node.node, name)
    return False


def _applied_to(node: nodes.Node | None) -> nodes.Node | None:
    """What a filter, a test or a slice is applied to; None for other expressions."""
    if isinstance(node, nodes.Filter | nodes.Test):
        return node.node
    if isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Slice):
        return node.node
    return None


def _reads_itself(node: nodes.Node, name: str) -> bool:
    return isinstance(node, nodes.Name) and node.ctx == "load" and node.name == name
