-- Per job: occurrence, token, ttl, grace, recover (1 or 0), rest (three renewal periods), holder.
return each(function(job, occurrence, token, ttl, grace, recover, rest, holder)
  occurrence, grace = tonumber(occurrence), tonumber(grace)
  if not job.since then return {verdict = 'undeclared'} end
  cut(job, rest)
  if job.asked == token then return replay(job, token, ttl) end
  -- What is decided rests as well: a lease may yet be written back.
  if resting(job) then return {verdict = 'early', left = job.quiet - now} end

  local decided = occurrence <= job.occurrence
  if not decided and occurrence > now then return {verdict = 'early', left = occurrence - now} end
  if live(job) then
    local left = job.expires - now
    if decided then return {verdict = 'taken', left = left, holder = job.holder} end
    job.pending = math.max(job.pending or occurrence, occurrence)
    return {verdict = 'held', left = left, holder = job.holder}
  end

  local dead = run_of(job)
  if decided then
    if not dead then return {verdict = 'taken'} end
    local again = recover == '1' and tonumber(job.run) == occurrence and job.attempt == 0
    if again and not job.paused and now - job.expires <= grace then
      win(job, occurrence, 1, token, ttl, holder)
      return say(job, token, {verdict = 'recovered', dead = dead, fence = job.fence, attempt = 1})
    end
    drop_dead(job)
    return say(job, token, {verdict = 'taken', dead = dead})
  end

  local previous = math.max(job.occurrence, job.since)
  job.occurrence, job.pending = occurrence, nil
  if job.paused or now - occurrence > grace then
    drop_dead(job)
    return say(job, token, {verdict = job.paused and 'paused' or 'missed', previous = previous, dead = dead})
  end
  win(job, occurrence, 0, token, ttl, holder)
  return say(job, token, {verdict = 'won', previous = previous, dead = dead, fence = job.fence})
end)
