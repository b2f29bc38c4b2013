"""Which programs the product may start: a short list, and no way around it."""

import ast

from tests.style.banned import dotted, imported_names
from tests.style.sources import Finding, Source

ALLOWED = frozenset({"nft", "ip", "wireguard-go", "conntrack"})
# The names of a file's own table of what it may start.
GUARDS = frozenset({"PROGRAMS", "PACKAGES"})
STARTERS = frozenset(
    {"asyncio.create_subprocess_exec"}
    | {f"subprocess.{name}" for name in ("run", "Popen", "call", "check_call", "check_output")}
)


def literal_program(call: ast.Call, constants: dict[str, str]) -> str | None:
    """The program that a call starts, if it is written in the call or as a constant of the file."""
    first = call.args[0] if call.args else None
    if isinstance(first, ast.List | ast.Tuple) and first.elts:
        first = first.elts[0]
    if isinstance(first, ast.Constant) and isinstance(first.value, str):
        return first.value
    return constants.get(first.id) if isinstance(first, ast.Name) else None


def module_constants(tree: ast.Module) -> dict[str, str]:
    """Names given a string at the top of the file."""
    constants = {}
    for node in tree.body:
        targets = (
            node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        )
        value = node.value if isinstance(node, ast.Assign | ast.AnnAssign) else None
        if isinstance(value, ast.Constant) and isinstance(value.value, str):
            constants.update({target.id: value.value for target in targets if isinstance(target, ast.Name)})
    return constants


def guarded_programs(tree: ast.Module) -> frozenset[str] | None:
    """What a top-level `PROGRAMS` (strings) or `PACKAGES` (program to package) lists, if the file compares
    with it by `in` or `not in`; None otherwise."""
    compared = {
        side.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Compare) and any(isinstance(test, ast.In | ast.NotIn) for test in node.ops)
        for side in node.comparators
        if isinstance(side, ast.Name)
    }
    for node in tree.body:
        targets = (
            node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        )
        names = {target.id for target in targets if isinstance(target, ast.Name)}
        value = node.value if isinstance(node, ast.Assign | ast.AnnAssign) else None
        if value is not None and names & compared & GUARDS:
            parts = value.keys if isinstance(value, ast.Dict) else list(ast.walk(value))
            strings = (part.value for part in parts if isinstance(part, ast.Constant))
            return frozenset(text for text in strings if isinstance(text, str))
    return None


def started_programs(source: Source) -> list[Finding]:
    """Process starts whose program is not on the list, or not to be read off the file.

    A file with one starter for several programs keeps a table of them (GUARDS) and compares with it.
    """
    tree = source.tree
    names, constants, guarded = imported_names(tree), module_constants(tree), guarded_programs(tree)
    found = [
        Finding(source.path, 1, f"the table holds {program!r}, which the product may not start")
        for program in sorted((guarded or frozenset()) - ALLOWED)
    ]
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Call) and dotted(node.func, names) in STARTERS):
            continue
        program = literal_program(node, constants)
        if program is None and guarded is None:
            found.append(
                Finding(source.path, node.lineno, "starts a program that cannot be told: compare it with PROGRAMS")
            )
        elif program is not None and program not in ALLOWED:
            found.append(Finding(source.path, node.lineno, f"starts {program!r}: only {', '.join(sorted(ALLOWED))}"))
    return found
