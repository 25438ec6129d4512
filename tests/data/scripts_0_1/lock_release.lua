-- Keys: the locks. Per lock: token. A lock that is gone counts as released: a retry cannot tell, and nobody is locked out.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local replies = {}
for i, key in ipairs(KEYS) do
  local there = redis.pcall('HGET', key, 'token')
  local failure = type(there) == 'table' and there.err
  local ours = not there or there == ARGV[i]
  if ours then redis.call('DEL', key) end
  local left = not ours and redis.call('PTTL', key) or nil
  replies[i] = cjson.encode(failure and {error = failure} or {ok = ours, left = left})
end
return {now, replies}
