-- Keys: the lock (a hash that ends by itself), the counter of all plain locks. Arguments: token, ttl, holder.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local token, fence, holder = unpack(redis.call('HMGET', KEYS[1], 'token', 'fence', 'holder'))
if token and token ~= ARGV[1] then
  return {now, 0, holder, redis.call('PTTL', KEYS[1])}
end
if not token then
  -- Never below the clock: fences rise even if the store lost its data.
  fence = math.max((redis.call('GET', KEYS[2]) or 0) + 1, now)
  redis.call('SET', KEYS[2], fence)
  redis.call('HSET', KEYS[1], 'token', ARGV[1], 'fence', fence, 'holder', ARGV[3])
end
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return {now, fence, ARGV[3], ARGV[2]}
