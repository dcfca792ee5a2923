<?php
// Contends with symfony/lock: PORT NAME MS PAUSE COUNTER. See clients.rs.

use Symfony\Component\Lock\LockFactory;
use Symfony\Component\Lock\Store\RedisStore;

require 'Symfony/Component/Lock/autoload.php';

[, $port, $name, $ms, $pause, $counter] = $argv;

function connect(string $port): Redis
{
    $redis = new Redis();
    $redis->connect('127.0.0.1', (int) $port);
    return $redis;
}

$referee = connect($port);
$factory = new LockFactory(new RedisStore(connect($port)));
echo "ready\n";
fgets(STDIN);
$entries = $violations = 0;
$end = hrtime(true) + $ms * 1_000_000;
while (hrtime(true) < $end) {
    $lock = $factory->createLock($name, 30);
    if (!$lock->acquire()) {
        usleep(2_000);
        continue;
    }
    $violations += $referee->incr($counter) !== 1;
    usleep(random_int(1_000, 5_000));
    $violations += $referee->decr($counter) !== 0;
    // Throws if it was not ours any more.
    $lock->release();
    $entries += 1;
    usleep($pause * 1_000);
}
echo "$entries $violations\n";
