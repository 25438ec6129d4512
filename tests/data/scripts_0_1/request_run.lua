-- One job: its key as the set of requested keys (the last key) names it.
local requests = table.remove(KEYS)
return each(function(job, member)
  if not job.since then return false end
  job.requested = now
  redis.call('ZADD', requests, now, member)
  return true
end)
