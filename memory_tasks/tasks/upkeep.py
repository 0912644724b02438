"""The sweep: turns whose worker died, whose message got lost or whose retry is due go on from their saved state."""

import logging
import time

from memory_tasks.connection import reaching
from memory_tasks.errors import CorruptEntryError, NewerFormatError
from memory_tasks.tasks.runtime import Runtime

logger = logging.getLogger(__name__)

SWEPT_SECONDS = 60.0
"""A system that has not been swept for this long is not healthy."""


def sweep(runtime: Runtime) -> int:
    """Send again every turn that needs attention. Two sweeps at once do not send a turn twice.

    Returns:
        How many were sent.
    """
    ledger, publisher = runtime.parts.ledger, runtime.parts.publisher
    sent = 0
    while tags := ledger.due():
        for tag in tags:
            try:
                ref, state = ledger.republish(tag)
            except (NewerFormatError, CorruptEntryError) as error:
                logger.error("a turn is left as it is: %s", error)
                continue
            if ref is not None and state is not None:
                publisher.publish(ref, state)
                sent += 1
    count = ledger.keys.sweeps(int(time.time() // 60))
    with reaching(runtime.parts.client), runtime.parts.client.pipeline(transaction=False) as pipe:
        ttl = max(SWEPT_SECONDS, 10 * runtime.settings.sweep_interval)
        pipe.set(ledger.keys.swept, "1", px=int(ttl * 1000))
        pipe.incr(count)
        pipe.expire(count, 300)
        pipe.execute()
    return sent
