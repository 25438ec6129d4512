-- Keys: the locks, the counter last. Per lock: token, fence, ttl, holder.
local time = redis.call('TIME')
local replies = {}
local counter = table.remove(KEYS)
for i, key in ipairs(KEYS) do
  local token, fence, ttl, holder = unpack(ARGV, i * 4 - 3, i * 4)
  local there = redis.pcall('HGET', key, 'token')
  local failure = type(there) == 'table' and there.err
  -- A lock that is gone while no fence above its own was given: the store lost data, and nobody came in between.
  if not there and (tonumber(redis.call('GET', counter)) or 0) <= tonumber(fence) then
    redis.call('SET', counter, fence)
    redis.call('HSET', key, 'token', token, 'fence', fence, 'holder', holder)
    there = token
  end
  local ours = there == token
  if ours then redis.call('PEXPIRE', key, ttl) end
  local left = not ours and there and math.max(0, redis.call('PTTL', key)) or nil
  replies[i] = cjson.encode(failure and {error = failure} or {ok = ours, left = left})
end
return {time[1] * 1000 + math.floor(time[2] / 1000), replies}
