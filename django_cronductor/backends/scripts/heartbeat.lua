-- Keys: the instances with their last heartbeat, the set of requested keys. Arguments: instance, its lifetime.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local known = redis.call('ZSCORE', KEYS[1], ARGV[1])
redis.call('ZADD', KEYS[1], now, ARGV[1])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', '(' .. now - ARGV[2])
return {now, known, redis.call('SMEMBERS', KEYS[2])}
