"""The lint for calls that code which also runs in virtual time must not make.

Time, chance, sockets, processes: each comes in through a port, and only the files
named here, the adapters behind those ports, may touch the real thing.
"""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatch

from tests.style.sources import Finding, Source

OUTERMOST = (
    "orchestrator/clock.py",
    "orchestrator/wiring.py",
    "orchestrator/wiring/*",
    "orchestrator/cli/*",
    "deploy/lab/*",
)
ADAPTERS = (
    "dataplane/*.py",
    "birdctl/client.py",
    "orchestrator/admin.py",
    "orchestrator/store/etcd*.py",
    "orchestrator/http*",
)
# In a package of adapters, these only compute.
PURE = ("dataplane/diff*.py", "dataplane/model.py", "dataplane/errors.py")


@dataclass(frozen=True)
class Ban:
    """One means that is banned outside the files that are its home.

    `calls` are dotted names as they are after imports are resolved; a name that ends in a dot stands for
    everything below it. `methods` are attribute names banned on whatever object.
    """

    what: str
    instead: str
    calls: tuple[str, ...]
    homes: tuple[str, ...]
    methods: tuple[str, ...] = ()


BANS = (
    Ban(
        "reads or waits for real time",
        "take a Clock (fsm/ports.py) as a parameter",
        (
            "time.",
            "asyncio.sleep",
            "datetime.datetime.now",
            "datetime.datetime.utcnow",
            "datetime.datetime.today",
            "datetime.date.today",
        ),
        # The reader of the kernel's route messages is synchronous: it can wait only by the loop's own timer.
        (*OUTERMOST, "dataplane/events.py", "dataplane/due.py"),
        methods=("call_later", "call_at"),
    ),
    Ban(
        "watches a file descriptor",
        "use dataplane/readable.py: uvloop forgets one that has an error",
        (),
        ("dataplane/readable.py",),
        methods=("add_reader", "add_writer"),
    ),
    Ban(
        "is left to chance",
        "take the value, or what makes it, as a parameter",
        ("random.", "secrets.", "os.urandom", "uuid.uuid1", "uuid.uuid4"),
        ("dataplane/*.py", *OUTERMOST),
    ),
    Ban(
        "opens a socket",
        "go through an adapter",
        (
            "socket.",
            "socketserver.",
            "http.server.",
            "http.client.",
            "urllib.request.",
            "asyncio.open_connection",
            "asyncio.open_unix_connection",
            "asyncio.start_server",
            "asyncio.start_unix_server",
        ),
        OUTERMOST + ADAPTERS,
        methods=("create_connection", "create_datagram_endpoint", "create_unix_connection"),
    ),
    Ban(
        "starts a process",
        "go through an adapter",
        (
            "subprocess.",
            "multiprocessing.",
            "asyncio.create_subprocess_exec",
            "os.fork",
            "os.posix_spawn",
            "os.execv",
            "os.execve",
            "os.execvp",
            "os.execvpe",
            "os.execl",
            "os.spawnv",
            "pty.",
        ),
        ("dataplane/*.py", *OUTERMOST),
    ),
    Ban(
        "starts a shell",
        "give a list of arguments",
        (
            "os.system",
            "os.popen",
            "asyncio.create_subprocess_shell",
            "subprocess.getoutput",
            "subprocess.getstatusoutput",
        ),
        (),
    ),
    Ban("speaks gRPC", "use the store's port", ("grpc.",), ("orchestrator/store/etcd*.py", "orchestrator/wiring*")),
    Ban("speaks netlink", "use dataplane", ("pyroute2.",), ("dataplane/*.py", "deploy/lab/*")),
)


def imported_names(tree: ast.Module) -> dict[str, str]:
    """What each imported name in the file stands for: {'sleep': 'asyncio.sleep', 't': 'time'}."""
    names: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                names[alias.asname or alias.name.split(".")[0]] = (
                    alias.name if alias.asname else alias.name.split(".")[0]
                )
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            for alias in node.names:
                names[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    return names


def dotted(node: ast.expr, names: dict[str, str]) -> str | None:
    """The full dotted name that an expression stands for, as far as imports tell."""
    if isinstance(node, ast.Name):
        return names.get(node.id)
    if isinstance(node, ast.Attribute):
        base = dotted(node.value, names)
        return f"{base}.{node.attr}" if base else None
    return None


def is_banned(name: str, ban: Ban) -> bool:
    """Whether a dotted name is one that the ban lists, or below one that ends in a dot."""
    return any(name == call or (call.endswith(".") and f"{name}.".startswith(call)) for call in ban.calls)


def is_home(path: str, ban: Ban) -> bool:
    """Whether a file is where the banned means may be used."""
    return any(fnmatch(path, home) for home in ban.homes) and not any(fnmatch(path, pure) for pure in PURE)


def used_names(source: Source) -> Iterator[tuple[int, str]]:
    """Every imported module or name, and every use of one, with its line."""
    tree = source.tree
    names = imported_names(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)
        elif isinstance(node, ast.Attribute):
            name = dotted(node, names)
            if name:
                yield node.lineno, name


def banned_calls(source: Source) -> list[Finding]:
    """Every use of a banned means outside its home, one finding a line and ban."""
    found: dict[tuple[int, str], Finding] = {}
    for ban in BANS:
        if is_home(source.path, ban):
            continue
        for line, name in used_names(source):
            if is_banned(name, ban):
                found.setdefault((line, ban.what), Finding(source.path, line, f"{name} {ban.what}: {ban.instead}"))
        for node in ast.walk(source.tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in ban.methods:
                text = f".{node.func.attr}() {ban.what}: {ban.instead}"
                found.setdefault((node.lineno, ban.what), Finding(source.path, node.lineno, text))
    return [*found.values(), *shell_arguments(source), *loop_clocks(source)]


def shell_arguments(source: Source) -> list[Finding]:
    """`shell=True`, in whatever call and whatever file."""
    return [
        Finding(source.path, node.lineno, "shell=... starts a shell: give a list of arguments")
        for node in ast.walk(source.tree)
        if isinstance(node, ast.Call)
        for keyword in node.keywords
        if keyword.arg == "shell" and not (isinstance(keyword.value, ast.Constant) and keyword.value.value is False)
    ]


def loop_clocks(source: Source) -> list[Finding]:
    """`asyncio.get_running_loop().time()`: the loop's clock is real time by another name."""
    if is_home(source.path, BANS[0]):
        return []
    names = imported_names(source.tree)
    getters = {"asyncio.get_running_loop", "asyncio.get_event_loop"}
    loops = {
        target.id
        for node in ast.walk(source.tree)
        if isinstance(node, ast.Assign)
        and isinstance(node.value, ast.Call)
        and dotted(node.value.func, names) in getters
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    found = []
    for node in ast.walk(source.tree):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "time"):
            continue
        owner = node.func.value
        direct = isinstance(owner, ast.Call) and dotted(owner.func, names) in getters
        if direct or (isinstance(owner, ast.Name) and owner.id in loops):
            found.append(Finding(source.path, node.lineno, f"the loop's time() {BANS[0].what}: {BANS[0].instead}"))
    return found
