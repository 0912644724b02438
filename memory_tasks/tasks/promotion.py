"""Promotion as tasks: one looks for scopes that are due, one moves a batch of a scope."""

import logging
import random

from celery import Celery

from memory_tasks import telemetry
from memory_tasks.keys import Keys
from memory_tasks.models import Scope, now
from memory_tasks.scripts import Scripts
from memory_tasks.tasks.publisher import QUEUES
from memory_tasks.tasks.runtime import Runtime

logger = logging.getLogger(__name__)

PAGE = 100


class PromotionSteps:
    """Finds and promotes, for one worker process."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._keys = Keys(runtime.settings.prefix)
        # A scope that was sent is not sent again for this long, and its task expires at the same time: ten looks
        # leave one task in the queue, and one that was lost with its worker is made up for soon.
        self._claim = max(10 * runtime.settings.promote_interval, 2 * runtime.settings.step_timeout)

    def enumerate_due(self, app: Celery) -> int:
        """Claim the scopes that are due and send a task for each, `promote_scopes` at most.

        Returns:
            How many were sent.
        """
        scripts = Scripts(self._runtime.parts.client)
        most = left = self._runtime.settings.promote_scopes
        shards = self._keys.shards()
        random.shuffle(shards)
        while left > 0 and shards:
            # All shards get the same share, so that a flood in one does not keep the others waiting.
            share = min(PAGE, max(1, left // len(shards)))
            asked, others = shards[:left], shards[left:]
            pages = scripts.each("claim", [([shard.due], [share, int(self._claim * 1000)]) for shard in asked])
            for tag in (tag for page in pages for tag in page):
                self._send(app, tag)
                left -= 1
            shards = others + [shard for shard, page in zip(asked, pages, strict=True) if len(page) == share]
        return most - left

    def _send(self, app: Celery, tag: str) -> None:
        app.send_task(
            "memory_tasks.promote", args=[tag], queue=QUEUES["memory_tasks.promote"], expires=self._claim,
            ignore_result=True, serializer="json",
        )  # fmt: skip

    def promote(self, app: Celery, scope: Scope) -> int:
        """Move a batch of the scope's turns, and send the next task while there is more.

        Returns:
            How many turns moved.
        """
        with telemetry.span("promote", scope=telemetry.scope_hash(scope)):
            done = self._runtime.parts.promoter.batch(scope)
        telemetry.PROMOTED.inc(done.promoted)
        if done.oldest:
            telemetry.LAG.observe(max(0.0, (now() - done.oldest).total_seconds()))
        if done.failed:
            kinds = ", ".join(sorted(set(done.failed.values())))
            logger.error(
                "%d turns of a scope can't be promoted yet (%s) and stay in working memory", len(done.failed), kinds
            )
        if done.more:
            self._send(app, self._keys.scope(scope).tag)
        return done.promoted
