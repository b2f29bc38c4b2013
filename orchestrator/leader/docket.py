"""What lies before the leader besides the pools' own affairs: intent, the agents' bases, operators' requests."""

from collections.abc import Mapping
from dataclasses import replace

from fsm.desired import Key, agent_bases
from fsm.effects import DropDesired, SetDesired
from fsm.evaluate import PoolView
from fsm.records import AgentBase, Request
from orchestrator.leader.intent import IntentKeeper, departed, finished, identities, let_go
from orchestrator.leader.knowledge import Knowledge
from orchestrator.leader.numbers import last_number
from orchestrator.leader.requests import PRUNE, decide, refuse
from orchestrator.leader.settler import Settler
from orchestrator.leader.writes import Answer, Batch, DropRequest, SetSpec, Write

REQUEST_KEPT_S = 3600.0
"""An answered request is removed after this long, in seconds."""

PRUNED_AT_ONCE = 100
"""Objects that one transaction, which holds 128 operations, deletes."""


class Docket:
    """Makes batches of it for the loop to commit."""

    def __init__(self, knowledge: Knowledge, intent: IntentKeeper, settler: Settler) -> None:
        self._known, self._intent, self._settler = knowledge, intent, settler
        self._answered_s: dict[str, float] = {}

    def bases(self) -> list[Batch]:
        """Intent, identities, finished deletions, and the agents' bases."""
        intended = self._intent.writes(self._known)
        back = {(write.kind, write.name) for write in intended if isinstance(write, SetSpec)}
        gone = [drop for drop in finished(self._known) if (drop.kind, drop.name) not in back]
        writes: list[Write] = [*intended, *identities(self._known), *gone, *departed(self._known)]
        told = self._known.bases()
        wanted: dict[Key, AgentBase] = {}
        for group in self._known.groups().values():  # one that is being deleted, too: its pools may not be gone yet
            pools = [p for p in self._known.pool_specs().values() if p.gateway_ref == group.name]
            wanted |= agent_bases(group, pools, self._known.identities())
        # Whoever is let go is told so: a key that is merely gone takes no tunnel down, and this one may be off now.
        wanted |= {agent: AgentBase() for agent in told if agent not in wanted}
        writes += [SetDesired(r, a, "", "", base) for (r, a), base in wanted.items() if told.get((r, a)) != base]
        writes += [DropDesired(role, agent, "", "") for role, agent in let_go(self._known)]
        return [Batch((write,)) for write in writes]

    def requests(self, views: Mapping[str, PoolView], now: float) -> tuple[list[Batch], bool]:
        """What follows from what operators asked for, an answer in each; the oldest first, one a pool at a time.

        And whether some of it has to wait for the next turn.
        """
        waiting = False
        batches: list[Batch] = []
        taken: set[str] = set()
        counter = last_number(self._known)
        self._answered_s = {id_: since for id_, since in self._answered_s.items() if id_ in self._known.requests}
        for request in sorted(self._known.requests.values(), key=lambda r: r.at_ms):
            if request.answer:
                if now - self._answered_s.setdefault(request.id, now) > REQUEST_KEPT_S:
                    batches.append(Batch((DropRequest(request.id),)))
                continue
            if request.subject in taken:
                waiting = True
                continue
            taken.add(request.subject)
            if request.verb == PRUNE:
                pruned, more = self._prune(request)
                batches.append(pruned)
                waiting |= more
                continue
            decision = decide(request, self._known, views)
            batch: Batch | None = None
            if decision.event or decision.record:
                view = views[request.subject]
                batch, counter = self._settler.settle(
                    request.subject, view, now, counter, decision.event, decision.record
                )
                if batch is None:
                    decision = refuse(f"pool {request.subject}: nothing to do")
            answer = Answer(replace(request, answer=decision.answer, accepted=decision.accepted))
            body = batch or Batch(())
            batches.append(replace(body, writes=(*body.writes, *decision.writes, answer)))
        return batches, waiting

    def _prune(self, request: Request) -> tuple[Batch, bool]:
        """The deletions, with the answer in the transaction of the last of them: an answered request is done, whoever
        leads then. And whether there are more.
        """
        if not self._intent.readable:
            text = "the leader has no good reading of its folder of manifests; see 'bgplb status'"
            return Batch((Answer(replace(request, answer=text)),)), False
        writes = self._intent.prune(self._known)
        if len(writes) > PRUNED_AT_ONCE:
            return Batch(writes[:PRUNED_AT_ONCE]), True
        names = ", ".join(f"{write.kind}/{write.name}" for write in writes)
        return Batch((*writes, Answer(replace(request, answer=f"deletes {names or 'nothing'}", accepted=True)))), False
