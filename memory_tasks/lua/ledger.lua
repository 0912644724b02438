-- The life of a turn: every change of its saved state is one call of this script.
--
-- KEYS  1 entry   2 events   3 scope   4 mailbox   5 sweep   6 dead   7 entries   8 conversations of the user   9 turns
-- ARGV  1 command   2 turn tag   3 epoch, or ""   4... arguments of the command, named where it is defined below
--
-- Entry: v, state, epoch, request, trace, context, reply, calls, lease, lease_until, contested, retry_at, long_term, published,
-- deliveries:STEP, attempts:STEP, error, failed_step, resume, STATE_at. All times are ms of this server's clock.
-- The epoch is the moment of acceptance: an entry made anew after a forget has another one.

local ENTRY, EVENTS, SCOPE, MAILBOX, SWEEP, DEAD, ENTRIES, CONVERSATIONS, TURNS = unpack(KEYS)
local FORMAT = 1
local tag, epoch = ARGV[2], ARGV[3]
local scope_tag, turn = string.match(tag, "^(.*):([^:]*)$")
local time = redis.call("TIME")
local now = time[1] * 1000 + math.floor(time[2] / 1000)

local function get(...)
  return unpack(redis.call("HMGET", ENTRY, ...))
end

-- What a newer version has written may mean something else: it is left alone.
if (tonumber(get("v") or 0) or 0) > FORMAT then
  return redis.error_reply("NEWERFORMAT turn")
end

local function set(...)
  redis.call("HSET", ENTRY, ...)
end

local function is_current()
  return get("epoch") == epoch
end

local function enter(state)
  set("state", state, state .. "_at", now)
end

local function event(...)
  redis.call("XADD", EVENTS, "*", ...)
end

local function attention_in(ms)
  redis.call("ZADD", SWEEP, now + ms, tag)
end

-- The turn is no longer the active one: the next in the mailbox is. Returns its tag and epoch, or "".
local function advance(grace)
  if redis.call("HGET", SCOPE, "active") ~= tag then
    return ""
  end
  local next = redis.call("LPOP", MAILBOX)
  if not next then
    redis.call("DEL", SCOPE)
    return ""
  end
  local next_tag = string.match(next, "^%S+")
  redis.call("HSET", SCOPE, "active", next_tag)
  redis.call("ZADD", SWEEP, now + grace, next_tag)
  return next
end

local function drop_lease()
  redis.call("HDEL", ENTRY, "lease", "lease_until", "contested")
end

-- The entry is there for good, until it is finished or dropped: forget must find it.
local function register()
  redis.call("ZREMRANGEBYSCORE", ENTRIES, "-inf", now)
  redis.call("ZADD", ENTRIES, "+inf", turn)
  redis.call("PERSIST", ENTRIES)
  redis.call("ZREMRANGEBYSCORE", CONVERSATIONS, "-inf", now)
  redis.call("ZADD", CONVERSATIONS, "+inf", scope_tag)
  redis.call("PERSIST", CONVERSATIONS)
end

-- The entry is gone at this time (ms), or already without one; what has nothing left leaves the lists.
local function unregister(at)
  if at then
    redis.call("ZADD", ENTRIES, at, turn)
  else
    redis.call("ZREM", ENTRIES, turn)
  end
  local last = redis.call("ZREVRANGE", ENTRIES, 0, 0, "WITHSCORES")[2]
  if last ~= "inf" then
    if last then
      redis.call("PEXPIREAT", ENTRIES, last)
    end
    if redis.call("EXISTS", TURNS) == 0 then
      if last then
        redis.call("ZADD", CONVERSATIONS, last, scope_tag)
      else
        redis.call("ZREM", CONVERSATIONS, scope_tag)
      end
      local newest = redis.call("ZREVRANGE", CONVERSATIONS, 0, 0, "WITHSCORES")[2]
      if newest and newest ~= "inf" then
        redis.call("PEXPIREAT", CONVERSATIONS, newest)
      end
    end
  end
end

-- Nothing is left to do: drop what only the work needed, keep the rest for a while for those who ask.
local function finish(ttl)
  drop_lease()
  redis.call("HDEL", ENTRY, "request", "context", "retry_at", "long_term", "published")
  redis.call("PEXPIRE", ENTRY, ttl)
  redis.call("PEXPIRE", EVENTS, ttl)
  redis.call("ZREM", SWEEP, tag)
  unregister(now + ttl)
end

local function fail(step, error, grace)
  set("resume", get("state"), "failed_step", step, "error", error)
  enter("failed")
  drop_lease()
  redis.call("HDEL", ENTRY, "retry_at")
  redis.call("ZADD", DEAD, now, tag)
  redis.call("ZREM", SWEEP, tag)
  event("type", "failed", "step", step, "error", error)
  return advance(grace)
end

local function is_needed(step)
  local state, long_term = get("state", "long_term")
  return (step == "recall" and state == "accepted")
    or (step == "complete" and state == "recalled")
    or (step == "persist" and (state == "completed" or (state == "persisted" and long_term == "pending")))
end

local commands = {}

-- request, grace: ms after which a turn that nobody has published needs attention, trace of the caller or ""
-- Returns {1 new | 0 known, epoch, 1 to be published | 0 not}.
function commands.accept(request, grace, trace)
  local known = get("epoch")
  if known then
    return { 0, known, 0 }
  end
  epoch = string.format("%.0f", time[1] * 1000000 + time[2])
  set("v", FORMAT, "epoch", epoch, "request", request)
  if trace ~= "" then
    set("trace", trace)
  end
  enter("accepted")
  register()
  if redis.call("HEXISTS", SCOPE, "active") == 1 then
    redis.call("RPUSH", MAILBOX, tag .. " " .. epoch)
    return { 1, epoch, 0 }
  end
  redis.call("HSET", SCOPE, "active", tag)
  attention_in(grace)
  return { 1, epoch, 1 }
end

-- step, deadline: ms after which the step is taken for lost, max_deliveries, token of the completion lease, grace
-- Returns {"go", request, context, reply, attempts, calls, turns that wait behind it, trace} | {"busy"} another works on it
--   | {"stale", next} done, failed, forgotten or not yet there | {"dead", next} it took too many workers down.
function commands.begin(step, deadline, max_deliveries, token, grace)
  if not is_current() then
    if not get("epoch") then
      redis.call("ZREM", SWEEP, tag)
      return { "stale", advance(grace) }
    end
    return { "stale", "" }
  end
  if not is_needed(step) then
    return { "stale", "" }
  end
  local lease_until, contested, retry_at = get("lease_until", "contested", "retry_at")
  if now < tonumber(lease_until or 0) or now < tonumber(contested or 0) or now < tonumber(retry_at or 0) then
    return { "busy" }
  end
  if lease_until and not contested then
    -- The holder may only have been cut off from this server. Now that the server answers again, it gets the time of
    -- one more lease to come back with what has been paid for.
    set("contested", now + deadline)
    attention_in(deadline)
    return { "busy" }
  end
  if redis.call("HINCRBY", ENTRY, "deliveries:" .. step, 1) > tonumber(max_deliveries) then
    return { "dead", fail(step, "WorkerLostError", grace) }
  end
  redis.call("HDEL", ENTRY, "published", "retry_at")
  if step == "complete" then
    drop_lease()
    set("lease", token, "lease_until", now + deadline)
    redis.call("HINCRBY", ENTRY, "calls", 1)
  end
  attention_in(deadline)
  local request, context, reply, attempts, calls, trace =
    get("request", "context", "reply", "attempts:" .. step, "calls", "trace")
  return {
    "go", request or "", context or "", reply or "", tonumber(attempts or 0), tonumber(calls or 0),
    redis.call("LLEN", MAILBOX), trace or "",
  }
end

-- context, grace
-- Returns 1 saved | 0 not needed any more.
function commands.recalled(context, grace)
  if not is_current() or get("state") ~= "accepted" then
    return 0
  end
  set("context", context)
  enter("recalled")
  attention_in(grace)
  return 1
end

-- token, lease: ms
-- Returns 1 still ours | 0 taken over, answered or forgotten.
function commands.renew(token, lease)
  if not is_current() or get("lease") ~= token then
    return 0
  end
  set("lease_until", now + lease)
  redis.call("HDEL", ENTRY, "contested")
  attention_in(lease)
  return 1
end

-- token, field: "text", or "sealed" when it is encrypted, text, call: number of the model call the chunk belongs to, max_events, ttl
-- Returns 1 written | 0 the call is not ours any more.
function commands.chunk(token, field, text, call, max_events, ttl)
  if not is_current() or get("lease") ~= token then
    return 0
  end
  redis.call("XADD", EVENTS, "MAXLEN", "~", max_events, "*", "type", "chunk", field, text, "call", call)
  redis.call("PEXPIRE", EVENTS, ttl)
  return 1
end

-- reply, grace
-- The first answer saved is the answer, whoever holds the lease: it has been paid for.
-- Returns 1 saved | 0 there was an answer already | -1 forgotten.
function commands.completed(reply, grace)
  if not is_current() then
    return -1
  end
  if get("state") ~= "recalled" then
    return 0
  end
  set("reply", reply)
  drop_lease()
  redis.call("HDEL", ENTRY, "context")
  enter("completed")
  event("type", "completed")
  attention_in(grace)
  return 1
end

-- long_term: "pending" when a write into long-term memory is still to come, else "", deadline, ttl, grace
-- Returns {1, next} | {0, ""} not needed any more.
function commands.persisted(long_term, deadline, ttl, grace)
  if not is_current() or get("state") ~= "completed" then
    return { 0, "" }
  end
  enter("persisted")
  event("type", "persisted")
  if long_term == "pending" then
    set("long_term", long_term)
    redis.call("HDEL", ENTRY, "deliveries:persist", "attempts:persist")
    attention_in(deadline)
  else
    finish(ttl)
  end
  return { 1, advance(grace) }
end

-- promoted: "1" when the turn is in long-term memory now, else "", ttl
function commands.settled(promoted, ttl)
  if not is_current() or get("state") ~= "persisted" then
    return 0
  end
  if promoted == "1" then
    enter("promoted")
    event("type", "promoted")
  end
  finish(ttl)
  return 1
end

-- step, token, error, delay ms, max_attempts, grace
-- Returns {"retry"} | {"dead", next} | {"stale"}.
function commands.retry(step, token, error, delay, max_attempts, grace)
  if not is_current() or not is_needed(step) or (step == "complete" and get("lease") ~= token) then
    return { "stale" }
  end
  -- The worker survived, so this delivery does not count against the turn; the failure does.
  redis.call("HINCRBY", ENTRY, "deliveries:" .. step, -1)
  if redis.call("HINCRBY", ENTRY, "attempts:" .. step, 1) >= tonumber(max_attempts) then
    return { "dead", fail(step, error, grace) }
  end
  drop_lease()
  set("error", error, "retry_at", now + delay)
  attention_in(delay)
  return { "retry" }
end

-- base ms, cap ms, grace: the sweep takes the turn in hand; how soon it looks again doubles while nobody begins.
-- Returns {state, epoch} to be published | {"", next} nothing to do for it.
function commands.republish(base, cap, grace)
  local state, known = get("state", "epoch")
  if not state or state == "failed" then
    redis.call("ZREM", SWEEP, tag)
    return { "", advance(grace) }
  end
  local times = redis.call("HINCRBY", ENTRY, "published", 1)
  attention_in(math.min(tonumber(cap), base * 2 ^ (times - 1)))
  return { state, known }
end

-- grace
-- A dead letter goes on from its saved state, behind what waits.
-- Returns {1 to be published | 0 waits its turn | -1 no dead letter, state, epoch}.
function commands.revive(grace)
  local state, resume, known = get("state", "resume", "epoch")
  if state ~= "failed" then
    return { -1, "", "" }
  end
  set("state", resume)
  for _, step in ipairs({ "recall", "complete", "persist" }) do
    redis.call("HDEL", ENTRY, "deliveries:" .. step, "attempts:" .. step)
  end
  redis.call("HDEL", ENTRY, "resume", "failed_step", "failed_at", "error")
  redis.call("ZREM", DEAD, tag)
  if resume ~= "persisted" then
    if redis.call("HEXISTS", SCOPE, "active") == 1 then
      redis.call("RPUSH", MAILBOX, tag .. " " .. known)
      return { 0, resume, known }
    end
    redis.call("HSET", SCOPE, "active", tag)
  end
  attention_in(grace)
  return { 1, resume, known }
end

-- Returns 1 dropped | 0 no dead letter.
function commands.drop()
  if get("state") ~= "failed" then
    return 0
  end
  redis.call("DEL", ENTRY, EVENTS)
  redis.call("ZREM", DEAD, tag)
  unregister()
  return 1
end

-- grace
-- Erases the turn in whatever state it is; a task that works for it writes nothing more.
-- Returns {1 erased | 0 there was none, next}.
function commands.forget(grace)
  local known = get("epoch")
  if known then
    redis.call("LREM", MAILBOX, 0, tag .. " " .. known)
  end
  local next = advance(grace)
  redis.call("ZREM", SWEEP, tag)
  redis.call("ZREM", DEAD, tag)
  redis.call("DEL", ENTRY, EVENTS)
  unregister()
  return { known and 1 or 0, next }
end

return commands[ARGV[1]](unpack(ARGV, 4))
