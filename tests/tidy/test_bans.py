"""What is banned is allowed only where these lists say, each time for the reason given."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from tests.tidy.sources import Module, nothing, package_modules

NOQA = re.compile(r"#\s*noqa(?P<rules>: [A-Z]+[0-9]+(, [A-Z]+[0-9]+)*)?(?P<reason> -{1,2} \S+)?")

# linter rule -> file -> why the rule may be lifted there
LIFTED: dict[str, dict[str, str]] = {
    "T201": {"loadgen/mock_worker.py": "whoever starts the mock fleet waits for its ready line"},
    "SIM115": {"indexer/warm_start.py": "a file that is written piece by piece, between other work"},
    "TID251": {
        "router/wire/openai.py": "the standard reader takes NaN, Infinity and lone surrogates, as engines do",
        "router/tokens/local/plain_json.py": "chat templates print JSON as the standard library does",
        "router/app.py": "the shell's one clock: the event loop's own counts whole milliseconds",
        "loadgen/mock_process.py": "the mock fleet is a shell: its events and answers carry wall time",
    },
}

# file -> why it may make tasks without start_task
TASKS: dict[str, str] = {
    "router/tasks.py": "start_task itself",
    "router/client_connection.py": "the connection holds its task and logs what fails",
    "router/dialing.py": "attempts are held until one has opened; the last one's failure is reported",
    "router/tls_listener.py": "the listener holds its handshakes; failing is ordinary",
    "router/host_names.py": "a lookup is held by its name; failing is ordinary, and told to all who wait",
}

# file -> why an exception of any kind may be caught there
BROAD_EXCEPTS: dict[str, str] = {
    "router/client_connection.py": "the boundary: a defect in one request answers 500 and is logged",
    "router/admin/app.py": "the boundary: a defect answers 500 and is logged, the gateway goes on",
    "indexer/http.py": "the boundary: a defect answers 500 and is logged, the index goes on",
    "router/fleet/watching.py": "the boundary: a defect in one look at a worker is logged, looking goes on",
    "router/app.py": "what was opened is given back before the error goes on",
    "loadgen/mock_worker.py": "what was started is ended before the error goes on",
    "router/tokens/local/loading.py": "tokenizers raises plain Exception for a file that it can't read",
}

TASK_MAKERS = {"create_task", "ensure_future", "TaskGroup"}


def test_linter_rules_are_lifted_with_a_reason() -> None:
    nothing(
        f"{module.name}: {comment.group()}"
        for module in package_modules()
        for comment in NOQA.finditer(module.text)
        if not (comment["rules"] and comment["reason"])
    )


def test_bans_are_lifted_only_where_listed() -> None:
    lifted = {
        (rule, module.name)
        for module in package_modules()
        for comment in NOQA.finditer(module.text)
        for rule in (comment["rules"] or "").removeprefix(": ").split(", ")
        if rule in LIFTED
    }
    assert lifted == {(rule, name) for rule, names in LIFTED.items() for name in names}


def test_tasks_are_made_only_where_listed() -> None:
    """A task that nobody holds may vanish, and one that nobody awaits fails in silence."""
    assert {module.name for module in package_modules() if makes_tasks(module)} == set(TASKS)


def makes_tasks(module: Module) -> bool:
    return any(isinstance(node, ast.Attribute) and node.attr in TASK_MAKERS for node in ast.walk(module.tree))


def test_broad_excepts_are_listed() -> None:
    assert {module.name for module in package_modules() if any(broad_excepts(module))} == set(BROAD_EXCEPTS)


def broad_excepts(module: Module) -> Iterator[ast.ExceptHandler]:
    for node in ast.walk(module.tree):
        if isinstance(node, ast.ExceptHandler):
            caught = node.type.elts if isinstance(node.type, ast.Tuple) else [node.type]
            names = {name.id for name in caught if isinstance(name, ast.Name)}
            if node.type is None or names & {"Exception", "BaseException"}:
                yield node
