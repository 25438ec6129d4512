-- Per job: token, fence, run, attempt, ttl, holder.
return each(function(job, token, fence, run, attempt, ttl, holder)
  fence = tonumber(fence)
  local owned = own(job, token, fence)
  if owned == 'lost' then return lost(job) end
  if owned == 'less' then restore(job, token, fence, run, attempt, ttl, holder) end
  job.expires = now + ttl
  return {ok = true}
end)
