"""The sweep: turns whose worker died, whose message got lost or whose retry is due go on from their saved state."""

from memory_tasks.ledger import PAGE
from memory_tasks.tasks.runtime import Runtime


def sweep(runtime: Runtime) -> int:
    """Send again every turn that needs attention. Two sweeps at once do not send a turn twice.

    Returns:
        How many were sent.
    """
    ledger, publisher = runtime.parts.ledger, runtime.parts.publisher
    sent = 0
    for shard in ledger.keys.shards():
        while True:
            tags = ledger.due(shard)
            for tag in tags:
                ref, state = ledger.republish(tag)
                if ref is not None and state is not None:
                    publisher.publish(ref, state)
                    sent += 1
            if len(tags) < PAGE:
                break
    return sent
