-- Keys: the locks, the counter last. Per lock: token, fence, ttl, holder.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local replies = {}
local counter = table.remove(KEYS)
for i, key in ipairs(KEYS) do
  local token, fence, ttl, holder = unpack(ARGV, i * 4 - 3, i * 4)
  local there = redis.pcall('HGET', key, 'token')
  local failure = type(there) == 'table' and there.err
  -- A counter below the lock's own fence: the store lost data. Otherwise a lock that is gone has ended or was released.
  if not there and (tonumber(redis.call('GET', counter)) or 0) < tonumber(fence) then
    redis.call('SET', counter, fence)
    redis.call('HSET', key, 'token', token, 'fence', fence, 'holder', holder)
    there = token
  end
  local ours = there == token
  if ours then redis.call('PEXPIRE', key, ttl) end
  local left = not ours and there and redis.call('PTTL', key) or nil
  replies[i] = cjson.encode(failure and {error = failure} or {ok = ours, left = left})
end
return {now, replies}
