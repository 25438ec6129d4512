-- Per job: token, fence, run, attempt, ttl, holder.
return each(6, function(job, token, fence, run, attempt, ttl, holder)
  fence, attempt, ttl = tonumber(fence), tonumber(attempt), tonumber(ttl)
  local owned = own(job, token, fence)
  if owned == 'lost' then return lost(job) end
  if owned == 'less' then restore(job, token, fence, run, attempt, ttl, holder) end
  job.expires = now + ttl
  return {ok = true}
end)
