-- What the job scripts share; put before each of them. A job is one hash without expiry. An empty field means none, so
-- that a change is one HSET: done whole or not at all. Arguments are text: arithmetic reads them as numbers, a comparison
-- does not.

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

-- What the fields mean. Later releases may add fields, which these scripts neither read nor write; one that gives a field
-- another meaning raises this number, and who knows a lower one leaves its jobs alone.
local FORMAT = 1
local NUMBERS = {'format', 'since', 'occurrence', 'pending', 'attempt', 'expires', 'ttl', 'started', 'fence', 'paused', 'quiet', 'requested'}
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
  if job.format and job.format > FORMAT then
    return nil, 'its state has format ' .. job.format .. ', which a newer version of django-cronductor wrote'
  end
  job.occurrence, job.fence = job.occurrence or -1, job.fence or 0
  return job
end

local function write(key, before, job)
  local changes = {}
  for _, field in ipairs(FIELDS) do
    if job[field] ~= before[field] then
      changes[#changes + 1] = field
      changes[#changes + 1] = job[field] or ''
    end
  end
  if #changes == 0 then return nil end
  local done = redis.pcall('HSET', key, unpack(changes))
  return type(done) == 'table' and done.err
end

-- Ask `decide` about every key, with the key's share of the arguments; a key that fails answers for itself alone.
local function each(decide)
  local replies, width = {}, #ARGV / #KEYS
  for i, key in ipairs(KEYS) do
    local job, failure = read(key)
    local reply
    if job then
      local before, done = {}, nil
      for field, value in pairs(job) do before[field] = value end
      local function answer(...) return cjson.encode(decide(job, ...)) end
      done, reply = pcall(answer, unpack(ARGV, (i - 1) * width + 1, i * width))
      if done then failure = write(key, before, job) else failure = reply end
    end
    replies[i] = failure and cjson.encode({error = failure}) or reply
  end
  return {now, replies}
end

local function live(job)
  return job.token and job.expires > now
end

-- The run that has the lease; where no lease is live, it is dead, and nobody was told of it yet.
local function run_of(job)
  return job.token and {run = job.run, attempt = job.attempt, holder = job.holder, fence = job.fence}
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
  job.fence = math.max(job.fence + 1, now)
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
  if job.token then job.expires = math.min(job.expires, now + job.ttl) end
  if job.quiet then job.quiet = math.min(job.quiet, now + rest) end
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
  -- An equal fence without the lease was released, abandoned or forced off; at rest it is the holder's own, as a seed.
  if live(job) or job.fence > fence or (job.fence == fence and not resting(job)) then return 'lost' end
  return 'less'
end

local function lost(job)
  return {ok = false, left = job.token and math.max(0, job.expires - now)}
end

-- Write a lease back; its end is the caller's to set.
local function restore(job, token, fence, run, attempt, ttl, holder)
  job.token, job.run, job.attempt, job.holder = token, run, attempt, holder
  job.fence, job.ttl, job.started = fence, ttl, now
  if run ~= 'manual' then job.occurrence = math.max(job.occurrence, run) end
end
