#!/bin/sh
# Installs the wheel and uses it as a newcomer would. For a clean root, as root; `cargo xtask wheel try` makes one.
set -eu

. /expect.sh

expect 'before' 'no command' "$(command -v tenure || echo 'no command')"
began=$(date +%s%N)
python3 -m venv /env
/env/bin/pip install --quiet --no-index --disable-pip-version-check /tenure-*.whl
export PATH="/env/bin:$PATH" TENURE_URL=sqlite:/var/lib/locks.db

# The command.
expect 'run' 'I hold the lock' "$(tenure run hello -- echo 'I hold the lock')"
printf 'from nothing to the first lock: %s ms\n' $((($(date +%s%N) - began) / 1000000))
expect 'manual' 'there' "$(test -s /env/share/man/man1/tenure-run.1 && echo there)"
expect 'all stores' '0' "$(tenure --help | grep -c 'no etcd')"
for url in etcd://127.0.0.1:1 mysql://u@127.0.0.1:1/d zookeeper://127.0.0.1:1 postgres://u@127.0.0.1:1/d redis://127.0.0.1:1; do
    expect "$url is known" 69 "$(status=0; tenure --url "$url" run -n x -- true 2>/dev/null || status=$?; echo $status)"
done

# The module, beside the command.
expect 'module' 'held' "$(python3 -c '
import subprocess, tenure
with tenure.connect().mutex("hello") as lease:
    lease.check()
    busy = subprocess.run(["tenure", "run", "-n", "hello", "--", "true"], stderr=subprocess.PIPE)
    assert busy.returncode == 1 and b"held by" in busy.stderr, busy
print("held")')"
expect 'asyncio' 'held' "$(python3 -c '
import asyncio, tenure
async def main():
    async with tenure.connect().mutex("hello") as lease:
        lease.check()
    print("held")
asyncio.run(main())')"

# It ends without a crash, whatever it has: `expect` does not see the exit code of what prints.
for code in 'tenure.connect()' \
    'lease = tenure.connect().mutex("hello").acquire(); lease.on_lost(print)' \
    'import threading; lock = tenure.connect().mutex("a"); lease = lock.acquire()
threading.Thread(target=lock.acquire, daemon=True).start()'; do
    expect "$code ends" 0 "$(code python3 -c "import tenure; $code")"
done

# What it needs of the system: glibc, and nothing else.
for file in /env/bin/tenure /env/lib/python3.*/site-packages/tenure/_native.abi3.so; do
    ldd "$file"
    expect "$file needs glibc alone" '' \
        "$(ldd "$file" | grep -v 'linux-vdso\|ld-linux\|/libc\.\|/libm\.\|/libpthread\.\|/libdl\.\|/librt\.\|/libgcc_s\.\|/libutil\.' || true)"
done
ls -l /tenure-*.whl
