-- One job: token, ttl, rest, holder, how long a request lasts. The last key is the set of requested keys.
local requests, member = table.remove(KEYS), table.remove(ARGV)
return each(function(job, token, ttl, rest, holder, lifetime)
  cut(job, rest)
  if job.asked == token then return replay(job, token, ttl) end
  if resting(job) or live(job) then return {verdict = 'busy'} end
  local fresh = job.requested and now - job.requested <= tonumber(lifetime)
  job.requested = nil
  redis.call('SREM', requests, member)
  if not fresh then return {verdict = 'none'} end
  local dead = run_of(job)
  win(job, 'manual', 0, token, ttl, holder)
  return say(job, token, {verdict = 'won', dead = dead, fence = job.fence})
end)
