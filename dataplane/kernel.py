"""One port for all that :class:`~dataplane.model.KernelState` describes: read it whole, apply a comparison's result."""

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import replace
from typing import Protocol

from dataplane.diff import Op, ReplaceNft, RouteOp, SetSysctl, diff
from dataplane.model import KernelState, Link
from dataplane.netlink import Netlink
from dataplane.nft import Nft
from dataplane.sysctl import Sysctls


class Kernel(Protocol):
    """What reconciliation needs of a kernel."""

    async def read(self, tables: Iterable[int], sysctls: Iterable[str] = ()) -> KernelState:
        """All that is looked at; of sysctls only those named."""
        ...

    async def apply(self, ops: Iterable[Op]) -> None:
        """Perform in order; stops at the first error, with what came before it done.

        Routes and rules that follow one another are written together: of those the others are done, too.
        """
        ...


class LinuxKernel:
    """The kernel of one network namespace."""

    def __init__(self, netlink: Netlink, nft: Nft, sysctls: Sysctls) -> None:
        """All three must be of the same namespace."""
        self.netlink = netlink
        self.nft = nft
        self.sysctls = sysctls

    @classmethod
    def of(
        cls, namespace: str | None = None, make_link: Callable[[Link], Awaitable[None]] | None = None
    ) -> "LinuxKernel":
        """The kernel of that namespace, without a store for old sysctl values."""
        return cls(Netlink(namespace, make_link=make_link), Nft(namespace), Sysctls(namespace))

    async def read(self, tables: Iterable[int], sysctls: Iterable[str] = ()) -> KernelState:
        """See the port."""
        state = await self.netlink.read(tables)
        return replace(state, nft=await self.nft.read(), sysctls=self.sysctls.read(sysctls))

    async def apply(self, ops: Iterable[Op]) -> None:
        """See the port."""
        together: list[RouteOp] = []
        for op in ops:
            if isinstance(op, RouteOp):
                together.append(op)
                continue
            await self.netlink.change_routes(together)
            together = []
            match op:
                case ReplaceNft(ruleset):
                    await self.nft.apply(ruleset)
                case SetSysctl(name, value):
                    self.sysctls.write(name, value)
                case _:
                    await self.netlink.apply((op,))
        await self.netlink.change_routes(together)

    async def close(self) -> None:
        """Close what is kept open."""
        await self.netlink.close()


async def converge(kernel: Kernel, desired: KernelState, tables: Iterable[int]) -> tuple[Op, ...]:
    """Make the kernel as desired; the operations that it took, none when it was so already. Raises KernelError."""
    ops = diff(await kernel.read(tables, desired.sysctls), desired)
    await kernel.apply(ops)
    return ops
