-- Keys: the lock (a hash that ends by itself), the counter of all plain locks. Arguments: token, ttl, holder.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local lock = redis.call('HMGET', KEYS[1], 'token', 'fence', 'holder')
local fence = tonumber(lock[2])
if lock[1] and lock[1] ~= ARGV[1] then
  return {now, 0, lock[3], redis.call('PTTL', KEYS[1])}
end
if not lock[1] then
  -- Never below the clock: fences rise even if the store lost its data.
  fence = math.max((tonumber(redis.call('GET', KEYS[2])) or 0) + 1, now)
  redis.call('SET', KEYS[2], string.format('%.0f', fence))
  redis.call('HSET', KEYS[1], 'token', ARGV[1], 'fence', string.format('%.0f', fence), 'holder', ARGV[3])
end
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return {now, fence, ARGV[3], tonumber(ARGV[2])}
