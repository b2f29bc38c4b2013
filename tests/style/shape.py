"""Rules on the shape of files: sizes, names, what the core may import, words that must not appear."""

import ast
import re
from pathlib import PurePosixPath

from tests.style.sources import Finding, Source

FUNCTION_LINES_MAX = 60
FILE_LINES_MAX = 450
LINE_LENGTH_MAX = 120
VAGUE_NAMES = frozenset({"utils", "util", "common", "helpers", "helper", "manager", "managers", "misc"})
# What the core may import: it computes, so this is all it can need.
CORE_IMPORTS = frozenset(
    {
        "__future__",
        "abc",
        "base64",
        "bisect",
        "collections",
        "contextlib",
        "copy",
        "dataclasses",
        "enum",
        "fractions",
        "functools",
        "hashlib",
        "heapq",
        "html",
        "ipaddress",
        "itertools",
        "json",
        "math",
        "operator",
        "re",
        "statistics",
        "string",
        "struct",
        "textwrap",
        "types",
        "typing",
        "fsm",
        "transitions",
    }
)
CORE_BUILTINS = frozenset({"open", "print", "input", "exec", "eval", "breakpoint"})

# Written in halves, so that this file does not hold what it looks for.
FORBIDDEN_WORDS = tuple(
    re.compile(first + second, re.IGNORECASE)
    for first, second in (
        (r"(?<![\w.~-])/wo", r"rk\b"),
        (r"/tmp/br", r"ief"),
        (r"/tmp/bash_", r"jobs"),
        (r"\.\./sha", r"red\b"),
        (r"\.\./\.lib", r"rary\b"),
        (r"/root/\.py", r"env"),
        (r"/opt/wh", r"eels"),
        (r"\bpy", r"pi\.org"),
        (r"python", r"hosted\.org"),
        (r"proxy\.go", r"lang\.org"),
        (r"sum\.go", r"lang\.org"),
        (r"npm", r"js\.org"),
        (r"static\.cra", r"tes\.io"),
        (r"repo1?\.mav", r"en\b"),
        (r"\bdeb\.deb", r"ian\.org"),
        (r"\bclau", r"de\b"),
        (r"anthro", r"pic"),
        (r"chat", r"gpt"),
        (r"language mo", r"dels?\b"),
    )
)


def long_functions(source: Source) -> list[Finding]:
    """Functions over the limit, decorators and docstring included."""
    found = []
    for node in ast.walk(source.tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            lines = (node.end_lineno or node.lineno) - first + 1
            if lines > FUNCTION_LINES_MAX:
                found.append(
                    Finding(source.path, first, f"{node.name} has {lines} lines, at most {FUNCTION_LINES_MAX}")
                )
    return found


def long_file(source: Source) -> list[Finding]:
    """The file, if it is over the limit."""
    lines = len(source.text.splitlines())
    return [Finding(source.path, lines, f"{lines} lines, at most {FILE_LINES_MAX}")] if lines > FILE_LINES_MAX else []


def vague_name(source: Source) -> list[Finding]:
    """The file, if its name or a folder of it says nothing about what is in it."""
    parts = [*PurePosixPath(source.path).parent.parts, PurePosixPath(source.path).stem]
    return [Finding(source.path, 1, f"{part!r} names nothing of the field") for part in parts if part in VAGUE_NAMES]


def core_reaches_out(source: Source) -> list[Finding]:
    """In the core: imports outside its short list, coroutines, and built-ins that do input or output."""
    found = []
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            relative = isinstance(node, ast.ImportFrom) and node.level > 0
            modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""]
            for module in modules:
                if not relative and module.split(".")[0] not in CORE_IMPORTS:
                    found.append(Finding(source.path, node.lineno, f"the core imports {module}"))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in CORE_BUILTINS:
            found.append(Finding(source.path, node.lineno, f"the core calls {node.func.id}()"))
        if isinstance(node, ast.Await | ast.AsyncFor | ast.AsyncWith):
            found.append(Finding(source.path, node.lineno, "the core waits"))
    return found


def forbidden_words(path: str, text: str) -> list[Finding]:
    """Paths of somebody's machine, hosts of package registries, and other words that say where a text comes from."""
    return [
        Finding(path, number, f"holds {match.group(0)!r}")
        for number, line in enumerate(text.splitlines(), 1)
        for pattern in FORBIDDEN_WORDS
        if (match := pattern.search(line))
    ]
