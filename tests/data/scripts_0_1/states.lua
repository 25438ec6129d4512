-- Per job: nothing. Reads only.
return each(function(job) return job end)
