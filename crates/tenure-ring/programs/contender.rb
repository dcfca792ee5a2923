# Contends with the recipe of Redis' manual over the gem redis, as the gem redlock does: PORT NAME MS PAUSE COUNTER. See clients.rs.

require "redis"
require "securerandom"

RELEASE = <<~LUA
  if redis.call("get", KEYS[1]) == ARGV[1] then return redis.call("del", KEYS[1]) else return 0 end
LUA

port, name, ms, pause, counter = ARGV
client, referee = Array.new(2) { Redis.new(host: "127.0.0.1", port: port.to_i) }
[client, referee].each(&:ping)
$stdout.sync = true
puts "ready"
$stdin.gets
clock = -> { Process.clock_gettime(Process::CLOCK_MONOTONIC) }
entries = violations = 0
over = clock.call + ms.to_i / 1000.0
while clock.call < over
  value = SecureRandom.uuid
  unless client.set(name, value, nx: true, px: 30_000)
    sleep 0.002
    next
  end
  violations += 1 if referee.incr(counter) != 1
  sleep rand(0.001..0.005)
  violations += 1 if referee.decr(counter) != 0
  raise "it was not ours any more" if client.eval(RELEASE, keys: [name], argv: [value]) != 1
  entries += 1
  sleep pause.to_i / 1000.0
end
puts "#{entries} #{violations}"
