"""How often a user may ask."""

import time
from hashlib import blake2b
from math import ceil

from fastapi import HTTPException
from limits import RateLimitItem
from limits.storage import RedisStorage
from limits.strategies import SlidingWindowCounterRateLimiter

from memory_tasks.client import MemoryClient
from memory_tasks.connection import reaching


class Limiter:
    """Counts what each user asks for in Redis, so that all processes of a web app count together.

    Args:
        client: Of the system.
    """

    def __init__(self, client: MemoryClient) -> None:
        self._redis = client.redis
        storage = RedisStorage("redis://", key_prefix=f"{client.keys.prefix}:rate")
        # The client's own connections: those of a Cluster or a Sentinel service too.
        storage.storage = client.redis
        storage.initialize_storage("")
        self._limiter = SlidingWindowCounterRateLimiter(storage)

    def check(self, user_id: str, what: str, limit: RateLimitItem) -> None:
        """Count one.

        Args:
            user_id: Who asks. Redis sees a hash.
            what: The name under which it is counted.
            limit: How often.

        Raises:
            HTTPException: 429, with the seconds to wait.
            StoreUnavailableError: Redis can't be reached.
        """
        who = blake2b(user_id.encode(), digest_size=12).hexdigest()
        with reaching(self._redis):
            if self._limiter.hit(limit, what, who):
                return
            wait = ceil(self._limiter.get_window_stats(limit, what, who).reset_time - time.time())
        raise HTTPException(429, f"Too many {what}: {limit} are allowed.", {"Retry-After": str(max(1, wait))})
