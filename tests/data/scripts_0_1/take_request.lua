-- One job: token, ttl, rest, holder, how long a request lasts, whether none is needed, its key as the set of requested
-- keys (the last key) names it.
local requests, member = table.remove(KEYS), table.remove(ARGV)
return each(function(job, token, ttl, rest, holder, lifetime, unasked)
  cut(job, rest)
  if job.asked == token then return replay(job, token, ttl) end
  if unasked == '1' and not job.since then return {verdict = 'undeclared'} end
  if resting(job) then return {verdict = 'busy', left = job.quiet - now} end
  if live(job) then return {verdict = 'busy', left = job.expires - now, holder = job.holder} end
  if unasked ~= '1' then
    local fresh = job.requested and now - job.requested <= tonumber(lifetime)
    job.requested = nil
    redis.call('ZREM', requests, member)
    if not fresh then return {verdict = 'none'} end
  end
  local dead = run_of(job)
  win(job, 'manual', 0, token, ttl, holder)
  return say(job, token, {verdict = 'won', dead = dead, fence = job.fence})
end)
