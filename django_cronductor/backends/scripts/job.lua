-- What the job scripts share; put before each of them. A job is one hash without expiry. An empty field means none, so
-- that a change is one HSET: done whole or not at all.

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

local NUMBERS = {'since', 'occurrence', 'pending', 'attempt', 'expires', 'ttl', 'started', 'fence', 'paused', 'quiet', 'requested'}
local TEXTS = {'fingerprint', 'asked', 'answer', 'token', 'run', 'holder', 'last'}
local LEASE = {'token', 'run', 'attempt', 'holder', 'expires', 'ttl', 'started'}

local FIELDS = {}
for _, field in ipairs(NUMBERS) do FIELDS[#FIELDS + 1] = field end
for _, field in ipairs(TEXTS) do FIELDS[#FIELDS + 1] = field end

local function read(key)
  local values = redis.pcall('HMGET', key, unpack(FIELDS))
  if values.err then return nil, values.err end
  local job = {}
  for i, field in ipairs(FIELDS) do
    if values[i] and values[i] ~= '' then
      job[field] = i <= #NUMBERS and tonumber(values[i]) or values[i]
    end
  end
  return job
end

local function write(key, before, job)
  local changes = {}
  for _, field in ipairs(FIELDS) do
    if job[field] ~= before[field] then
      local value = job[field] or ''
      if type(value) == 'number' then value = string.format('%.0f', value) end
      changes[#changes + 1] = field
      changes[#changes + 1] = value
    end
  end
  if #changes == 0 then return nil end
  local done = redis.pcall('HSET', key, unpack(changes))
  return type(done) == 'table' and done.err or nil
end

-- Ask `decide` about every key, with its `width` arguments; a key that fails answers for itself alone.
local function each(width, decide)
  local replies = {}
  for i, key in ipairs(KEYS) do
    local job, failure = read(key)
    local reply
    if job then
      local before, arguments = {}, {}
      for field, value in pairs(job) do before[field] = value end
      for n = 1, width do arguments[n] = ARGV[(i - 1) * width + n] end
      reply = decide(job, unpack(arguments))
      failure = write(key, before, job)
    end
    replies[i] = cjson.encode(failure and {error = failure} or reply)
  end
  return {now, replies}
end

local function live(job)
  return job.token and job.expires > now
end

local function dead(job)
  if job.token and not live(job) then
    return {run = job.run, attempt = job.attempt, holder = job.holder, fence = job.fence}
  end
end

-- End the lease; the fence stays. `last` is for the eye: no rule reads it.
local function drop(job, ended, outcome)
  if not job.token then return end
  job.last = cjson.encode({
    holder = job.holder, run = job.run, fence = job.fence, started = job.started, ended = ended, outcome = outcome})
  for _, field in ipairs(LEASE) do job[field] = nil end
end

local function drop_dead(job)
  drop(job, job.expires, 'abandoned')
end

-- Start a lease over whatever dead one was there. Never below the clock: fences rise even if the store lost its data.
local function win(job, run, attempt, token, ttl, holder)
  drop_dead(job)
  job.fence = math.max((job.fence or 0) + 1, now)
  job.token, job.run, job.attempt, job.holder = token, run, attempt, holder
  job.ttl, job.started, job.expires = ttl, now, now + ttl
end

-- Keep the whole answer under its token: a retry after a lost reply hears the same.
local function say(job, token, answer)
  job.asked, job.answer = token, cjson.encode(answer)
  return answer
end

-- The clock may have gone back: nothing lasts longer than it was made for.
local function cut(job, rest)
  if job.token and job.expires - now > job.ttl then job.expires = now + job.ttl end
  if job.quiet and job.quiet - now > rest then job.quiet = now + rest end
end

local function resting(job)
  return job.quiet and job.quiet > now
end

local function replay(job, token, ttl)
  local answer = cjson.decode(job.answer)
  if answer.verdict ~= 'won' and answer.verdict ~= 'recovered' then return answer end
  if job.token ~= token then return {verdict = 'lost', previous = answer.previous, dead = answer.dead} end
  job.expires = now + ttl
  return answer
end

-- What a holder's lease is to the store: 'ours', 'lost', or 'less': the store lost data and knows less than the holder.
local function own(job, token, fence)
  if job.token == token then return 'ours' end
  local there = job.fence or 0
  -- An equal fence without the lease was released, abandoned or forced off; at rest it is the holder's own, as a seed.
  if live(job) or there > fence or (there == fence and not resting(job)) then return 'lost' end
  return 'less'
end

local function lost(job)
  return {ok = false, left = job.token and math.max(0, job.expires - now) or nil}
end

local function restore(job, token, fence, run, attempt, ttl, holder)
  job.token, job.run, job.attempt, job.holder = token, run, attempt, holder
  job.fence, job.ttl, job.started, job.expires = fence, ttl, now, now + ttl
  if tonumber(run) then job.occurrence = math.max(job.occurrence or -1, tonumber(run)) end
end
