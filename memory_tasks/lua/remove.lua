-- Remove exactly the given turns from working memory, and say when the scope is due again.
--
-- KEYS  1 turns   2 turn_ids   3 due   4 entries   5 conversations of the user   6 oldest
-- ARGV  1 scope tag   2 promote_after ms, or -1 when nobody promotes   3 turns above which promotion is due at once
--       4... for each turn: its id, and the beginning of its JSON after the time: '"turn_id":"...",'
-- Returns how many were there.

local removed = 0
local HEAD = 20 -- length of '{"at":' plus 13 digits plus ','
for i = 4, #ARGV, 2 do
  if redis.call("SREM", KEYS[2], ARGV[i]) == 1 then
    -- Promotion takes the oldest, so the turn is nearly always among the first read.
    local start, found = 0, nil
    while not found do
      local page = redis.call("LRANGE", KEYS[1], start, start + 31)
      if #page == 0 then
        break
      end
      for _, element in ipairs(page) do
        if string.sub(element, HEAD + 1, HEAD + #ARGV[i + 1]) == ARGV[i + 1] then
          found = element
          break
        end
      end
      start = start + 32
    end
    if found then
      redis.call("LREM", KEYS[1], 1, found)
      removed = removed + 1
    end
  end
end
if redis.call("EXISTS", KEYS[1]) == 0 then
  -- The conversation stays in the user's list as long as the ledger has something of it.
  local last = redis.call("ZREVRANGE", KEYS[4], 0, 0, "WITHSCORES")
  if last[2] then
    redis.call("ZADD", KEYS[5], "XX", last[2], ARGV[1])
  else
    redis.call("ZREM", KEYS[5], ARGV[1])
  end
  local newest = redis.call("ZREVRANGE", KEYS[5], 0, 0, "WITHSCORES")[2]
  if newest and newest ~= "inf" then
    redis.call("PEXPIREAT", KEYS[5], newest)
  end
end
if tonumber(ARGV[2]) >= 0 then
  local first = redis.call("LINDEX", KEYS[1], 0)
  if not first then
    redis.call("ZREM", KEYS[3], ARGV[1])
    redis.call("ZREM", KEYS[6], ARGV[1])
  elseif removed > 0 then
    local appended = tonumber(string.sub(first, 7, 19))
    local due = appended + ARGV[2]
    redis.call("ZADD", KEYS[6], appended, ARGV[1])
    if redis.call("LLEN", KEYS[1]) > tonumber(ARGV[3]) then
      local time = redis.call("TIME")
      due = time[1] * 1000 + math.floor(time[2] / 1000)
    end
    redis.call("ZADD", KEYS[3], due, ARGV[1])
  end
end
return removed
