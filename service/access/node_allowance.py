"""How many nodes one API key is told predictions of, for each version of the model: counted in Redis."""

from collections.abc import Collection
from uuid import UUID

import numpy as np
from redis.asyncio import Redis
from redis.exceptions import RedisError

from service.errors import NodeLimitReached
from service.queue.refusal import refusal

#: Seconds for which a version's count is kept once a later one is asked: while a batch commits, processes answer from
#: both.
_KEPT_S = 60
#: Counts the rows (ARGV 4, uint32) of which the key was told nothing yet, all of them or none, as bits of KEYS 2.
#: KEYS 1 has the version asked last. Returns how many there are of before, and 1 where the rows were counted.
_TAKE = """
local last = redis.call('GET', KEYS[1])
if last ~= ARGV[1] then
    if last and tonumber(last) < tonumber(ARGV[1]) then redis.call('EXPIRE', KEYS[1] .. ':' .. last, ARGV[3]) end
    redis.call('SET', KEYS[1], ARGV[1])
    redis.call('PERSIST', KEYS[2])
end
local told = redis.call('BITCOUNT', KEYS[2])
local new, most = {}, tonumber(ARGV[2])
for at = 1, #ARGV[4], 4 do
    local row = struct.unpack('<I4', ARGV[4], at)
    if redis.call('GETBIT', KEYS[2], row) == 0 then
        new[#new + 1] = row
        if told + #new > most then return {told, 0} end
    end
end
for _, row in ipairs(new) do redis.call('SETBIT', KEYS[2], row, 1) end
return {told, 1}
"""


class NodeAllowance:
    """Counts for all processes that use the same Redis together; a bit for each node, key and present version.

    Rows are counted and no ids: nobody is named in Redis.
    """

    def __init__(self, redis: Redis, model: str, most: int) -> None:
        """`most` nodes of each version of `model` for each key; 0: any number, and nothing is counted."""
        self._model = model
        self._most = most
        self._take = redis.register_script(_TAKE)

    @property
    def is_limited(self) -> bool:
        """Whether anything is counted."""
        return self._most > 0

    async def take(self, key_id: UUID, version: int, rows: Collection[int]) -> None:
        """Let a key be told of `rows` of a version; those it was told of before are free.

        Raises NodeLimitReached, and counts none of them, when they are too many; Unavailable without Redis: a count
        of each process' own would not be the limit.
        """
        name = f"lethe:told:{self._model}:{key_id}"
        packed = np.unique(np.fromiter(rows, dtype="<u4", count=len(rows))).tobytes()
        try:
            told, counted = await self._take(
                keys=[name, f"{name}:{version}"], args=[version, self._most, _KEPT_S, packed]
            )
        except (RedisError, OSError) as error:
            raise refusal(error, name) from error
        if not counted:
            raise NodeLimitReached(
                f"An API key may request predictions of at most {self._most} nodes per version of the model. For "
                f"version {version}, this key has used {told}, and this request exceeds the rest.",
                "Request nodes that it has requested before, or wait for the next version, which the next "
                "deletion makes.",
                max_predicted_nodes=self._most,
                told=told,
                model_version=version,
            )
