//! Who may do what: TLS, users with few rights, and servers that are no masters. Each refusal says what and why.

use std::{
    error::Error,
    fs,
    io::{Read, Write},
    net::TcpListener,
    thread,
    time::{Duration, Instant},
};

use tenure_core::{BackendError, BreakScope, ErrorKind, LockName, Outcome, Renewal, WaitMode};
use tenure_testkit::{
    conformance::player::Player,
    patience::{eventually, slowness, until},
    proxy::Proxy,
    redis::{Certificates, Cluster, Recipe, RedisServer},
};

use crate::stage::{entry::refusal, redis};

const PATIENCE: Duration = Duration::from_secs(10);

fn claimant(url: &str) -> Player {
    Player::new(redis(url), "job").waiting(WaitMode::No)
}

/// The whole chain, as the command prints it.
fn chain(error: &BackendError) -> String {
    let source = error.source().map(ToString::to_string);
    format!("{error}: {}", source.unwrap_or_default())
}

#[track_caller]
fn is(error: &BackendError, kind: ErrorKind, part: &str) {
    assert_eq!((error.kind(), error.outcome()), (kind, Outcome::NotApplied), "{}", chain(error));
    assert!(chain(error).contains(part), "{}", chain(error));
}

/// Every verb once, with a waiter that is woken and a lease that is lost.
pub(crate) async fn can_do_everything(url: &str) {
    let (holder, waiter) = (Player::new(redis(url), "job"), Player::new(redis(url), "job"));
    let grant = holder.enter().await;
    holder.renew(&grant).await;
    waiter.queue_behind(0).await;
    assert_eq!(holder.backend.inspect(&holder.claim.name).await.unwrap().queue.len(), 1);
    holder.leave().await;
    let grant = waiter.enter().await;
    waiter.backend.break_lock(&waiter.claim.name, BreakScope::Leases).await.unwrap();
    assert_eq!(waiter.renew(&grant).await, Renewal::Gone);
    let (reader, second) =
        (Player::new(redis(url), "job").reading(), Player::new(redis(url), "job").reading());
    let grant = reader.enter().await;
    second.enter().await;
    reader.renew(&grant).await;
    assert_eq!(reader.backend.list("").await.unwrap().len(), 1);
    reader.leave().await;
    second.leave().await;
}

/// Each verb is denied with this.
pub(crate) async fn denied(url: &str, part: &str) {
    for error in Player::new(redis(url), "job").refusals().await {
        is(&error, ErrorKind::Denied, part);
    }
}

/// What a client shows that has these.
pub(crate) fn identity(certificates: &Certificates) -> String {
    let (cert, key) = certificates.client();
    format!("&cert={}&cert_key={}", cert.display(), key.display())
}

/// TLS with a CA of one's own; without it the server is not trusted, and that is said.
#[tokio::test]
async fn tls_with_an_own_ca_works_and_without_it_is_refused() {
    let certificates = Certificates::new();
    let server = Recipe::new().tls(&certificates).start();
    let url = format!("rediss://127.0.0.1:{}/?guard=off", server.port());
    can_do_everything(&format!("{url}&ca={}", certificates.ca_file().display())).await;
    is(&refusal(&claimant(&url)).await, ErrorKind::Denied, "is not trusted; name the file of its CA");
    let nowhere = claimant(&format!("{url}&ca=/nowhere/ca.pem"));
    is(&refusal(&nowhere).await, ErrorKind::Invalid, "/nowhere/ca.pem");
    let plain = claimant(&format!("redis://127.0.0.1:{}/?guard=off", server.port()));
    assert_eq!(refusal(&plain).await.kind(), ErrorKind::Unavailable);
}

/// Whoever spoke TLS to Redis chose the ciphers of the whole process: a program that chose its own later found them taken.
#[tokio::test]
async fn nothing_of_the_process_is_set_by_speaking_tls() {
    let certificates = Certificates::new();
    let server = Recipe::new().tls(&certificates).start();
    let ca = certificates.ca_file().display().to_string();
    let url = format!("rediss://127.0.0.1:{}/?guard=off", server.port());
    claimant(&format!("{url}&ca={ca}")).enter().await;
    refusal(&claimant(&url)).await;
    assert!(rustls::crypto::CryptoProvider::get_default().is_none());
}

/// The line in the README gives every right that is needed.
#[tokio::test]
async fn the_least_rights_are_enough_for_everything() {
    let readme = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/README.md")).unwrap();
    let line =
        readme.lines().find(|line| line.starts_with("ACL SETUSER tenure ")).expect("the README has the line");
    let server = RedisServer::start();
    let answer = server.command(&line.split(' ').collect::<Vec<_>>());
    assert_eq!(answer.error(), None, "{line}");
    for query in ["?guard=off", "?guard=off&protocol=2"] {
        can_do_everything(&format!("redis://tenure:PASSWORD@127.0.0.1:{}/{query}", server.port())).await;
    }
    for command in ["FLUSHALL", "KEYS", "EVICT", "SHUTDOWN", "CONFIG SET"] {
        assert!(!line.contains(&format!("+{}", command.to_lowercase().replace(' ', "|"))), "{command}");
    }
}

/// Each right that the line gives is needed: what a user lacks is refused, and said. Nothing hangs.
#[tokio::test]
async fn a_missing_right_is_named_and_nothing_is_granted() {
    let server = RedisServer::start();
    let rights = "on >pw ~* &tenure:* +@all -evalsha -eval";
    server.command(&[&["ACL", "SETUSER", "poor"], &rights.split(' ').collect::<Vec<_>>()[..]].concat());
    let poor = claimant(&format!("redis://poor:pw@127.0.0.1:{}/?guard=off", server.port()));
    is(&refusal(&poor).await, ErrorKind::Denied, "lacks a permission");
    let rights = "on >pw ~app:* ~tenure:* &tenure:* +@all";
    server.command(&[&["ACL", "SETUSER", "narrow"], &rights.split(' ').collect::<Vec<_>>()[..]].concat());
    let url = format!("redis://narrow:pw@127.0.0.1:{}/?guard=off", server.port());
    is(&refusal(&claimant(&url)).await, ErrorKind::Denied, "lacks a permission");
    claimant(&format!("{url}&key=app:%25s")).enter().await;
    // What cannot be looked at is not taken for nothing.
    let rights = "on >pw ~* &tenure:* +@all -getrange";
    server.command(&[&["ACL", "SETUSER", "blind"], &rights.split(' ').collect::<Vec<_>>()[..]].concat());
    let blind = redis(&format!("redis://blind:pw@127.0.0.1:{}/?guard=off&key=app:%25s", server.port()));
    is(&blind.list("").await.unwrap_err(), ErrorKind::Denied, "lacks a permission");
    assert_eq!(server.command(&["EXISTS", "job"]).int(), 0);
}

/// Wrong password, none, and a user that is not there.
#[tokio::test]
async fn wrong_credentials_are_refused_without_showing_them() {
    let server = Recipe::new().config("requirepass right").login("default", "right").start();
    let at = format!("127.0.0.1:{}/?guard=off", server.port());
    for (login, part) in [
        (":s3cret@", "refuses this user or password"),
        ("default:s3cret@", "refuses this user or password"),
        ("nobody:s3cret@", "refuses this user or password"),
        ("", "wants a password"),
    ] {
        for protocol in ["", "&protocol=2"] {
            let error = refusal(&claimant(&format!("redis://{login}{at}{protocol}"))).await;
            is(&error, ErrorKind::Denied, part);
            assert!(!format!("{error:?} {}", chain(&error)).contains("s3cret"), "{error:?}");
        }
    }
    claimant(&format!("redis://:right@{at}")).enter().await;
}

/// H4.3, hazard 62: a replica grants nothing, and a holder's server that becomes one is left.
#[tokio::test]
async fn a_replica_is_refused() {
    let master = RedisServer::start();
    let replica = Recipe::new().replica_of(master.port()).start();
    is(&refusal(&claimant(&replica.url("?guard=off"))).await, ErrorKind::Unavailable, "is a replica");
    let player = claimant(&master.url("?guard=off"));
    player.enter().await;
    master.command(&["REPLICAOF", "127.0.0.1", &replica.port().to_string()]);
    eventually("the master has become a replica", PATIENCE, || {
        (master.info("replication", "role") == "slave").then_some(())
    });
    let other = claimant(&master.url("?guard=off"));
    is(&refusal(&other).await, ErrorKind::Unavailable, "is a replica");
    let answer = player.backend.release(&player.claim.name, player.claim.owner).await;
    assert_eq!(answer.unwrap_err().kind(), ErrorKind::Unavailable);
}

/// Hazard 36: with a full memory nothing is granted, and release and renewal pass.
#[tokio::test]
async fn a_full_memory_refuses_claims_and_lets_holders_go() {
    let server = Recipe::new().memory(0, "noeviction").start();
    let url = server.url("?guard=off");
    let (holder, waiter) = (Player::new(redis(&url), "job"), Player::new(redis(&url), "job"));
    let grant = holder.enter().await;
    let reader = Player::new(redis(&url), "cfg").reading();
    let read = reader.enter().await;
    waiter.queue_behind(0).await;
    server.command(&["CONFIG", "SET", "maxmemory", "1"]);
    let newcomer = Player::new(redis(&url), "other").waiting(WaitMode::No);
    is(&refusal(&newcomer).await, ErrorKind::Unavailable, "the memory of the Redis server is full");
    assert_eq!(server.command(&["EXISTS", "other"]).int(), 0, "no orphan");
    holder.renew(&grant).await;
    reader.renew(&read).await;
    holder.leave().await;
    reader.leave().await;
    server.command(&["CONFIG", "SET", "maxmemory", "0"]);
    waiter.enter().await;
}

/// A node of a Cluster under the URL of a single server.
#[tokio::test]
async fn a_node_of_a_cluster_is_refused_as_a_single_server() {
    let cluster = Cluster::start();
    let mut refused = 0;
    for port in cluster.ports() {
        let url = format!("redis://127.0.0.1:{port}/?guard=off");
        let player = claimant(&url);
        if let Err(error) = player.backend.claim(&player.claim).await {
            let is_known =
                error.to_string().contains("redis-cluster://") || error.to_string().contains("is a replica");
            assert!(is_known, "{}", chain(&error));
            refused += 1;
        }
    }
    assert!(refused >= 5, "only {refused} nodes refused");
}

/// Nobody waits for longer than the time-out, and the next request goes over a new connection.
#[tokio::test]
async fn a_server_that_does_not_answer_costs_the_time_out() {
    let server = RedisServer::start();
    let proxy = Proxy::to(server.port(), 1);
    let url =
        format!("redis://127.0.0.1:{}/?guard=off&response_timeout=300ms&connect_timeout=300ms", proxy.port());
    let player = claimant(&url);
    let grant = player.enter().await;
    proxy.stall();
    let asked = Instant::now();
    let error = refusal(&claimant(&url)).await;
    assert_eq!((error.kind(), error.outcome()), (ErrorKind::Unavailable, Outcome::NotApplied), "{error:?}");
    let error = player.backend.renew(std::slice::from_ref(&grant)).await.remove(0).unwrap_err();
    assert_eq!((error.kind(), error.outcome()), (ErrorKind::TimedOut, Outcome::Unknown), "{error:?}");
    assert!(asked.elapsed() < Duration::from_secs(3) * slowness(), "{:?}", asked.elapsed());
    proxy.heal();
    player.renew(&grant).await;
}

/// The same over a socket in the file system, and in another database.
#[tokio::test]
async fn a_unix_socket_and_a_database_of_ones_own_work() {
    let server = RedisServer::start();
    let socket = server.folder().join("redis.sock");
    can_do_everything(&format!("redis+unix://{}?guard=off&db=3", socket.display())).await;
    claimant(&server.url("?guard=off")).enter().await;
    claimant(&server.url("3?guard=off")).enter().await;
    let view = redis(&server.url("7?guard=off")).inspect(&LockName::new("job").unwrap()).await.unwrap();
    assert!(view.holders.is_empty());
}

/// A server that knows no HELLO, as Redis before 6, is spoken to without it.
#[tokio::test]
async fn a_server_without_resp3_gets_hints_over_a_second_connection() {
    let server = Recipe::new().config("rename-command HELLO \"\"").start();
    can_do_everything(&server.url("?guard=off")).await;
}

/// A proxy that spreads keys answers GET and cuts the connection at what it does not know. It was waited for like a server
/// that is away.
#[tokio::test]
async fn a_proxy_that_spreads_keys_is_named() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            thread::spawn(move || {
                let mut read = [0; 4096];
                while stream
                    .read(&mut read)
                    .is_ok_and(|many| many > 0 && read[..many].ends_with(b"tenure:probe\r\n"))
                {
                    stream.write_all(b"$-1\r\n").unwrap();
                }
            });
        }
    });
    for query in ["", "?protocol=2&guard=off"] {
        let error = refusal(&claimant(&format!("redis://127.0.0.1:{port}/{query}"))).await;
        is(&error, ErrorKind::Invalid, "a proxy that spreads keys");
    }
}

/// Redis with TLS as it is by default wants a certificate of its clients. A wrong name, an unknown CA, no certificate and one
/// that the server does not take are four different things to mend.
#[tokio::test]
async fn a_server_that_wants_a_certificate_is_shown_one() {
    let (ours, theirs) = (Certificates::new(), Certificates::new());
    let server = Recipe::new().tls(&ours).config("tls-auth-clients yes\nbind 127.0.0.1 127.0.0.2").start();
    let ca = ours.ca_file().display().to_string();
    let url =
        |host: &str, query: &str| format!("rediss://{host}:{}/?guard=off&ca={ca}{query}", server.port());
    let (right, wrong) = (identity(&ours), identity(&theirs));
    for protocol in ["", "&protocol=2"] {
        can_do_everything(&url("127.0.0.1", &format!("{right}{protocol}"))).await;
    }
    denied(&url("127.0.0.1", ""), "wants a client certificate; name it with cert= and cert_key=").await;
    denied(&url("127.0.0.1", &wrong), "does not accept the client certificate").await;
    denied(&url("127.0.0.2", &right), "is for another name; name it with tls_name=").await;
    claimant(&url("127.0.0.2", &format!("{right}&tls_name=localhost"))).enter().await;
    let unknown = format!("&ca={}{right}", theirs.ca_file().display());
    denied(&url("127.0.0.1", &unknown), "is not trusted; name the file of its CA").await;
    let (cert, _) = ours.client();
    let no_key = url("127.0.0.1", &format!("&cert={0}&cert_key={0}", cert.display()));
    is(
        &refusal(&claimant(&no_key)).await,
        ErrorKind::Invalid,
        "the key of the client certificate cannot be read",
    );
}

/// The files are read at each connect: a certificate that is replaced by a wrong one loses no lease if the right one is back in
/// time.
#[tokio::test]
async fn a_holder_outlives_a_certificate_that_is_refused() {
    let (ours, theirs) = (Certificates::new(), Certificates::new());
    let server = Recipe::new().mutual_tls(&ours).start();
    let files = tempfile::tempdir().unwrap();
    let shows = |certificates: &Certificates| {
        let (cert, key) = certificates.client();
        fs::copy(cert, files.path().join("cert")).unwrap();
        fs::copy(key, files.path().join("key")).unwrap();
    };
    shows(&ours);
    let (folder, ca) = (files.path().display(), ours.ca_file());
    let url = server.url(&format!("?guard=off&ca={}&cert={folder}/cert&cert_key={folder}/key", ca.display()));
    let player = Player::new(redis(&url), "job").lasting(Duration::from_secs(60));
    let grant = player.enter().await;
    shows(&theirs);
    server.command(&["CLIENT", "KILL", "USER", "default"]);
    until("a renewal is refused", PATIENCE, async || {
        // The first request may still go over the connection that was ended.
        let renewed = player.backend.renew(std::slice::from_ref(&grant)).await.remove(0);
        renewed.is_err_and(|error| {
            error.to_string().contains("does not accept the client certificate that cert=")
        })
    })
    .await;
    shows(&ours);
    assert_eq!(player.renew(&grant).await, Renewal::Renewed);
}

/// A Cluster's driver makes its connections itself.
#[tokio::test]
async fn a_cluster_that_wants_a_certificate_is_shown_one() {
    let ours = Certificates::new();
    let node = Recipe::new().tls(&ours).alone_in_a_cluster().config("tls-auth-clients yes\ntls-cluster yes");
    let node = node.start();
    assert_eq!(node.command(&["CLUSTER", "ADDSLOTSRANGE", "0", "16383"]).error(), None);
    eventually("the cluster is up", PATIENCE, || {
        node.command(&["CLUSTER", "INFO"]).text().contains("cluster_state:ok").then_some(())
    });
    let url = format!("rediss-cluster://127.0.0.1:{}/?ca={}", node.port(), ours.ca_file().display());
    can_do_everything(&format!("{url}{}", identity(&ours))).await;
    is(&refusal(&claimant(&url)).await, ErrorKind::Denied, "wants a client certificate");
}
