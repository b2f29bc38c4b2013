"""What a commit changed, told to knowledge at once: the next turn builds on it without waiting for the watch."""

from fsm.effects import AppendHistory, DropDesired, ForgetMachine, SaveMachine, SetDesired, TakeEpoch
from orchestrator.leader.interpret import desired_key
from orchestrator.leader.knowledge import Knowledge
from orchestrator.leader.writes import Answer, Batch, DropRequest, DropSpec, SetSpec, Write
from orchestrator.store.keys import Keys


def record_commit(known: Knowledge, keys: Keys, batch: Batch, revision: int) -> None:
    """Every write of a batch is in etcd at that revision."""
    for write in batch.writes:
        entry = _entry(keys, write)
        if entry is not None:
            known.committed(entry[0], entry[1], revision)


def _entry(keys: Keys, write: Write) -> tuple[str, object | None] | None:
    match write:
        case SaveMachine(type_, name, record):
            return keys.machine(type_, name), record
        case ForgetMachine(type_, name):
            return keys.machine(type_, name), None
        case TakeEpoch(epoch):
            return keys.epoch_counter, epoch
        case SetDesired(role, agent, type_, name, value):
            return desired_key(keys, role, agent, type_, name), value
        case DropDesired(role, agent, type_, name):
            return desired_key(keys, role, agent, type_, name), None
        case SetSpec(kind, name, value):
            return keys.spec(kind, name), value
        case DropSpec(kind, name):
            return keys.spec(kind, name), None
        case Answer(request):
            return keys.request(request.id), request
        case DropRequest(id_):
            return keys.request(id_), None
        case AppendHistory():
            return None
