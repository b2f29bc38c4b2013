"""Reading and changing etcd's users and roles (3.4 and newer), over its gRPC interface."""

from collections.abc import Awaitable, Mapping, Sequence

import grpc
import grpc.aio

from fsm.ports import Clock
from orchestrator.store.auth import (
    OWN,
    ROOT,
    Access,
    AddRole,
    AddUser,
    Allow,
    Disallow,
    Enable,
    Found,
    GiveRole,
    Range,
    SetPassword,
    Step,
    TakeRole,
)
from orchestrator.store.etcd_login import Login, NotConnected, Tls
from orchestrator.store.etcd_members import Member, Members, Metadata
from orchestrator.store.port import Refused
from orchestrator.store.stubs import etcd_pb2 as pb
from orchestrator.store.stubs import etcd_pb2_grpc as rpc

_TYPES = {
    Access.READ: pb.Permission.READ,
    Access.WRITE: pb.Permission.WRITE,
    Access.BOTH: pb.Permission.READWRITE,
}
_ACCESS = {number: access for access, number in _TYPES.items()}
_CALL_S, _ATTEMPT_S = 10.0, 5.0
"""Hashing a password takes etcd some tenths of a second of a slow machine; nobody waits here but a person."""


class EtcdAuth:
    """Users and roles of one cluster; make it by `connect`. Raises what a store raises, and never names a password."""

    def __init__(self, members: Members, enabled: bool) -> None:
        self._members = members
        self.enabled = enabled
        """Whether access control is on."""

    @classmethod
    async def connect(
        cls,
        endpoints: Sequence[str],
        clock: Clock,
        tls: Tls | None = None,
        username: str | None = None,
        password: str | None = None,
    ) -> "EtcdAuth":
        """Find out whether access control is on, and log in if so. Raises `Unavailable`, `Refused`."""
        probe = Members(endpoints, clock, Login(tls), _ATTEMPT_S, _CALL_S)
        try:
            enabled = await _is_enabled(probe)
        finally:
            await probe.close()
        if not enabled:
            username = password = None
        login = Login(tls, username, password)
        return cls(Members(endpoints, clock, login, _ATTEMPT_S, _CALL_S), enabled)

    async def read(self) -> Found:
        """Our users and roles, and root's."""
        users: dict[str, frozenset[str]] = {}
        roles: dict[str, dict[Range, Access]] = {}
        for name in await self._names("users"):
            users[name] = await self._roles_of(name)
        for name in await self._names("roles"):
            roles[name] = await self._permissions_of(name) if name != ROOT else {}
        return Found(users, roles, self.enabled)

    async def _roles_of(self, user: str) -> frozenset[str]:
        async def invoke(member: Member, metadata: Metadata, timeout_s: float) -> frozenset[str]:
            request = pb.AuthUserGetRequest(name=user)
            return frozenset((await member.auth.UserGet(request, metadata=metadata, timeout=timeout_s)).roles)

        return await self._members.call(f"look at user {user}", invoke, write=False)

    async def _permissions_of(self, role: str) -> dict[Range, Access]:
        async def invoke(member: Member, metadata: Metadata, timeout_s: float) -> dict[Range, Access]:
            answer = await member.auth.RoleGet(pb.AuthRoleGetRequest(role=role), metadata=metadata, timeout=timeout_s)
            return {_range(perm): _ACCESS[perm.permType] for perm in answer.perm}

        return await self._members.call(f"look at role {role}", invoke, write=False)

    async def _names(self, what: str) -> list[str]:
        """Names of users or roles that are ours to look at."""

        async def users(member: Member, metadata: Metadata, timeout_s: float) -> Sequence[str]:
            answer = await member.auth.UserList(pb.AuthUserListRequest(), metadata=metadata, timeout=timeout_s)
            return list(answer.users)

        async def roles(member: Member, metadata: Metadata, timeout_s: float) -> Sequence[str]:
            answer = await member.auth.RoleList(pb.AuthRoleListRequest(), metadata=metadata, timeout=timeout_s)
            return list(answer.roles)

        found = await self._members.call(f"list of {what}", users if what == "users" else roles, write=False)
        return [name for name in found if name == ROOT or name.startswith(OWN)]

    async def accepts(self, user: str, password: str) -> bool:
        """Whether that is the user's password; while access control is off nobody can tell, and it is False."""
        if not self.enabled:
            return False
        request = pb.AuthenticateRequest(name=user, password=password)
        member = self._members.current
        try:
            await member.connected(_ATTEMPT_S)
            await member.auth.Authenticate(request, timeout=_ATTEMPT_S)
        except (grpc.aio.AioRpcError, NotConnected):
            return False  # in doubt it is set again, which does no harm
        return True

    async def do(self, step: Step, passwords: Mapping[str, str]) -> None:
        """Take one step; what another run has done at the same time is fine."""

        def invoke(member: Member, metadata: Metadata, timeout_s: float) -> Awaitable[object]:
            return _send(member.auth, step, passwords, metadata, timeout_s)

        try:
            await self._members.call(str(step), invoke, write=False)
        except Refused as error:
            if "already exist" not in str(error):
                raise
        if isinstance(step, Enable):
            self.enabled = True

    async def close(self) -> None:
        """Close all connections."""
        await self._members.close()


def _send(
    auth: "rpc.AuthAsyncStub", step: Step, passwords: Mapping[str, str], metadata: Metadata, timeout_s: float
) -> Awaitable[object]:
    """The call that a step consists of."""
    match step:
        case AddRole(role):
            return auth.RoleAdd(pb.AuthRoleAddRequest(name=role), metadata=metadata, timeout=timeout_s)
        case Allow(role, range_, access):
            perm = pb.Permission(permType=_TYPES[access], key=_raw(range_.key), range_end=_raw(range_.end))
            allow = pb.AuthRoleGrantPermissionRequest(name=role, perm=perm)
            return auth.RoleGrantPermission(allow, metadata=metadata, timeout=timeout_s)
        case Disallow(role, range_):
            forbid = pb.AuthRoleRevokePermissionRequest(role=role, key=_raw(range_.key), range_end=_raw(range_.end))
            return auth.RoleRevokePermission(forbid, metadata=metadata, timeout=timeout_s)
        case AddUser(user):
            add = pb.AuthUserAddRequest(
                name=user,
                password=passwords.get(user, ""),
                options=pb.UserAddOptions(no_password=user not in passwords),
            )
            return auth.UserAdd(add, metadata=metadata, timeout=timeout_s)
        case SetPassword(user):
            change = pb.AuthUserChangePasswordRequest(name=user, password=passwords[user])
            return auth.UserChangePassword(change, metadata=metadata, timeout=timeout_s)
        case GiveRole(user, role):
            give = pb.AuthUserGrantRoleRequest(user=user, role=role)
            return auth.UserGrantRole(give, metadata=metadata, timeout=timeout_s)
        case TakeRole(user, role):
            take = pb.AuthUserRevokeRoleRequest(name=user, role=role)
            return auth.UserRevokeRole(take, metadata=metadata, timeout=timeout_s)
        case Enable():
            return auth.AuthEnable(pb.AuthEnableRequest(), metadata=metadata, timeout=timeout_s)


async def _is_enabled(members: Members) -> bool:
    """Whether access control is on. etcd 3.4 has no call that says so: a log-in without a password shows it."""

    async def invoke(member: Member, _metadata: Metadata, timeout_s: float) -> bool:
        try:
            await member.auth.Authenticate(pb.AuthenticateRequest(name=ROOT), timeout=timeout_s)
        except grpc.aio.AioRpcError as error:
            details = error.details() or ""
            if "authentication is not enabled" in details:
                return False
            if error.code() is grpc.StatusCode.INVALID_ARGUMENT or "authentication failed" in details:
                return True
            raise
        return True

    return await members.call("look whether access control is on", invoke, write=False)


def _range(perm: pb.Permission) -> Range:
    return Range(perm.key.decode(errors="surrogateescape"), perm.range_end.decode(errors="surrogateescape"))


def _raw(text: str) -> bytes:
    return text.encode(errors="surrogateescape")
