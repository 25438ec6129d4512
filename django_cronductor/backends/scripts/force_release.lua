-- One job. The holder's fence is behind from here on, so that it cannot write its lease back.
return each(0, function(job)
  local gone = job.token and {run = job.run, attempt = job.attempt, holder = job.holder, fence = job.fence}
  drop(job, now, 'released by force')
  job.fence = (job.fence or 0) + 1
  return gone or false
end)
