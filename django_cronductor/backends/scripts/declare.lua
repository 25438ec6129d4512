-- Per job: fingerprint, rest, then the seeds: occurrence, fence, paused, since ('' where not known).
return each(function(job, fingerprint, rest, occurrence, fence, paused, since)
  local new = not job.since
  job.format = FORMAT
  -- While it rests nothing is decided, and who knows of a newer decision may come second.
  if (new or resting(job)) and occurrence ~= '' then job.occurrence = math.max(job.occurrence, occurrence) end
  if new then
    if fence ~= '' then job.fence = math.max(job.fence, fence) end
    if paused == '1' then job.paused = 1 end
    -- A seed means that the store lost its data: living holders write their leases back before anything is decided.
    if occurrence .. fence .. paused .. since ~= '' then job.quiet = now + rest end
  end
  if new or job.fingerprint ~= fingerprint then
    job.fingerprint, job.since = fingerprint, tonumber(since) or now
  end
  return job.since
end)
