-- Keys: the jobs, last the instances with their last heartbeat. Argument: the lifetime of an instance. Reads only, and no
-- more than it must: it may be asked about very many jobs at once, and everybody waits meanwhile.
local instances = table.remove(KEYS)
local replies = {}
for i, key in ipairs(KEYS) do
  local job, failure = read(key)
  local done, reply = pcall(cjson.encode, job or {error = failure})
  replies[i] = done and reply or cjson.encode({error = reply})
end
local alive = redis.pcall('ZRANGEBYSCORE', instances, now - ARGV[1], '+inf', 'WITHSCORES')
return {now, replies, alive.err or alive}
