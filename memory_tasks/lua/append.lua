-- Append a turn to working memory: idempotent, bounded, expiring, in one step.
--
-- KEYS  1 turns   2 turn_ids   3 due   4 entry of the turn in the ledger   5 conversations of the user   6 dropped
--       7 oldest
-- ARGV  1 turn_id   2 turn as JSON, an object   3 turns to keep at most   4 ttl ms, or 0 for none
--       5 scope tag   6 promote_after ms, or -1 when nobody promotes   7 turns above which promotion is due at once
--       8 epoch the ledger must have the turn under, or "" when there is no ledger
-- Returns {1 appended | 0 was appended before | -1 the turn was forgotten, turns dropped}.

if ARGV[8] ~= "" then
  local epoch, state = unpack(redis.call("HMGET", KEYS[4], "epoch", "state"))
  if epoch ~= ARGV[8] then
    return { -1, 0 }
  end
  if state ~= "completed" then
    -- Persisted before, and perhaps promoted since: a late second delivery must not bring it back to the end.
    return { 0, 0 }
  end
end
if redis.call("SISMEMBER", KEYS[2], ARGV[1]) == 1 then
  return { 0, 0 }
end
local time = redis.call("TIME")
local now = time[1] * 1000 + math.floor(time[2] / 1000)
-- The server's time of appending goes in front, at a fixed width: order and age never depend on a worker's clock.
local count = redis.call("RPUSH", KEYS[1], string.format('{"at":%013.0f,%s', now, string.sub(ARGV[2], 2)))
-- After the turn itself: a script that fails is not rolled back, and an id without its turn would be a lost turn.
redis.call("SADD", KEYS[2], ARGV[1])
local dropped = 0
while count > tonumber(ARGV[3]) do
  redis.call("SREM", KEYS[2], cjson.decode(redis.call("LPOP", KEYS[1])).turn_id)
  count = count - 1
  dropped = dropped + 1
end
redis.call("ZREMRANGEBYSCORE", KEYS[5], "-inf", now)
if ARGV[4] ~= "0" then
  redis.call("PEXPIRE", KEYS[1], ARGV[4])
  redis.call("PEXPIRE", KEYS[2], ARGV[4])
  redis.call("ZADD", KEYS[5], now + ARGV[4], ARGV[5])
  redis.call("PEXPIRE", KEYS[5], ARGV[4])
else
  redis.call("ZADD", KEYS[5], "+inf", ARGV[5])
  redis.call("PERSIST", KEYS[5])
  if dropped > 0 then
    redis.call("INCRBY", KEYS[6], dropped)
  end
end
if tonumber(ARGV[6]) >= 0 then
  local oldest = now
  if dropped > 0 then
    oldest = string.sub(redis.call("LINDEX", KEYS[1], 0), 7, 19)
  end
  redis.call("ZADD", KEYS[7], dropped > 0 and "XX" or "NX", oldest, ARGV[5])
  if count > tonumber(ARGV[7]) then
    redis.call("ZADD", KEYS[3], "LT", now, ARGV[5])
  else
    redis.call("ZADD", KEYS[3], "NX", now + ARGV[6], ARGV[5])
  end
end
return { 1, dropped }
