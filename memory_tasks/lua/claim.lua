-- Take members of a sorted set that are due, so that nobody else takes them for a while.
--
-- KEYS  1 sorted set of members by the time in ms at which they are due
-- ARGV  1 how many at most   2 ms until a claimed member is due again
-- Returns the members.

local time = redis.call("TIME")
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local due = redis.call("ZRANGEBYSCORE", KEYS[1], "-inf", now, "LIMIT", 0, ARGV[1])
for _, member in ipairs(due) do
  redis.call("ZADD", KEYS[1], now + ARGV[2], member)
end
return due
