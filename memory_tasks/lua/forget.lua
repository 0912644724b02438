-- Erase a conversation from working memory.
--
-- KEYS  1 turns   2 turn_ids   3 due   4 entries   5 conversations of the user   6 oldest
-- ARGV  1 scope tag
-- Returns how many turns there were.

local count = redis.call("LLEN", KEYS[1])
redis.call("DEL", KEYS[1], KEYS[2])
redis.call("ZREM", KEYS[3], ARGV[1])
redis.call("ZREM", KEYS[6], ARGV[1])
if redis.call("EXISTS", KEYS[4]) == 0 then
  redis.call("ZREM", KEYS[5], ARGV[1])
end
return count
