"""Who may do what in etcd: users, roles and key ranges as values, and the steps from what is there to what shall be.

etcd's roles cover keys and nothing else; leases have no owner. What etcd checks of a lease, it checks by the keys that
hang on it, and how much differs: 3.4 lets everybody renew any lease and hang a key of his own on it, 3.7 does not
(`tests/contract/auth/test_roles.py` shows both). So roles confine what somebody can say in the store, not how long
another one's sign of life stays there.
"""

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from orchestrator.store.keys import Keys

ROOT = "root"
"""The user and the role that etcd itself gives everything; both must exist before access control is turned on."""

OWN = "bgplb-"
"""Beginning of the names of all our users and roles. Others are never read, changed or removed."""


class Access(enum.StrEnum):
    """What a role may do with a range of keys."""

    READ = "read"
    WRITE = "write"
    BOTH = "read and write"


@dataclass(frozen=True, slots=True, order=True)
class Range:
    """One key, or with an `end` all keys from `key` up to, but without, that one (etcd's ``range_end``)."""

    key: str
    end: str = ""

    def __str__(self) -> str:
        if not self.end:
            return self.key
        return f"{self.key}*" if self == below(self.key) else f"{self.key} to {self.end}"


def below(prefix: str) -> Range:
    """All keys that start with the prefix, which ends with a slash: '0' is the character after it."""
    return Range(prefix, prefix.removesuffix("/") + "0")


Permissions = Mapping[Range, Access]


@dataclass(frozen=True, slots=True)
class Principal:
    """Somebody who logs in: a user of etcd and the one role that he has.

    With TLS client certificates the user's name is the certificate's common name.
    """

    user: str
    role: str
    permissions: Permissions


@dataclass(frozen=True, slots=True)
class Found:
    """Our users and roles as etcd has them, and whether it has root's; `enabled`: access control is on."""

    users: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """Roles by user; root's too if he is there."""
    roles: Mapping[str, Permissions] = field(default_factory=dict)
    """Permissions by role; of root, which needs none, only whether it is there."""
    enabled: bool = False


@dataclass(frozen=True, slots=True)
class AddRole:
    """Make a role that may do nothing yet."""

    role: str

    def __str__(self) -> str:
        return f"role {self.role}: made"


@dataclass(frozen=True, slots=True)
class Allow:
    """Let a role do something; what it could do with that very range before is replaced."""

    role: str
    range: Range
    access: Access

    def __str__(self) -> str:
        return f"role {self.role}: may {self.access} {self.range}"


@dataclass(frozen=True, slots=True)
class Disallow:
    """Take a range from a role."""

    role: str
    range: Range

    def __str__(self) -> str:
        return f"role {self.role}: may no longer touch {self.range}"


@dataclass(frozen=True, slots=True)
class AddUser:
    """Make a user, with the password that was given for the name, or without one (certificate only)."""

    user: str

    def __str__(self) -> str:
        return f"user {self.user}: made"


@dataclass(frozen=True, slots=True)
class SetPassword:
    """Give a user that is there already the password that was given for the name."""

    user: str

    def __str__(self) -> str:
        return f"user {self.user}: password set"


@dataclass(frozen=True, slots=True)
class GiveRole:
    """Give a user a role."""

    user: str
    role: str

    def __str__(self) -> str:
        return f"user {self.user}: has role {self.role}"


@dataclass(frozen=True, slots=True)
class TakeRole:
    """Take a role from a user."""

    user: str
    role: str

    def __str__(self) -> str:
        return f"user {self.user}: has role {self.role} no more"


@dataclass(frozen=True, slots=True)
class Enable:
    """Turn access control on: from here on everybody has to log in."""

    def __str__(self) -> str:
        return "access control: on"


Step = AddRole | Allow | Disallow | AddUser | SetPassword | GiveRole | TakeRole | Enable


def orchestrator(keys: Keys, name: str) -> Principal:
    """An orchestrator: reads all, writes what contracts call the leader's, and its own kind's signs of life.

    All orchestrators share a role, since a new leader ends the dead one's lease, which takes leave to write every key
    that hangs on it: leader, registration, heartbeat. What agents write, it may not.
    """
    own = "orchestrator"
    written = (
        Range(keys.meta),
        Range(keys.leader),
        Range(keys.epoch_counter),
        below(keys.specs_prefix),
        below(keys.machines_prefix),
        below(keys.histories_prefix),
        below(keys.desired_all_prefix),
        below(keys.requests_prefix),
        below(f"{keys.agents_prefix}{own}/"),
        below(keys.heartbeats(own)),
    )
    permissions = {below(keys.prefix): Access.READ, **dict.fromkeys(written, Access.WRITE)}
    return Principal(f"{OWN}{own}-{name}", f"{OWN}{own}", permissions)


def agent(keys: Keys, role: str, name: str) -> Principal:
    """An agent (role edge or node): it writes under its own name only, and reads its own orders and what it said.

    Reading its registration is what tells it that another live installation has its name; reading its reports, that
    they are as it left them; reading `meta`, whether the store is the one that it obeys.
    """
    permissions = {
        Range(keys.meta): Access.READ,
        Range(keys.agent(role, name)): Access.BOTH,
        Range(keys.heartbeat(role, name)): Access.WRITE,
        below(keys.observed_prefix(role, name)): Access.BOTH,
        below(keys.desired_prefix(role, name)): Access.READ,
    }
    own = f"{OWN}{role}-{name}"
    return Principal(own, own, permissions)


def operator(keys: Keys, name: str) -> Principal:
    """A person at the command line: reads all, and asks; the leader decides."""
    permissions = {
        below(keys.prefix): Access.READ,
        below(keys.requests_prefix): Access.WRITE,
    }
    return Principal(f"{OWN}operator-{name}", f"{OWN}operator", permissions)


def steps(found: Found, wanted: Iterable[Principal], passwords: Iterable[str], *, enable: bool = False) -> list[Step]:
    """What is to be done, in order; nothing where all is right but for passwords, which can't be compared.

    `passwords`: users that a password was given for. Users and roles of ours that nobody wants any more stay: this adds
    and corrects, and an operator who leaves a name out must not lock out a daemon that runs.
    """
    with_password = set(passwords)
    todo: list[Step] = []
    principals = list(wanted)
    roles = {principal.role: principal.permissions for principal in principals}
    for role, permissions in sorted(roles.items()):
        todo += _role_steps(role, found.roles.get(role), permissions)
    if ROOT not in found.roles:
        todo.append(AddRole(ROOT))
    for user, role in [*sorted((principal.user, principal.role) for principal in principals), (ROOT, ROOT)]:
        todo += _user_steps(user, role, found.users.get(user), user in with_password)
    if enable and not found.enabled:
        todo.append(Enable())
    return todo


def _role_steps(role: str, there: Permissions | None, wanted: Permissions) -> list[Step]:
    todo: list[Step] = [] if there is not None else [AddRole(role)]
    has = there or {}
    todo += [Allow(role, range_, access) for range_, access in sorted(wanted.items()) if has.get(range_) != access]
    return todo + [Disallow(role, range_) for range_ in sorted(has) if range_ not in wanted]


def _user_steps(user: str, role: str, there: frozenset[str] | None, with_password: bool) -> list[Step]:
    todo: list[Step] = []
    if there is None:
        todo.append(AddUser(user))
    elif with_password:
        todo.append(SetPassword(user))
    has = there or frozenset()
    if role not in has:
        todo.append(GiveRole(user, role))
    surplus = sorted(has - {role}) if user != ROOT else []
    return todo + [TakeRole(user, other) for other in surplus]
