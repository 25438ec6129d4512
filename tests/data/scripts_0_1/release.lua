-- Per job: token, fence, run, attempt, ttl, holder, outcome.
return each(function(job, token, fence, run, attempt, ttl, holder, outcome)
  fence = tonumber(fence)
  local retry = token .. ':released'
  if job.asked == retry then return cjson.decode(job.answer) end
  local owned = own(job, token, fence)
  if owned == 'lost' then return lost(job) end
  if owned == 'less' then restore(job, token, fence, run, attempt, ttl, holder) end
  drop(job, now, outcome)
  -- What came during the run is consumed by its end: overlap skips, once, told by the one who caused it.
  local pending, decided = job.pending, job.occurrence
  job.pending = nil
  if not pending or pending <= decided then return {ok = true} end
  job.occurrence = pending
  return say(job, retry, {ok = true, held = {math.max(decided, job.since), pending}})
end)
