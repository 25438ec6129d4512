-- Keys: the instances with their last heartbeat, the set of requested keys. Arguments: instance, its lifetime.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local known = redis.call('ZSCORE', KEYS[1], ARGV[1])
redis.call('ZADD', KEYS[1], string.format('%.0f', now), ARGV[1])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', string.format('(%.0f', now - ARGV[2]))
return {now, known and 1 or 0, redis.call('SMEMBERS', KEYS[2])}
