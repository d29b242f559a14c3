"""Limits on failures per address or key, and on nodes predicted per key, counted in Redis."""

import hmac
import math
import time
from array import array
from bisect import bisect_right
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from uuid import UUID

import numpy as np
import structlog
from limits import RateLimitItem, RateLimitItemPerMinute, WindowStats
from limits.aio.storage import RedisStorage
from limits.aio.strategies import MovingWindowRateLimiter
from limits.errors import StorageError
from numpy.typing import NDArray
from redis.asyncio import Redis
from redis.exceptions import RedisError
from starlette.requests import Request

from service.domain.addresses import subscriber
from service.errors import NodeLimitReached, TooManyAttempts
from service.queue.connection import refusal

#: Seconds without a new try after Redis has failed, so that nobody waits for it twice.
_REST_S = 5.0
#: Addresses and keys remembered while Redis is away; the first to come is the first forgotten.
_MOST_REMEMBERED = 10_000


@dataclass(frozen=True)
class Budget:
    """A maximum number of failures per address or key."""

    item: RateLimitItem
    #: Names the failures in the error.
    named: str


#: Invalid keys and tokens that an address presents. Far too few to guess a key, but enough for a client with a wrong
#: key or a tool that tests whether keys are required.
GUESSES = Budget(RateLimitItemPerMinute(300, namespace="guesses"), "unknown API keys or tokens from your address")
#: Deletion requests refused to a key without deletions:read, which could learn from refusals which nodes exist.
PROBES = Budget(RateLimitItemPerMinute(30, namespace="probes"), "refused deletion requests with this API key")


class _LocalWindows:
    """Moving windows in this process. The library's own windows expire in a background task that we cannot control."""

    def __init__(self) -> None:
        #: Time of each failure (seconds since 1970), oldest first.
        self._failures: dict[tuple[str, str], array[float]] = {}

    def stats(self, item: RateLimitItem, name: str) -> WindowStats:
        """Return when the window of `name` ends, and how many failures it still allows."""
        now, lasts_s = time.time(), item.get_expiry()
        failures = self._failures.get((item.namespace, name), array("d"))
        del failures[: bisect_right(failures, now - lasts_s)]
        return WindowStats((failures[0] if failures else now) + lasts_s, max(0, item.amount - len(failures)))

    def hit(self, item: RateLimitItem, name: str) -> None:
        """Count a failure."""
        failures = self._failures.setdefault((item.namespace, name), array("d"))
        failures.append(time.time())
        # Earlier failures no longer count.
        del failures[: -item.amount]
        while len(self._failures) > _MOST_REMEMBERED:
            del self._failures[next(iter(self._failures))]


class RateLimits:
    """Counts failures across all processes that share the Redis."""

    def __init__(self, redis: Redis, secret: bytes) -> None:
        """`secret` keys the hashes of addresses and keys, so that Redis stores no address."""
        self._secret = secret
        self._shared = MovingWindowRateLimiter(
            # Only the scheme matters here; the connections are those of `redis`.
            RedisStorage(
                "async+redis://",
                wrap_exceptions=True,
                implementation="redispy",
                key_prefix="lethe:limits",
                connection_pool=redis.connection_pool,  # type: ignore[arg-type]
            )
        )
        self._local = _LocalWindows()
        self._away_until = -math.inf
        #: Attempts under way that may still fail.
        self._under_way: Counter[tuple[str, str]] = Counter()
        self._log = structlog.stdlib.get_logger(__name__)

    @asynccontextmanager
    async def attempt(self, budget: Budget, who: str, failure: type[Exception]) -> AsyncIterator[None]:
        """Allow one attempt of `who`, and count it if it raises `failure`.

        Raises TooManyAttempts when past failures and attempts under way in this process use up the budget.
        """
        name = self.name_of(who).hex()
        key = (budget.item.namespace, name)
        stats = await self._stats(budget, name)
        if stats.remaining <= self._under_way[key]:
            wait_s = max(1, math.ceil(stats.reset_time - time.time()))
            raise TooManyAttempts(
                f"There were too many {budget.named}: {budget.item.amount} within {budget.item.get_expiry()} seconds.",
                f"Try again in {wait_s} seconds.",
                retry_after=wait_s,
            )
        self._under_way[key] += 1
        try:
            yield
        except failure:
            await self.failed(budget, who)
            raise
        finally:
            self._under_way[key] -= 1
            if not self._under_way[key]:
                del self._under_way[key]

    async def failed(self, budget: Budget, who: str) -> None:
        """Count a failure of `who`."""
        name = self.name_of(who).hex()
        if self._is_there():
            try:
                await self._shared.hit(budget.item, name)
                return
            except StorageError as error:
                self._leave_alone(error)
        self._local.hit(budget.item, name)

    def name_of(self, who: str) -> bytes:
        """Return the keyed hash (32 bytes) under which `who` is counted."""
        return hmac.digest(self._secret, who.encode("utf-8", "surrogatepass"), "sha256")

    async def _stats(self, budget: Budget, name: str) -> WindowStats:
        if self._is_there():
            try:
                return await self._shared.get_window_stats(budget.item, name)
            except StorageError as error:
                self._leave_alone(error)
        return self._local.stats(budget.item, name)

    def _is_there(self) -> bool:
        return time.monotonic() >= self._away_until

    def _leave_alone(self, error: StorageError) -> None:
        self._away_until = time.monotonic() + _REST_S
        self._log.warning("limits.local", reason=type(error.__cause__ or error).__name__)


def network_of(request: Request) -> str:
    """Return the address that a request came from; for IPv6, one subscriber's network (/64)."""
    return "unknown" if request.client is None else subscriber(request.client.host)


#: Seconds for which the count of a version is kept after a request for a later one. During a commit, processes answer
#: from both.
_KEPT_S = 60
#: Counts the rows (ARGV 4, uint32) that are new to the key, as bits of KEYS 2, and ARGV 5 nodes outside the graph in
#: KEYS 3; all or none of them. KEYS 1 holds the version of the last request. Returns the count before, and 1 if they
#: were counted.
_TAKE = """
local last = redis.call('GET', KEYS[1])
if last ~= ARGV[1] then
    if last and tonumber(last) < tonumber(ARGV[1]) then
        redis.call('EXPIRE', KEYS[1] .. ':' .. last, ARGV[3])
        redis.call('EXPIRE', KEYS[1] .. ':' .. last .. ':outside', ARGV[3])
    end
    redis.call('SET', KEYS[1], ARGV[1])
    redis.call('PERSIST', KEYS[2])
    redis.call('PERSIST', KEYS[3])
end
local counted = redis.call('BITCOUNT', KEYS[2]) + tonumber(redis.call('GET', KEYS[3]) or 0)
local new, most = {}, tonumber(ARGV[2]) - tonumber(ARGV[5])
if ARGV[5] ~= '0' and counted > most then return {counted, 0} end
for at = 1, #ARGV[4], 4 do
    local row = struct.unpack('<I4', ARGV[4], at)
    if redis.call('GETBIT', KEYS[2], row) == 0 then
        new[#new + 1] = row
        if counted + #new > most then return {counted, 0} end
    end
end
for _, row in ipairs(new) do redis.call('SETBIT', KEYS[2], row, 1) end
if ARGV[5] ~= '0' then redis.call('INCRBY', KEYS[3], ARGV[5]) end
return {counted, 1}
"""


class NodeAllowance:
    """Counts predicted nodes across all processes that share the Redis: one bit per node, key and current version.

    Counts rows instead of ids, so that Redis identifies nobody.
    """

    def __init__(self, redis: Redis, model: str, most: int) -> None:
        """Allow each key `most` nodes of each version of `model`; 0: no limit and no counting."""
        self._model = model
        self._most = most
        self._take = redis.register_script(_TAKE)

    @property
    def is_limited(self) -> bool:
        """Whether nodes are counted."""
        return self._most > 0

    async def take(self, key_id: UUID, version: int, rows: Sequence[int] | NDArray[np.int64], outside: int = 0) -> None:
        """Charge a key for predictions of `rows` of a version, and of a number of nodes `outside` of the graph.

        Rows that it already used are free. Raises NodeLimitReached, and counts nothing, when they exceed the limit.
        Raises Unavailable without Redis, because separate counts per process would not enforce the limit.
        """
        name = f"lethe:predicted:{self._model}:{key_id}"
        # More rows than the limit are refused, however many more.
        packed = np.unique(np.asarray(rows, dtype="<u4"))[: self._most + 1].tobytes()
        try:
            predicted, counted = await self._take(
                keys=[name, f"{name}:{version}", f"{name}:{version}:outside"],
                args=[version, self._most, _KEPT_S, packed, outside],
            )
        except (RedisError, OSError) as error:
            raise refusal(error, name) from error
        if not counted:
            raise NodeLimitReached(
                f"An API key may request predictions of at most {self._most} nodes per version of the model. For "
                f"version {version}, this key has used {predicted}, and this request exceeds the rest.",
                "Request nodes that it has requested before, or wait for the next version, which the next "
                "deletion makes.",
                max_predicted_nodes=self._most,
                predicted_nodes=predicted,
                model_version=version,
            )
