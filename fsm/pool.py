"""The pool's table: every state, every row, every reasoned ignore. Changing how a pool behaves starts here.

Guards and acts are in `fsm.pool_acts`; which event follows from what is seen, in `fsm.evaluate`.
"""

from fsm.desired import ARMED
from fsm.events import PoolEvent
from fsm.pool_acts import (
    PoolDraft,
    adopt_plan,
    announce,
    arm,
    be_patient,
    clear_target,
    count_move,
    forget,
    forget_held,
    has_target,
    keep_where_sent,
    not_switched,
    note_superseded,
    outbid,
    own,
    remember_state,
    renumber,
    same_target,
    serves,
    silence,
    silent,
    stay,
    switch,
    take_epoch,
    take_first,
    take_over,
    was_idle,
    was_pending,
    was_stranded,
)
from fsm.table import Ignore, Row, State, Table
from fsm.types import PoolState

S, E = PoolState, PoolEvent

STATES = (
    State(S.PENDING, "Nothing owns it yet: no gateway known, or none ready since creation."),
    State(S.ACTIVE_HEALTHY, "One gateway owns it, the edges point at it, the probes pass."),
    State(S.FAILURE_DETECTED, "The owner is judged unfit and a target exists; evidence recorded, epoch taken.", 1000),
    State(S.WITHDRAWN, "Confirmed: no edge with a fresh agent sends traffic to the old owner.", 1000),
    State(S.PEER_UPDATED, "Confirmed: AllowedIPs and steering route are on the target. The move is effective.", 1000),
    State(S.STANDBY_ADVERTISING, "The owner was told to announce; its announcement and a probe are awaited.", 3000),
    State(S.STRANDED, "The owner is unfit and no target is ready: the old mapping is kept."),
    State(S.DRAINING, "Planned move: target prepared, then the route moves, then the old owner stops.", 10_000),
    State(S.HELD, "An operator paused automation; observation goes on."),
    State(S.IDLE, "Owner chosen and everything prepared, but the empty pool is not announced."),
    State(S.TERMINATING, "Deletion: withdraw, remove, and wait until every edge has confirmed it.", 30_000),
)
DEADLINES_MS = {state.name: state.deadline_ms for state in STATES}

# ---- rows --------------------------------------------------------------------------------------------------------

MOVING = (S.FAILURE_DETECTED, S.WITHDRAWN)
SETTLING = (S.PEER_UPDATED, S.STANDBY_ADVERTISING)
RESTING = (S.ACTIVE_HEALTHY, S.IDLE)
LIVE = tuple(s.name for s in STATES if s.name != S.TERMINATING)
NEW_MOVE = (take_epoch, count_move)
TAKE_OVER = (take_over, count_move)

ROWS: tuple[Row[PoolDraft], ...] = (
    Row(E.CANDIDATE_READY, (S.PENDING,), S.WITHDRAWN, "the first owner: no old path exists", None, (take_first,)),
    Row(E.CANDIDATE_READY, (S.STRANDED,), S.FAILURE_DETECTED, "somebody can take it at last", None, TAKE_OVER),
    Row(E.OWNER_RECOVERED, (S.STRANDED,), S.ACTIVE_HEALTHY, "the kept mapping works again"),
    Row(E.OWNER_UNFIT, (*RESTING, *SETTLING), S.FAILURE_DETECTED, "the target takes over", has_target, TAKE_OVER),
    Row(E.OWNER_UNFIT, (*RESTING, *SETTLING), S.STRANDED, "nobody can take it", None, (clear_target,)),
    Row(E.OWNER_UNFIT, (S.DRAINING,), S.FAILURE_DETECTED, "no time left to be gentle", has_target, (take_epoch,)),
    Row(E.OWNER_UNFIT, (S.DRAINING,), S.STRANDED, "nobody can take it", None, (keep_where_sent,)),
    *(Row(E.PLAN_OUTDATED, (state,), state, "the standbys changed", None, (arm,)) for state in RESTING),
    Row(E.PLAN_EXECUTED, (*ARMED, *SETTLING), S.FAILURE_DETECTED, "adopt", None, (adopt_plan, count_move)),
    Row(
        E.PLAN_EXECUTED,
        MOVING,
        S.FAILURE_DETECTED,
        "the edge went on to the plan after",
        None,
        (keep_where_sent, adopt_plan, count_move),
    ),
    Row(
        E.PLAN_EXECUTED,
        (S.HELD,),
        S.FAILURE_DETECTED,
        "the edge acted before the hold reached it",
        None,
        (adopt_plan, count_move, forget_held),
    ),
    *(
        Row(E.PLAN_SUPERSEDED, (s.name,), s.name, "it counts for nothing", None, (note_superseded,))
        for s in STATES
        if s.name != S.PENDING
    ),
    Row(E.MOVE_WANTED, RESTING, S.DRAINING, "make before break", has_target, NEW_MOVE),
    Row(E.OLD_PATH_REMOVED, (S.FAILURE_DETECTED,), S.WITHDRAWN, "the edges confirm"),
    Row(E.NEW_PATH_INSTALLED, (S.WITHDRAWN, S.DRAINING), S.PEER_UPDATED, "the edges confirm", None, (own,)),
    Row(E.TARGET_PREPARED, (S.DRAINING,), S.DRAINING, "now the edges may point at it", not_switched, (switch,)),
    Row(E.TARGET_PREPARED, (S.PEER_UPDATED,), S.STANDBY_ADVERTISING, "it was told to announce and did as told"),
    Row(E.ANNOUNCED, (S.STANDBY_ADVERTISING,), S.ACTIVE_HEALTHY, "announcement seen, probe passing"),
    Row(E.TARGET_LOST, MOVING, S.FAILURE_DETECTED, "next candidate", has_target, (keep_where_sent, take_over)),
    Row(E.TARGET_LOST, MOVING, S.STRANDED, "no other candidate", None, (keep_where_sent,)),
    Row(E.TARGET_LOST, (S.DRAINING,), S.ACTIVE_HEALTHY, "nothing moved yet: stay", not_switched, (stay,)),
    Row(
        E.TARGET_LOST,
        (S.DRAINING,),
        S.FAILURE_DETECTED,
        "edges may point at it",
        has_target,
        (keep_where_sent, take_epoch),
    ),
    Row(E.TARGET_LOST, (S.DRAINING,), S.STRANDED, "edges may point at it", None, (keep_where_sent,)),
    *(
        Row(E.DEADLINE_PASSED, (state,), state, "nobody else: the edges go on trying", same_target, (be_patient,))
        for state in MOVING
    ),
    Row(
        E.DEADLINE_PASSED,
        MOVING,
        S.FAILURE_DETECTED,
        "next candidate",
        has_target,
        (keep_where_sent, take_over, be_patient),
    ),
    Row(E.DEADLINE_PASSED, MOVING, S.STRANDED, "no candidate", None, (keep_where_sent,)),
    Row(E.DEADLINE_PASSED, (S.DRAINING,), S.ACTIVE_HEALTHY, "nothing moved yet: stay", not_switched, (stay,)),
    Row(E.DEADLINE_PASSED, (S.DRAINING,), S.FAILURE_DETECTED, "force it", has_target, (keep_where_sent, take_epoch)),
    Row(E.DEADLINE_PASSED, (S.DRAINING,), S.STRANDED, "no candidate", None, (keep_where_sent,)),
    Row(
        E.DEADLINE_PASSED,
        (S.PEER_UPDATED,),
        S.STANDBY_ADVERTISING,
        "its agent is silent; packets may pass all the same",
    ),
    Row(E.DEADLINE_PASSED, (S.STANDBY_ADVERTISING,), S.ACTIVE_HEALTHY, "packets pass; AdvertisementPending", serves),
    Row(E.DEADLINE_PASSED, (S.STANDBY_ADVERTISING,), S.FAILURE_DETECTED, "next candidate", has_target, TAKE_OVER),
    Row(E.DEADLINE_PASSED, (S.STANDBY_ADVERTISING,), S.STRANDED, "no candidate", None, (clear_target,)),
    Row(E.DEADLINE_PASSED, (S.TERMINATING,), S.TERMINATING, "an edge has not confirmed", None, (be_patient,)),
    Row(E.HOLD_REQUESTED, (*RESTING, S.PENDING, S.STRANDED), S.HELD, "automation pauses", None, (remember_state,)),
    Row(E.HOLD_RELEASED, (S.HELD,), S.PENDING, "back to where it was", was_pending, (forget_held,)),
    Row(E.HOLD_RELEASED, (S.HELD,), S.STRANDED, "back to where it was", was_stranded, (forget_held,)),
    Row(E.HOLD_RELEASED, (S.HELD,), S.IDLE, "back to where it was", was_idle, (forget_held,)),
    Row(E.HOLD_RELEASED, (S.HELD,), S.ACTIVE_HEALTHY, "back to where it was", None, (forget_held,)),
    Row(E.BECAME_EMPTY, (S.ACTIVE_HEALTHY,), S.IDLE, "no address in use: stop announcing", None, (silence,)),
    Row(E.BECAME_USED, (S.IDLE,), S.STANDBY_ADVERTISING, "the first address is in use", None, (announce,)),
    Row(E.BECAME_USED, (S.ACTIVE_HEALTHY,), S.STANDBY_ADVERTISING, "it had moved while empty", silent, (announce,)),
    *(
        Row(E.ADDRESSES_CHANGED, (state,), state, "same owner, other prefixes", None, (renumber,))
        for state in (*RESTING, S.STRANDED, S.HELD)
    ),
    *(
        Row(E.EDGE_RENEWED, (state,), state, "above every number that its past may know", None, (outbid,))
        for state in (*RESTING, S.STRANDED, S.HELD, S.TERMINATING)
    ),
    Row(E.DELETE_REQUESTED, LIVE, S.TERMINATING, "the operator's order", None, (outbid, clear_target, forget_held)),
    Row(E.PATHS_REMOVED, (S.TERMINATING,), S.TERMINATING, "every edge has confirmed", None, (forget,)),
)

ALL = tuple(s.name for s in STATES)


def _others(*states: str) -> tuple[str, ...]:
    return tuple(s for s in ALL if s not in states)


IGNORES = (
    Ignore((E.CANDIDATE_READY,), _others(S.PENDING, S.STRANDED), "it has an owner, is on its way, held or going"),
    Ignore((E.OWNER_RECOVERED,), _others(S.STRANDED), "sticky: a move that was ordered is finished"),
    Ignore((E.OWNER_UNFIT,), MOVING, "known: that is why it moves"),
    Ignore((E.OWNER_UNFIT,), (S.PENDING,), "it has no owner"),
    Ignore((E.OWNER_UNFIT,), (S.STRANDED,), "known: that is why it is stranded"),
    Ignore((E.OWNER_UNFIT, E.TARGET_LOST, E.DEADLINE_PASSED, E.MOVE_WANTED), (S.HELD,), "automation is paused"),
    Ignore((E.OWNER_UNFIT, E.TARGET_LOST, E.MOVE_WANTED), (S.TERMINATING,), "it is being deleted"),
    Ignore((E.PLAN_EXECUTED,), (S.DRAINING, S.TERMINATING), "superseded by a higher epoch"),
    Ignore((E.PLAN_EXECUTED, E.PLAN_SUPERSEDED), (S.PENDING,), "no edge has a plan"),
    Ignore((E.PLAN_OUTDATED,), _others(*RESTING), "a plan is for a pool at rest"),
    Ignore((E.MOVE_WANTED,), RESTING, "no target is ready"),
    Ignore((E.MOVE_WANTED,), (*MOVING, *SETTLING, S.DRAINING), "a move is under way"),
    Ignore((E.MOVE_WANTED,), (S.PENDING, S.STRANDED), "no target is ready"),
    Ignore((E.OLD_PATH_REMOVED,), _others(S.FAILURE_DETECTED), "nothing waits for it"),
    Ignore((E.NEW_PATH_INSTALLED,), _others(S.WITHDRAWN, S.DRAINING), "nothing waits for it"),
    Ignore((E.TARGET_PREPARED,), (S.DRAINING,), "already switched"),
    Ignore((E.TARGET_PREPARED,), _others(S.DRAINING, S.PEER_UPDATED), "nothing waits for it"),
    Ignore((E.ANNOUNCED,), _others(S.STANDBY_ADVERTISING), "confirmation only, never a precondition"),
    Ignore((E.TARGET_LOST,), (*RESTING, *SETTLING, S.PENDING, S.STRANDED), "it has no target"),
    Ignore((E.DEADLINE_PASSED,), (*RESTING, S.PENDING, S.STRANDED), "the state has no deadline"),
    Ignore((E.HOLD_REQUESTED,), (*MOVING, *SETTLING, S.DRAINING), "applies at the end of the move"),
    Ignore((E.HOLD_REQUESTED,), (S.HELD, S.TERMINATING), "held already, or being deleted"),
    Ignore((E.HOLD_RELEASED,), _others(S.HELD), "it is not held"),
    Ignore((E.DELETE_REQUESTED,), (S.TERMINATING,), "known"),
    Ignore((E.PATHS_REMOVED,), LIVE, "nothing was deleted"),
    Ignore((E.BECAME_EMPTY,), _others(S.ACTIVE_HEALTHY), "only a pool at rest stops announcing"),
    Ignore((E.ADDRESSES_CHANGED,), (*MOVING, *SETTLING, S.DRAINING), "taken up once it is at rest"),
    Ignore((E.ADDRESSES_CHANGED,), (S.PENDING, S.TERMINATING), "no edge has it, or soon none"),
    Ignore((E.EDGE_RENEWED,), (*MOVING, *SETTLING, S.DRAINING), "taken up once it is at rest"),
    Ignore((E.EDGE_RENEWED,), (S.PENDING,), "no edge has it"),
    Ignore((E.BECAME_USED,), _others(S.IDLE), "it announces already, or once it is at rest"),
)

POOL: Table[PoolDraft] = Table("pool", S.PENDING, STATES, tuple(PoolEvent), ROWS, IGNORES)
