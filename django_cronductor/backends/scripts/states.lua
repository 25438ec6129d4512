-- Per job: nothing. Reads only.
return each(0, function(job) return job end)
