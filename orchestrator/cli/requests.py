"""Asking the leader for something: a request in the store, its answer, and what to do when none comes."""

import uuid
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.cli.environment import CliError, Environment, Exit, with_store
from orchestrator.listing import few

if TYPE_CHECKING:
    from fsm.records import Request
    from orchestrator.config.cli import CliConfig
    from orchestrator.store.keys import Keys
    from orchestrator.store.port import Store

ANSWER_TIMEOUT_S = 10.0
POLL_S = 0.05


def ask_leader(
    env: Environment, config: Path | None, verb: str, subject: str, reason: str, target: str | None = None
) -> str:
    """Put a request and give the leader's answer.

    Raises CliError: NOT_FOUND for a pool or gateway that is not there, REFUSED with the leader's reason, TIMED_OUT when
    nobody answers within 10 s. A request without an answer is taken back: nobody would expect it to be granted later.
    """
    from fsm.records import Request

    if not reason.strip():
        raise CliError(Exit.BAD_INPUT, "the reason is empty; say why, it is kept in the history")

    async def run(store: "Store", cli: "CliConfig") -> "Request":
        from orchestrator.store.keys import Keys

        keys = Keys(cli.etcd.prefix)
        await _check_names(store, keys, verb, subject, target)
        request = Request(
            id=uuid.uuid4().hex,
            verb=verb,
            subject=subject,
            target=target,
            reason=reason.strip(),
            by=cli.name or env.user(),
            at_ms=env.wall_ms(),
        )
        return await _put_and_wait(env, store, keys, request)

    answered = with_store(env, config, run)
    if not answered.accepted:
        raise CliError(Exit.REFUSED, answered.answer)
    return answered.answer


async def _check_names(store: "Store", keys: "Keys", verb: str, subject: str, target: str | None) -> None:
    """A name that nobody has is told at once and needs no leader."""
    from fsm.records import EdgeGatewaySpec
    from orchestrator.store.records import EDGE_GATEWAY_KIND, POOL_KIND, decode

    gateways: set[str] = set()
    for kv in (await store.list(f"{keys.specs_prefix}{EDGE_GATEWAY_KIND}/")).items:
        gateways |= set(decode(kv.value, EdgeGatewaySpec, kv.key).gateways)
    pools_prefix = f"{keys.specs_prefix}{POOL_KIND}/"
    pools = {kv.key.removeprefix(pools_prefix) for kv in (await store.list(pools_prefix)).items}
    if verb.startswith("gateway-"):
        _must_be(subject, gateways, "gateway")
    elif verb in ("drain", "move", "hold", "release"):
        _must_be(subject, pools, "pool")
    if target is not None:
        _must_be(target, gateways, "gateway")


def _must_be(name: str, known: set[str], what: str) -> None:
    if name not in known:
        listed = few(known, "none at all")
        raise CliError(Exit.NOT_FOUND, f"there is no {what} '{name}'; there is {listed}")


async def _put_and_wait(env: Environment, store: "Store", keys: "Keys", request: "Request") -> "Request":
    from fsm.records import Request
    from orchestrator.store.port import CreatedAt, Delete, Indeterminate, ModifiedAt, Put
    from orchestrator.store.records import decode, encode

    key = keys.request(request.id)
    deadline = env.clock.now() + ANSWER_TIMEOUT_S
    try:
        await store.txn([CreatedAt(key, 0)], [Put(key, encode(request))])
    except Indeterminate:
        if await store.get(key) is None:
            raise
    while True:
        kv = await store.get(key)
        if kv is None:
            raise CliError(Exit.REFUSED, f"the request {request.id} was removed from the store before it was answered")
        answer = decode(kv.value, Request, key)
        if answer.answer:
            return answer
        if env.clock.now() >= deadline:
            taken_back = await store.txn([ModifiedAt(key, kv.mod_revision)], [Delete(key)])
            if taken_back.succeeded:
                break
            continue  # answered in this very moment
        await env.clock.sleep(POLL_S)
    text = (
        "no leader answered within 10 s, and the request was taken back; is an orchestrator running ('bgplb status')?"
    )
    raise CliError(Exit.TIMED_OUT, text)
