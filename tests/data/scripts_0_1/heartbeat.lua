-- Keys: the instances with their last heartbeat; the requested keys with when. Arguments: instance, its lifetime, that of
-- a request.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local known = redis.call('ZSCORE', KEYS[1], ARGV[1])
redis.call('ZADD', KEYS[1], now, ARGV[1])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', '(' .. now - ARGV[2])
redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', '(' .. now - ARGV[3])
return {now, known, redis.call('ZRANGE', KEYS[2], 0, -1)}
