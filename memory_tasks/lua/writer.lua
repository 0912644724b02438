-- A write into long-term memory announces itself, so that forget can wait for it.
--
-- KEYS  1 writers   2 entry of the turn in the ledger
-- ARGV  1 "enter" | "leave" | "look"   2 scope tag and token   3 lease ms   4 epoch the ledger must have the turn under, or ""
-- Returns 1 go, left in time, or still writing | 0 forgotten: do not write, or undo what was written; or it is gone.

if ARGV[1] == "leave" then
  return redis.call("ZREM", KEYS[1], ARGV[2])
end
local time = redis.call("TIME")
local now = time[1] * 1000 + math.floor(time[2] / 1000)
if ARGV[1] == "look" then
  local until_ = redis.call("ZSCORE", KEYS[1], ARGV[2])
  if until_ and tonumber(until_) >= now then
    return 1
  end
  redis.call("ZREM", KEYS[1], ARGV[2])
  return 0
end
if ARGV[4] ~= "" and redis.call("HGET", KEYS[2], "epoch") ~= ARGV[4] then
  return 0
end
-- One that outlives its lease may still come back; one of yesterday does not.
redis.call("ZREMRANGEBYSCORE", KEYS[1], "-inf", now - 86400000)
redis.call("ZADD", KEYS[1], now + ARGV[3], ARGV[2])
redis.call("PEXPIRE", KEYS[1], 86400000)
return 1
