#!/usr/bin/env python3
"""Most connections of n elections while a fault lasts. Run by hand, as root, from the root of the project:

    TENURE=target/debug/tenure python3 crates/tenure-testkit/connections.py [mariadb|postgres|pgbouncer|redis] [SECONDS] [N,N,…]

FAULTS=locked,stopped,… names some of the faults. Prints a line for each store, fault and n: the most sockets of the n processes, and the most connections that the server
shows where it can be asked. Needs mariadbd, postgres, pgbouncer, redis-server. All of it listens on 127.0.0.1.
"""
import os, pathlib, shutil, signal, socket, subprocess, sys, tempfile, threading, time

TENURE = os.environ.get("TENURE", "target/debug/tenure")
STORES = sys.argv[1].split(",") if len(sys.argv) > 1 else ["mariadb", "postgres", "pgbouncer", "redis"]
SECONDS = float(sys.argv[2]) if len(sys.argv) > 2 else 20
COUNTS = [int(n) for n in sys.argv[3].split(",")] if len(sys.argv) > 3 else [1, 8, 40]
PG = next(iter(sorted(pathlib.Path("/usr/lib/postgresql").glob("*/bin"))), pathlib.Path("/usr/bin"))
QUIET = dict(stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def until(is_so, seconds=60):
    end = time.time() + seconds
    while not is_so():
        assert time.time() < end, "waited in vain"
        time.sleep(0.05)


class Proxy(threading.Thread):
    """pass, silent (accepts, and nothing goes through), slow (0.7 s each way), reset."""

    def __init__(self, target):
        super().__init__(daemon=True)
        self.target, self.mode, self.pairs = target, "pass", []
        self.door = socket.create_server(("127.0.0.1", 0), backlog=512)
        self.port = self.door.getsockname()[1]
        self.start()

    def run(self):
        while True:
            client, _ = self.door.accept()
            threading.Thread(target=self.serve, args=(client,), daemon=True).start()

    def serve(self, client):
        if self.mode == "reset":
            return self.cut(client)
        self.gate(client)
        try:
            server = socket.create_connection(("127.0.0.1", self.target))
        except OSError:
            return self.cut(client)
        self.pairs += [client, server]
        for a, b in ((client, server), (server, client)):
            threading.Thread(target=self.pump, args=(a, b), daemon=True).start()

    def gate(self, source):
        while self.mode == "silent":
            time.sleep(0.05)
            # Seen also here: the other side has closed it.
            try:
                if source.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) == b"":
                    return
            except (BlockingIOError, OSError):
                pass
        if self.mode == "slow":
            time.sleep(0.7)

    def pump(self, a, b):
        try:
            while data := a.recv(65536):
                self.gate(a)
                b.sendall(data)
        except OSError:
            pass
        for s in (a, b):
            try:
                s.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
            s.close()

    def cut(self, s):
        s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        s.close()

    def set(self, mode):
        self.mode = mode
        if mode == "reset":
            pairs, self.pairs = self.pairs, []
            for s in pairs:
                try:
                    s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
                    s.shutdown(socket.SHUT_RDWR)
                except OSError:
                    pass


class Store:
    faults = os.environ.get("FAULTS", "none,stopped,silent,reset,slow,locked,auth,full").split(",")
    held = None

    def __init__(self):
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix="tenure-connections-"))
        os.chmod(self.dir, 0o777)
        self.port, self.daemons, self.crowd = free_port(), [], []
        self.start()
        self.proxy = Proxy(self.front())

    def front(self):
        return self.port

    def spawn(self, *words, **more):
        self.daemons.append(subprocess.Popen([str(w) for w in words], **{**QUIET, **more}))
        return self.daemons[-1]

    def signal(self, number):
        for pid in self.server_pids():
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                pass

    def server_pids(self):
        return [d.pid for d in self.daemons]

    def begin(self, fault):
        if fault == "stopped":
            self.signal(signal.SIGSTOP)
        elif fault in ("silent", "reset", "slow"):
            self.proxy.set(fault)
        elif fault != "none":
            getattr(self, fault)()

    def end(self, fault):
        self.signal(signal.SIGCONT)
        self.proxy.set("pass")
        for s in self.crowd:
            s.close()
        self.crowd = []
        if self.held:
            self.held.kill()
            self.held = None

    def close(self):
        for d in reversed(self.daemons):
            d.terminate()
            try:
                d.wait(20)
            except subprocess.TimeoutExpired:
                d.kill()
                d.wait()
        shutil.rmtree(self.dir, ignore_errors=True)

    def seen(self):
        return 0


class Mariadb(Store):
    def start(self):
        data = self.dir / "data"
        subprocess.run(["mariadb-install-db", "--no-defaults", f"--datadir={data}", "--user=root", "--skip-test-db",
                        "--auth-root-authentication-method=normal"], check=True, **QUIET)
        self.sock = self.dir / "s"
        self.spawn("mariadbd", "--no-defaults", "--user=root", f"--datadir={data}", f"--socket={self.sock}",
                   f"--port={self.port}", "--bind-address=127.0.0.1", "--skip-name-resolve", f"--pid-file={self.dir}/pid")
        until(lambda: self.sql("SELECT 1") == "1")
        self.sql("CREATE DATABASE app; CREATE USER app@'127.0.0.1' IDENTIFIED BY 'a'; GRANT ALL ON app.* TO app@'127.0.0.1'")

    def client(self, *more):
        return ["mariadb", "--no-defaults", "-S", str(self.sock), "-uroot", "-N", *more]

    def sql(self, text):
        return subprocess.run(self.client("-e", text), capture_output=True, text=True).stdout.strip()

    def url(self):
        return f"mysql://app:a@127.0.0.1:{self.proxy.port}/app?ssl-mode=DISABLED"

    def locked(self):
        self.held = subprocess.Popen(self.client("app"), stdin=subprocess.PIPE, text=True, **QUIET)
        self.held.stdin.write("LOCK TABLES tenure_lock WRITE; SELECT SLEEP(1000);\n")
        self.held.stdin.flush()

    def auth(self):
        self.sql("ALTER USER app@'127.0.0.1' IDENTIFIED BY 'b'; " + self.kill())

    def full(self):
        self.sql("SET GLOBAL max_connections = 10; " + self.kill())

    def kill(self):
        ids = self.sql("SELECT id FROM information_schema.processlist WHERE user = 'app'").split()
        return "".join(f"KILL {i};" for i in ids)

    def end(self, fault):
        super().end(fault)
        self.sql("ALTER USER app@'127.0.0.1' IDENTIFIED BY 'a'; SET GLOBAL max_connections = 151")

    def seen(self):
        return int(self.sql("SELECT COUNT(*) FROM information_schema.processlist WHERE user = 'app'") or 0)


class Postgres(Store):
    def start(self):
        shutil.chown(self.dir, "nobody")
        run = ["setpriv", "--reuid=nobody", "--clear-groups"]
        subprocess.run([*run, PG / "initdb", "-D", self.dir / "a", "-U", "postgres", "-A", "trust"], check=True, **QUIET)
        self.spawn(*run, PG / "postgres", "-D", self.dir / "a", "-p", self.port, "-k", self.dir, "-c",
                   "listen_addresses=127.0.0.1", "-c", "fsync=off", "-c", "max_connections=200")
        until(lambda: self.sql("SELECT 1") == "1")
        self.sql("CREATE ROLE app LOGIN")
        self.sql("CREATE DATABASE app OWNER app")

    def server_pids(self):
        main = self.daemons[0].pid
        children = subprocess.run(["pgrep", "-P", str(main)], capture_output=True, text=True).stdout.split()
        return [main, *map(int, children)]

    def psql(self, *more):
        return ["psql", "-XqtA", "-h", str(self.dir), "-p", str(self.port), "-U", "postgres", *more]

    def sql(self, text, base="postgres"):
        return subprocess.run(self.psql("-d", base, "-c", text), capture_output=True, text=True, timeout=30).stdout.strip()

    def url(self):
        return f"postgres://app@127.0.0.1:{self.proxy.port}/app?sslmode=disable"

    def locked(self):
        lock = "BEGIN; LOCK TABLE tenure_lock IN ACCESS EXCLUSIVE MODE; SELECT pg_sleep(1000)"
        self.held = subprocess.Popen(self.psql("-d", "app", "-c", lock), **QUIET)

    def auth(self):
        self.sql("ALTER ROLE app NOLOGIN")
        self.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'app'")

    def full(self):
        self.sql("ALTER ROLE app CONNECTION LIMIT 3")
        self.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'app'")

    def end(self, fault):
        super().end(fault)
        self.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE '%pg_sleep(1000)%' AND pid <> pg_backend_pid()")
        self.sql("ALTER ROLE app LOGIN CONNECTION LIMIT -1")

    def seen(self):
        return int(self.sql("SELECT COUNT(*) FROM pg_stat_activity WHERE usename = 'app'") or 0)


class Pgbouncer(Postgres):
    def front(self):
        return self.pooler

    def start(self):
        super().start()
        self.pooler = free_port()
        (self.dir / "users").write_text('"app" ""\n')
        (self.dir / "ini").write_text(
            f"[databases]\napp = host=127.0.0.1 port={self.port}\n[pgbouncer]\nlisten_addr=127.0.0.1\n"
            f"listen_port={self.pooler}\nauth_type=trust\nauth_file={self.dir}/users\npool_mode=transaction\n"
            f"unix_socket_dir=\nmax_client_conn=100\n")
        os.chmod(self.dir / "users", 0o644)
        self.spawn("setpriv", "--reuid=nobody", "--clear-groups", "pgbouncer", self.dir / "ini")

    def server_pids(self):
        return super().server_pids()


class Redis(Store):
    faults = ["none", "stopped", "silent", "reset", "slow", "auth", "full"]

    def start(self):
        self.spawn("redis-server", "--port", self.port, "--bind", "127.0.0.1", "--dir", self.dir, "--appendonly", "yes",
                   "--maxmemory-policy", "noeviction", "--requirepass", "a")
        until(lambda: self.sql("PING") == "PONG")

    def sql(self, *words):
        pings = ["redis-cli", "-p", str(self.port), "-a", "a", "--no-auth-warning", *words]
        return subprocess.run(pings, capture_output=True, text=True).stdout.strip()

    def url(self):
        return f"redis://:a@127.0.0.1:{self.proxy.port}"

    def auth(self):
        self.sql("ACL", "SETUSER", "default", "resetpass", ">b", ">a")
        self.sql("ACL", "SETUSER", "other", "on", "nopass", "+@all", "~*", "&*")
        self.sql("ACL", "SETUSER", "default", "<a")
        self.proxy.set("reset")
        time.sleep(0.2)
        self.proxy.set("pass")

    def full(self):
        # Connected before nobody gets in.
        words = ["redis-cli", "-p", str(self.port), "-a", "a", "--no-auth-warning"]
        self.admin = subprocess.Popen(words, stdin=subprocess.PIPE, text=True, **QUIET)
        self.order("CONFIG SET maxclients 4")
        self.proxy.set("reset")
        time.sleep(0.2)
        self.proxy.set("pass")

    def end(self, fault):
        super().end(fault)
        b = ["redis-cli", "-p", str(self.port), "-a", "b", "--no-auth-warning", "ACL", "SETUSER", "default", ">a", "<b"]
        if fault == "auth":
            subprocess.run(b, **QUIET)
        if fault == "full":
            self.order("CONFIG SET maxclients 10000")
            until(lambda: self.sql("PING") == "PONG")
            self.admin.kill()

    def order(self, line):
        self.admin.stdin.write(line + "\n")
        self.admin.stdin.flush()


def sockets(pids, port):
    there = f":{port:04X}"
    inodes = set()
    for line in open("/proc/net/tcp").readlines()[1:]:
        fields = line.split()
        if fields[2].endswith(there) and fields[9] != "0":
            inodes.add(f"socket:[{fields[9]}]")
    count = 0
    for pid in pids:
        try:
            for fd in os.listdir(f"/proc/{pid}/fd"):
                try:
                    count += os.readlink(f"/proc/{pid}/fd/{fd}") in inodes
                except OSError:
                    pass
        except OSError:
            pass
    return count


def measure(store, fault, n):
    crowd = []
    for i in range(n):
        words = [TENURE, "--url", store.url(), "lead", f"job{i}", "--ttl", "10s", "--", "sleep", "1000"]
        crowd.append(subprocess.Popen(words, **QUIET))
    pids = [p.pid for p in crowd]
    try:
        until(lambda: sockets(pids, store.proxy.port) >= 2 * n, 60)
    except AssertionError:
        pass
    store.begin(fault)
    end, most, seen, looks = time.time() + SECONDS, 0, 0, 0
    while time.time() < end:
        most = max(most, sockets(pids, store.proxy.port))
        if looks % 10 == 0 and fault not in ("stopped", "full"):
            seen = max(seen, store.seen())
        looks += 1
        time.sleep(0.05)
    store.end(fault)
    for p in crowd:
        p.terminate()
    for p in crowd:
        try:
            p.wait(15)
        except subprocess.TimeoutExpired:
            p.kill()
            p.wait()
    print(f"{type(store).__name__.lower():10} {fault:8} n={n:<3} sockets {most:4}  server {seen or '-':>4}", flush=True)


for name in STORES:
    for n in COUNTS:
        store = globals()[name.capitalize()]()
        try:
            for fault in store.faults:
                measure(store, fault, n)
        finally:
            store.close()
