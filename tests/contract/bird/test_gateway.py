"""One suite for BIRD and for its fake: what we ask of a gateway's BIRD."""

import asyncio
from collections import Counter
from ipaddress import ip_address, ip_network
from pathlib import Path

import pytest

from birdctl.apply import Applier
from birdctl.client import BirdClient
from birdctl.commands import Bird, Reconfigure
from birdctl.errors import BirdRefused, BirdTimeout, BirdUnreachable, BirdUnsettled
from birdctl.protocol import Reply
from birdctl.render import Announcements, PoolAnnouncement
from birdctl.replies import Code
from tests.contract.bird.gateways import FakeGateway, Gateway, LoopClock, same_moment, until_seen, until_up
from tests.contract.bird.pair import GATEWAY_SESSION, POOL_4, POOL_6, POOL_B, PROBES

DEADLINE_S = 0.5


def web(announced: bool, *more: PoolAnnouncement) -> Announcements:
    return Announcements((PoolAnnouncement("web-1", (POOL_4, POOL_6), announced), *more))


def b(announced: bool) -> PoolAnnouncement:
    return PoolAnnouncement("b", (POOL_B,), announced)


async def since(bird: Bird) -> str:
    (session,) = [row for row in await bird.protocols() if row.name == GATEWAY_SESSION]
    assert session.up
    return session.since


async def test_announce_and_withdraw_reach_the_neighbour(gateway: Gateway, applier: Applier) -> None:
    first = await applier.announce(web(False))
    assert (first.changed, first.reloaded) == (True, True)
    await until_seen(gateway, set(PROBES), {POOL_4, POOL_6})

    up = await applier.announce(web(True))
    assert (up.changed, up.reloaded) == (True, False)
    assert [(pool.pool, pool.complete, pool.partial) for pool in up.pools] == [("web-1", (GATEWAY_SESSION,), ())]
    await until_seen(gateway, {*PROBES, POOL_4, POOL_6})

    again = await applier.announce(web(True))
    assert (again.changed, again.reloaded) == (False, False)

    down = await applier.announce(web(False))
    assert (down.changed, down.reloaded) == (True, False)
    assert [(pool.complete, pool.partial) for pool in down.pools] == [((), ())]
    await until_seen(gateway, set(PROBES), {POOL_4, POOL_6})


async def test_the_file_is_true_before_and_after(gateway: Gateway, applier: Applier, bird: Bird) -> None:
    """Neither a withdrawal nor an announcement by the fast way is undone by somebody's `configure`."""
    for announced in (True, False, True):
        applied = await applier.announce(web(announced))
        await bird.configure_soft()
        present, absent = ({POOL_4, POOL_6}, set()) if announced else (set(), {POOL_4, POOL_6})
        await until_seen(gateway, set(PROBES) | present, absent)
        after = await applier.announce(web(announced))
        assert not after.changed
        assert after.pools == applied.pools
    assert not (gateway.announce_file.parent / "announce.conf.new").exists()


async def test_a_command_alone_is_undone_by_configure(gateway: Gateway, applier: Applier, bird: Bird) -> None:
    """The habit of BIRD that makes the file the truth; if it changes, the fast way can become simpler."""
    await applier.announce(web(True))
    await bird.disable("bgplb_pool_web_1")
    await until_seen(gateway, {POOL_6}, {POOL_4})
    await bird.configure_soft()
    await until_seen(gateway, {POOL_4, POOL_6})


async def test_a_foreign_hand_is_put_right(gateway: Gateway, bird: Bird) -> None:
    applier = Applier(
        bird, LoopClock(), config_file=gateway.config_file, announce_file=gateway.announce_file, settle_s=1.0
    )
    await applier.announce(web(True))
    await bird.disable("bgplb_pool_web_1")
    put_right = await applier.announce(web(True))
    assert (put_right.changed, put_right.reloaded) == (False, True)
    await until_seen(gateway, {POOL_4, POOL_6})


async def test_who_started_or_configured_it_since_disturbed_it(gateway: Gateway, applier: Applier, bird: Bird) -> None:
    async def at_rest() -> None:
        """BIRD stamps a reconfiguration when it is over, which may be after it was read back."""
        async with asyncio.timeout(10):
            await applier.announce(web(True))
            while not await applier.undisturbed():
                await asyncio.sleep(0.05)
                await applier.announce(web(True))

    assert not await applier.undisturbed(), "nothing was read back yet"
    await at_rest()
    await asyncio.sleep(0.05)  # BIRD's stamps are of milliseconds: two in one are alike
    await bird.configure_soft()
    async with asyncio.timeout(10):
        while await applier.undisturbed():
            await asyncio.sleep(0.05)
    await at_rest()
    await gateway.kill()
    with pytest.raises(BirdUnreachable):
        await applier.undisturbed()
    await gateway.start()
    await until_seen(gateway, {POOL_4, POOL_6})
    assert not await applier.undisturbed()


async def test_enabling_sessions_tells_which_were_off_and_a_bird_that_does_not_answer_is_no_error(
    gateway: Gateway, applier: Applier, bird: Bird
) -> None:
    assert await applier.enable_sessions() == ()
    assert await applier.enable_sessions("edge-9") == (), "it does not know that one"
    await bird.disable(GATEWAY_SESSION)
    assert await applier.enable_sessions("edge-1") == ("edge-1",)
    assert await applier.enable_sessions("edge-1") == ()
    await gateway.kill()
    assert await applier.enable_sessions("edge-1") == ()


async def test_a_reload_names_each_pool_a_few_times_only(short_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once it named all of them for each of them: with a thousand pools that was seconds of work."""
    gateway = FakeGateway(short_folder)
    await gateway.start()
    client = BirdClient(gateway.socket_path, timeout_s=10)
    applier = Applier(
        Bird(client), LoopClock(), config_file=gateway.config_file, announce_file=gateway.announce_file, settle_s=0.01
    )
    many = [PoolAnnouncement(f"p-{n}", (ip_network(f"198.18.0.{n}/32"),), True) for n in range(200)]
    named: Counter[str] = Counter()
    real = PoolAnnouncement.protocols

    def counted(self: PoolAnnouncement) -> tuple[str, ...]:
        named[self.pool] += 1
        return real(self)

    monkeypatch.setattr(PoolAnnouncement, "protocols", counted)
    wanted = Announcements(tuple(many))
    assert (await applier.announce(wanted)).reloaded
    await Bird(client).disable("bgplb_pool_p_7")
    assert (await applier.announce(wanted)).reloaded
    assert max(named.values()) < len(many) / 2
    await client.close()
    await gateway.kill()


async def test_a_new_pool_keeps_the_session_and_a_dropped_one_leaves(
    gateway: Gateway, applier: Applier, bird: Bird
) -> None:
    await applier.announce(web(True))
    before = await since(bird)
    added = await applier.announce(web(True, b(True)))
    assert added.reloaded
    await until_seen(gateway, {POOL_4, POOL_6, POOL_B})
    await applier.announce(Announcements((b(True),)))
    await until_seen(gateway, {POOL_B}, {POOL_4, POOL_6})
    assert same_moment(await since(bird), before)
    assert not [row for row in await bird.protocols() if "web" in row.name]
    assert POOL_4 not in await bird.exported(GATEWAY_SESSION)


async def test_hundreds_of_pools_are_turned_on_and_off_by_commands(gateway: Gateway, applier: Applier) -> None:
    """BIRD drops a connection that brings it more than a kilobyte of commands at once."""

    def many(announced: bool) -> Announcements:
        networks = [ip_network(f"198.18.{n // 256}.{n % 256}/32") for n in range(300)]
        return Announcements(tuple(PoolAnnouncement(f"p-{n}", (net,), announced) for n, net in enumerate(networks)))

    await applier.announce(many(False))
    for announced in (True, False, True):
        applied = await applier.announce(many(announced))
        assert (applied.changed, applied.reloaded) == (True, False)
        assert {pool.complete for pool in applied.pools} == ({(GATEWAY_SESSION,)} if announced else {()})


async def test_a_new_agent_takes_over_what_is_there(gateway: Gateway, applier: Applier, bird: Bird) -> None:
    await applier.announce(web(True))
    before = await since(bird)
    successor = Applier(bird, LoopClock(), config_file=gateway.config_file, announce_file=gateway.announce_file)
    taken = await successor.announce(web(True))
    assert (taken.changed, taken.reloaded) == (False, True)
    assert same_moment(await since(bird), before)
    await until_seen(gateway, {POOL_4, POOL_6})


async def test_without_an_announcement_file_nothing_is_announced(
    gateway: Gateway, applier: Applier, bird: Bird
) -> None:
    await applier.announce(web(True))
    await gateway.kill()
    gateway.announce_file.unlink()
    await gateway.start()
    await until_seen(gateway, set(PROBES), {POOL_4, POOL_6})
    assert not [row for row in await bird.protocols() if row.name.startswith("bgplb_pool")]


async def test_a_restarted_bird_announces_what_the_file_says(gateway: Gateway, applier: Applier) -> None:
    await applier.announce(web(False, b(False)))
    await applier.announce(web(True, b(False)))
    await gateway.kill()
    await gateway.start()
    await until_seen(gateway, {POOL_4, POOL_6}, {POOL_B})


async def test_a_configuration_that_is_refused_leaves_the_last_good_one(
    gateway: Gateway, applier: Applier, bird: Bird
) -> None:
    good = gateway.config_file.read_text()
    before = await since(bird)
    with pytest.raises(BirdRefused, match=r"bird\.conf:\d+:\d+") as caught:
        await applier.configure(good + "\nprotocol nonsense {}\n")
    assert caught.value.code == Code.CONFIGURATION_ERROR
    assert gateway.config_file.read_text() == good
    await bird.check()
    assert same_moment(await since(bird), before)
    assert (await applier.configure(good)).reloaded
    assert not (await applier.configure(good)).reloaded


async def test_a_withdrawal_is_not_held_up_by_a_broken_configuration(
    gateway: Gateway, applier: Applier, bird: Bird
) -> None:
    """Somebody broke another file that BIRD includes; a pool must leave all the same, and stay away."""
    await applier.announce(web(True, b(True)))
    good = gateway.config_file.read_text()
    gateway.config_file.write_text(good + "\nprotocol nonsense {}\n")
    with pytest.raises(BirdRefused):
        await applier.announce(Announcements((b(True),)))
    await until_seen(gateway, {POOL_B}, {POOL_4, POOL_6})
    gateway.config_file.write_text(good)
    await bird.configure_soft()
    await applier.announce(Announcements((b(True),)))
    await until_seen(gateway, {POOL_B}, {POOL_4, POOL_6})


async def test_a_fault_in_our_own_file_puts_the_last_good_one_back(
    gateway: Gateway, applier: Applier, monkeypatch: pytest.MonkeyPatch
) -> None:
    await applier.announce(web(True))
    good = gateway.announce_file.read_text()
    monkeypatch.setattr("birdctl.apply.announcements_text", lambda _: "protocol nonsense {}\n")
    with pytest.raises(BirdRefused, match=r"announce\.conf:1:"):
        await applier.announce(web(True, b(True)))
    assert gateway.announce_file.read_text() == good
    await until_seen(gateway, {POOL_4, POOL_6})


async def test_check_tells_file_and_line_and_changes_nothing(gateway: Gateway, bird: Bird) -> None:
    await bird.check()
    bad = gateway.config_file.with_name("bad.conf")
    bad.write_text("router id 1.1.1.1;\nnonsense;\n")
    with pytest.raises(BirdRefused, match=r"bad\.conf:2"):
        await bird.check(bad)
    with pytest.raises(BirdRefused, match="No such file"):
        await bird.check(gateway.config_file.with_name("absent.conf"))
    assert await bird.configure_soft() in set(Reconfigure)


async def test_enable_and_disable_say_what_they_changed(applier: Applier, bird: Bird) -> None:
    await applier.announce(web(False, b(True)))
    assert await bird.enable("bgplb_pool_web_1", "bgplb_pool_b") == (True, False)
    assert await bird.disable("bgplb_pool_web_1", "bgplb_pool6_web_1") == (True, False)
    assert await bird.enable() == ()
    with pytest.raises(BirdRefused) as caught:
        await bird.enable("bgplb_pool_nobody", "bgplb_pool_web_1")
    assert caught.value.code == Code.NO_PROTOCOL_MATCHES
    # the later ones were given all the same
    assert await bird.enable("bgplb_pool_web_1") == (False,)


async def test_show(bird: Bird, applier: Applier) -> None:
    status = await bird.status()
    assert status.version.startswith("2.")
    assert status.router_id == "10.77.0.1"
    assert status.process
    assert status.last_reconfiguration
    rows = {row.name: row for row in await bird.protocols()}
    assert rows[GATEWAY_SESSION].kind == "BGP"
    assert rows[GATEWAY_SESSION].info.startswith("Established")
    assert rows["bgplb_probe"].kind == "Static"
    assert set(await bird.routes("bgplb_probe6")) == {PROBES[1]}
    assert set(PROBES) <= set(await bird.exported(GATEWAY_SESSION))
    await applier.announce(web(True))
    assert {POOL_4, POOL_6} <= set(await bird.exported(GATEWAY_SESSION))
    (session,) = await bird.bfd_sessions()
    assert session.address == ip_address("10.77.0.0")
    for call in (bird.exported, bird.routes):
        with pytest.raises(BirdRefused) as caught:
            await call("bgplb_nobody")
        assert caught.value.code == Code.PARSE_ERROR


async def test_a_session_that_is_down_exports_nothing(bird: Bird, applier: Applier) -> None:
    await applier.announce(web(True))
    await bird.disable(GATEWAY_SESSION)
    assert await bird.exported(GATEWAY_SESSION) == ()
    applied = await applier.announce(web(True))
    assert [(pool.announced, pool.complete, pool.partial) for pool in applied.pools] == [(True, (), ())]


async def test_a_frozen_bird_is_a_timeout_within_the_deadline_and_the_client_recovers(gateway: Gateway) -> None:
    client = BirdClient(gateway.socket_path, timeout_s=DEADLINE_S)
    await client.command("show status", timeout_s=10)
    gateway.freeze()
    loop = asyncio.get_running_loop()
    begin = loop.time()
    with pytest.raises(BirdTimeout) as caught:
        await client.command('disable "bgplb_probe"')
    assert loop.time() - begin < 10 * DEADLINE_S
    assert caught.value.sent
    # a new connection is taken by the kernel, and never greeted
    with pytest.raises(BirdTimeout) as caught:
        await client.command("show status")
    assert not caught.value.sent
    gateway.thaw()
    reply = await client.command("show status", timeout_s=10)
    assert reply.code == Code.STATUS
    await client.close()


async def test_the_wait_behind_another_command_counts(gateway: Gateway) -> None:
    client = BirdClient(gateway.socket_path, timeout_s=DEADLINE_S)
    await client.command("show status", timeout_s=10)
    gateway.freeze()
    callers = 12
    loop = asyncio.get_running_loop()
    begin = loop.time()
    outcomes = await asyncio.gather(*(client.command("show status") for _ in range(callers)), return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [BirdTimeout] * callers
    assert loop.time() - begin < callers * DEADLINE_S / 2  # one after the other they would take all of it
    gateway.thaw()
    await client.close()


async def test_a_killed_bird_in_mid_command_is_unreachable_and_indeterminate(gateway: Gateway) -> None:
    client = BirdClient(gateway.socket_path, timeout_s=10)
    await client.command("show status")
    gateway.freeze()
    asked = asyncio.create_task(client.command("show protocols"))
    await asyncio.sleep(0.05)
    await gateway.kill()
    with pytest.raises(BirdUnreachable) as caught:
        await asked
    assert caught.value.sent
    with pytest.raises(BirdUnreachable) as caught:
        await client.command("show protocols")
    assert not caught.value.sent
    await gateway.start()
    gateway.thaw()
    assert (await client.command("show status")).code == Code.STATUS
    await client.close()


async def test_a_process_is_told_from_the_next_one_and_from_nothing_else(gateway: Gateway) -> None:
    """Not by its clocks: what it tells of them differs between two answers now and then."""
    first = Bird(BirdClient(gateway.socket_path))
    processes = {(await first.status()).process for _ in range(20)}
    second = Bird(BirdClient(gateway.socket_path))
    processes.add((await second.status()).process)
    await first.configure_soft()
    processes.add((await first.status()).process)
    assert len(processes) == 1
    await gateway.kill()
    await gateway.start()
    assert (await first.status()).process not in processes
    assert (await first.status()).process == (await second.status()).process
    await first.client.close()
    await second.client.close()


async def test_a_restarted_bird_is_met_without_a_lost_command(gateway: Gateway, bird: Bird) -> None:
    first = await bird.status()
    await gateway.kill()
    await gateway.start()
    assert (await bird.status()).router_id == first.router_id


async def test_a_cancelled_command_does_not_give_its_reply_to_the_next(gateway: Gateway, bird: Bird) -> None:
    await bird.status()
    gateway.freeze()
    asked = asyncio.create_task(bird.client.command("show protocols"))
    await asyncio.sleep(0.05)
    asked.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asked
    gateway.thaw()
    assert (await bird.client.command("show status")).code == Code.STATUS


async def test_many_callers_get_their_own_replies(bird: Bird) -> None:
    replies: list[Reply] = await asyncio.gather(
        *(bird.client.command("show status" if number % 2 else 'enable "nobody"') for number in range(40))
    )
    assert [reply.code for reply in replies] == [Code.NO_PROTOCOL_MATCHES, Code.STATUS] * 20


async def test_a_read_only_client_cannot_change_anything(gateway: Gateway) -> None:
    client = BirdClient(gateway.socket_path, timeout_s=10, read_only=True)
    with pytest.raises(BirdRefused) as caught:
        await Bird(client).disable("bgplb_probe")
    assert caught.value.code == Code.ACCESS_DENIED
    assert GATEWAY_SESSION in {row.name for row in await Bird(client).protocols()}
    await client.close()


async def test_bird_absent_while_announcing_leaves_the_file_for_its_start(gateway: Gateway, applier: Applier) -> None:
    await applier.announce(web(True))
    await gateway.kill()
    with pytest.raises(BirdUnreachable):
        await applier.announce(web(False))
    await gateway.start()
    await until_seen(gateway, set(PROBES), {POOL_4, POOL_6})
    assert not (await applier.announce(web(False))).changed


async def test_what_does_not_settle_is_said_with_prefix_and_session(gateway: Gateway, bird: Bird) -> None:
    """An IPv6 pool over a session that was made without an IPv6 channel never gets to the neighbour."""
    text = gateway.config_file.read_text()
    narrow = "".join(line for line in text.splitlines(keepends=True) if not line.startswith("\tipv6 { import none"))
    assert narrow != text
    applier = Applier(
        bird, LoopClock(), config_file=gateway.config_file, announce_file=gateway.announce_file, settle_s=0.3
    )
    await applier.configure(narrow)
    await until_up(bird, GATEWAY_SESSION)
    with pytest.raises(BirdUnsettled, match=f"{GATEWAY_SESSION} lacks {POOL_6} of pool web-1"):
        await applier.announce(web(True))
    partial = await applier.exported(web(True))
    assert [(pool.complete, pool.partial) for pool in partial] == [((), (GATEWAY_SESSION,))]
