//! What is refused: who may not, what is not there, what is no lock. Nothing is touched, and no secret is shown.

use std::{error::Error as _, fs, time::Duration};

use tenure_core::{BackendError, BreakScope, ErrorKind, Outcome, Released, Renewal, Severity};
use tenure_testkit::{
    conformance::player::Player,
    etcd::{EtcdCluster, EtcdServer, Recipe},
    patience::in_time,
    redis::Certificates,
};

use crate::stage::{self, etcd, left};

const SECRET: &str = "s3cret-w0rd";

/// What a claim is refused with; nothing is done, and no secret is shown.
async fn refusal(url: &str, name: &str) -> BackendError {
    // A member that is busy has two seconds for a login: that it took longer says nothing of the user.
    let refused = async || {
        let error = refusal_of_any_outcome(url, name).await;
        (error.kind() != ErrorKind::TimedOut).then_some(error)
    };
    let error = stage::becomes("it is refused", refused).await;
    assert_eq!(error.outcome(), Outcome::NotApplied, "{error:?}");
    error
}

async fn refusal_of_any_outcome(url: &str, name: &str) -> BackendError {
    let player = Player::new(etcd(url), name);
    let claimed = player.backend.claim(&player.claim);
    let answer = in_time("it is refused", Duration::from_secs(5), claimed).await;
    let error = answer.expect_err("it should be refused");
    let (mut text, mut next) = (format!("{error:?} {error}"), error.source());
    while let Some(source) = next {
        text.push_str(&format!("{source:?} {source}"));
        next = source.source();
    }
    assert!(!text.contains(SECRET), "{text}");
    error
}

#[track_caller]
fn says(error: &BackendError, kind: ErrorKind, words: &str) {
    assert_eq!(error.kind(), kind, "{error:?}");
    assert!(error.to_string().contains(words), "{error}");
}

#[tokio::test]
async fn a_server_that_is_not_there_cannot_be_reached() {
    let server = EtcdServer::start();
    server.kill();
    says(&refusal(&server.url(""), "job").await, ErrorKind::Unavailable, "cannot reach");
    let cluster = EtcdCluster::start(3);
    cluster.members().iter().for_each(EtcdServer::kill);
    says(&refusal(&cluster.url(""), "job").await, ErrorKind::Unavailable, "cannot reach");
}

/// A member without a quorum says so, or nothing; nobody gets in. L1.
#[tokio::test]
async fn a_member_without_a_quorum_lets_nobody_in() {
    let cluster = EtcdCluster::start(3);
    cluster.member(1).kill();
    cluster.member(2).kill();
    let player = Player::new(etcd(&cluster.member(0).url("")), "job");
    let error = player.backend.claim(&player.claim).await.expect_err("there is no quorum");
    assert!(error.kind().is_transient(), "{error:?}");
    cluster.member(1).start_again();
    stage::becomes("a quorum is back", async || player.backend.claim(&player.claim).await.ok()).await;
    assert_eq!(player.leave().await, Released::Released);
}

#[tokio::test]
async fn a_user_that_is_wrong_or_may_not_is_denied() {
    let server = Recipe::new().login(SECRET).start();
    let at = |login: &str| format!("etcd://{login}{}?response_timeout=5s", server.address());
    says(&refusal(&at(""), "job").await, ErrorKind::Denied, "requires a user");
    says(&refusal(&at("root:wrong@"), "job").await, ErrorKind::Denied, "user or password");
    says(&refusal(&at("nobody:wrong@"), "job").await, ErrorKind::Denied, "user or password");

    server.ask(&["role", "add", "locker"]);
    server.ask(&["role", "grant-permission", "locker", "readwrite", "locks/", "--prefix"]);
    server.ask(&["user", "add", &format!("app:{SECRET}")]);
    server.ask(&["user", "grant-role", "app", "locker"]);
    let app = at(&format!("app:{SECRET}@"));
    let error = refusal(&app, "others").await;
    says(&error, ErrorKind::Denied, "may not read and write");
    assert_eq!(left(&server), (Vec::new(), 0), "nothing is touched");

    let player = Player::new(etcd(&app), "locks/job");
    let grant = player.enter().await;
    assert_eq!(player.renew(&grant).await, Renewal::Renewed);
    assert_eq!(player.backend.inspect(&player.claim.name).await.unwrap().holders.len(), 1);
    assert_eq!(player.leave().await, Released::Released);
    let prefixed = Player::new(etcd(&format!("{app}&prefix=locks/")), "others");
    prefixed.enter().await;
    assert_eq!(prefixed.leave().await, Released::Released);
    assert_eq!(left(&server), (Vec::new(), 0));

    // A token does not outlive the server; who we are is said again.
    server.kill();
    server.start_again();
    stage::becomes("it is let in again", async || player.backend.claim(&player.claim).await.ok()).await;
    player.leave().await;
    let findings = etcd(&app).diagnose().await.unwrap();
    assert!(findings.iter().any(|found| found.what.contains("may not lock")), "{findings:?}");
}

#[tokio::test]
async fn a_login_that_nobody_wants_is_refused() {
    let server = EtcdServer::start();
    let url = format!("etcd://app:{SECRET}@{}", server.address());
    says(&refusal(&url, "job").await, ErrorKind::Denied, "authentication turned off");
}

#[tokio::test]
async fn tls_is_spoken_with_whom_the_ca_vouches_for() {
    let (certificates, others) = (Certificates::new(), Certificates::new());
    let server = Recipe::new().tls(&certificates).start();
    let url = |ca: &std::path::Path| server.url(&format!("?ca={}", ca.display()));
    let player = Player::new(etcd(&url(&certificates.ca_file())), "job");
    player.enter().await;
    assert_eq!(player.leave().await, Released::Released);

    let part = "is not trusted; name the file of its CA with ca=";
    says(&refusal(&url(&others.ca_file()), "job").await, ErrorKind::Denied, part);
    let missing = certificates.ca_file().with_file_name("missing.pem");
    says(&refusal(&url(&missing), "job").await, ErrorKind::Invalid, "cannot read");
    let garbage = certificates.ca_file().with_file_name("garbage.pem");
    fs::write(&garbage, "no certificate").unwrap();
    says(&refusal(&url(&garbage), "job").await, ErrorKind::Invalid, "cannot read the file of the CA");
    let plain = Player::new(etcd(&format!("etcd://{}", server.address())), "job");
    let error = plain.backend.claim(&plain.claim).await.expect_err("TLS is spoken there");
    says(&error, ErrorKind::Unavailable, "broke");
}

/// A wrong name, an unknown CA, no certificate and one that the members do not take are four different things to mend.
#[tokio::test]
async fn a_member_that_wants_a_certificate_is_shown_one() {
    let (ours, theirs) = (Certificates::new(), Certificates::new());
    let ca = ours.ca_file().display().to_string();
    let asks = ["--client-cert-auth", "--trusted-ca-file", &ca];
    let server = Recipe::new().tls(&ours).args(&asks).start();
    let shows = |certificates: &Certificates| {
        let (cert, key) = certificates.client();
        format!("&cert={}&key={}", cert.display(), key.display())
    };
    let (right, wrong) = (shows(&ours), shows(&theirs));
    let url = |query: &str| server.url(&format!("?ca={ca}{query}"));
    let [holder, waiter] = [(); 2].map(|()| Player::new(etcd(&url(&right)), "job"));
    let grant = holder.enter().await;
    assert_eq!(holder.renew(&grant).await, Renewal::Renewed);
    waiter.queue_behind(0).await;
    holder.backend.break_lock(&holder.claim.name, BreakScope::Leases).await.unwrap();
    assert_eq!(holder.renew(&grant).await, Renewal::Gone);
    waiter.enter().await;

    let denied = async |url: String, part: &str| {
        // Under TLS 1.3 it is said after the handshake, and the connection may end before the driver has read why: as the
        // engine does, it is asked again.
        let refused = async || {
            let error = refusal_of_any_outcome(&url, "job").await;
            (!error.kind().is_transient()).then_some(error)
        };
        let error = stage::becomes("it is refused", refused).await;
        assert_eq!(error.outcome(), Outcome::NotApplied, "{error:?}");
        says(&error, ErrorKind::Denied, part);
    };
    denied(url(""), "wants a client certificate; name it with cert= and key=").await;
    denied(url(&wrong), "does not accept the client certificate that cert= names").await;
    let unknown = server.url(&format!("?ca={}{right}", theirs.ca_file().display()));
    denied(unknown, "is not trusted; name the file of its CA with ca=").await;
    let elsewhere = Certificates::of_name("etcd.test");
    let server = Recipe::new().tls(&elsewhere).start();
    let named = server.url(&format!("?ca={}", elsewhere.ca_file().display()));
    denied(named, "is for another name; write that name as the host").await;
    let (cert, _) = ours.client();
    let no_key = refusal(&url(&format!("&cert={0}&key={0}", cert.display())), "job").await;
    says(&no_key, ErrorKind::Invalid, "the key of the client certificate cannot be read");
}

/// Whoever spoke TLS to etcd chose the ciphers of the whole process: a program that chose its own later found them taken.
#[tokio::test]
async fn nothing_of_the_process_is_set_by_speaking_tls() {
    let certificates = Certificates::new();
    let server = Recipe::new().tls(&certificates).start();
    let url = server.url(&format!("?ca={}", certificates.ca_file().display()));
    Player::new(etcd(&url), "job").enter().await;
    assert!(rustls::crypto::CryptoProvider::get_default().is_none());
}

/// A key that is no lock stands where one would be: it is named, and left as it is. L9.
#[tokio::test]
async fn a_key_that_is_no_lock_is_named_and_left_alone() {
    let server = EtcdServer::start();
    let lease = server.ask(&["lease", "grant", "60"]);
    let lease = lease.split_whitespace().nth(1).unwrap().to_owned();
    for (name, lease) in [("plain", None), ("leased", Some(format!("--lease={lease}")))] {
        let key = format!("{name}/beef");
        let mut put = vec!["put", key.as_str(), "mine"];
        put.extend(lease.as_deref());
        server.ask(&put);
        let error = refusal(&server.url(""), name).await;
        says(&error, ErrorKind::Invalid, &key);
        let player = Player::new(etcd(&server.url("")), name);
        let error = player.backend.inspect(&player.claim.name).await.expect_err("it is no lock");
        says(&error, ErrorKind::Invalid, &key);
        assert_eq!(server.ask(&["get", &key, "--print-value-only"]), "mine");
    }
    assert_eq!(left(&server).0, ["leased/beef", "plain/beef"], "nothing else was written");
    assert_eq!(etcd(&server.url("")).list("").await.unwrap(), [], "they are nobody's locks");
}

/// A newer version wrote this place. The error must not advise to delete it.
#[tokio::test]
async fn a_place_of_a_newer_version_is_refused() {
    let server = EtcdServer::start();
    let player = Player::new(etcd(&server.url("")), "job");
    player.enter().await;
    let place = server.ask(&["get", "job/", "--prefix"]);
    let (key, value) = place.split_once('\n').unwrap();
    let (_, lease) = value.split_once(r#""lease":"#).unwrap();
    let lease: i64 = lease.split([',', '}']).next().unwrap().parse().unwrap();
    let newer = value.replacen('{', r#"{"format":1,"more":true,"#, 1);
    server.ask(&["put", key, &newer, &format!("--lease={lease:x}")]);
    let told = "the stored state of the lock is newer than this tenure: upgrade it";
    let error = refusal(&server.url(""), "job").await;
    says(&error, ErrorKind::Unsupported, told);
    assert!(error.to_string().contains(key), "{error}");
    let other = etcd(&server.url(""));
    says(&other.inspect(&player.claim.name).await.unwrap_err(), ErrorKind::Unsupported, told);
    says(&other.list("").await.unwrap_err(), ErrorKind::Unsupported, told);
    assert_eq!(server.ask(&["get", key, "--print-value-only"]), newer);
    // Data of another program that says the same word.
    server.ask(&["del", key]);
    server.ask(&["put", "other/beef", r#"{"format":1}"#]);
    assert_eq!(other.list("").await.unwrap(), []);
}

/// Data of others beside our locks, and locks whose names go on, are not taken for places in a line.
#[tokio::test]
async fn keys_that_do_not_look_like_places_do_not_count() {
    let server = EtcdServer::start();
    server.ask(&["put", "job", "data"]);
    server.ask(&["put", "job/data", "data"]);
    server.ask(&["put", "job/sub/beef", "data"]);
    let [outer, inner] = ["job", "job/sub2"].map(|name| Player::new(etcd(&server.url("")), name));
    outer.enter().await;
    inner.enter().await;
    let names: Vec<String> =
        outer.backend.list("").await.unwrap().into_iter().map(|v| v.name.to_string()).collect();
    assert_eq!(names, ["job", "job/sub2"]);
}

/// The space is used up: said as what it is. A member also says so after it has done what used it up: nobody knows which. L9.
#[tokio::test]
async fn a_database_that_is_full_is_said_to_be_full() {
    let server = Recipe::new().args(&["--quota-backend-bytes", "200000"]).start();
    let value = "x".repeat(50_000);
    for n in 0..20 {
        let put = server.etcdctl(&["put", &format!("fill/{n}"), &value]).output().unwrap();
        if !put.status.success() {
            break;
        }
    }
    let error = refusal_of_any_outcome(&server.url(""), "job").await;
    says(&error, ErrorKind::Unavailable, "NOSPACE");
    assert_eq!(error.outcome(), Outcome::Unknown, "{error:?}");
    let findings = etcd(&server.url("")).diagnose().await;
    let findings = findings.unwrap();
    let full = findings.iter().find(|found| found.severity == Severity::Problem).unwrap();
    assert!(full.what.contains("NOSPACE"), "{findings:?}");
}

/// `doctor`: a lone member, an old version, a member that does not serve.
#[tokio::test]
async fn what_weakens_our_promises_is_found() {
    let cluster = EtcdCluster::start(3);
    let found = async |url: String| {
        let findings = etcd(&url).diagnose().await.unwrap();
        findings.into_iter().map(|found| format!("{:?} {}", found.severity, found.what)).collect::<Vec<_>>()
    };
    let has = |found: &[String], words: &str| found.iter().any(|line| line.contains(words));
    let all = found(cluster.url("")).await;
    assert!(has(&all, "authentication turned off") && !has(&all, "the URL names"), "{all:?}");
    let one = found(cluster.member(0).url("")).await;
    assert!(has(&one, "3 members and the URL names 1"), "{one:?}");
    cluster.member(2).kill();
    let dead = found(cluster.url("")).await;
    assert!(has(&dead, &format!("{} does not serve", cluster.member(2).address())), "{dead:?}");
    let lone = EtcdServer::start();
    let alone = found(lone.url("")).await;
    assert!(has(&alone, "the cluster has one member"), "{alone:?}");
    assert!(!has(&alone, "never compacted"), "{alone:?}");
    let writes = (0..100).map(async |_| {
        let mut client = etcd_client::Client::connect([lone.address()], None).await.unwrap();
        for _ in 0..101 {
            client.put("other", "x", None).await.unwrap();
        }
    });
    futures_util::future::join_all(writes).await;
    let full = found(lone.url("")).await;
    assert!(has(&full, "Warning etcd was never compacted and keeps 1"), "{full:?}");
    let mut client = etcd_client::Client::connect([lone.address()], None).await.unwrap();
    client.compact(10_000, None).await.unwrap();
    client.delete("other", None).await.unwrap();
    let compacted = found(lone.url("")).await;
    assert!(!has(&compacted, "compacted"), "{compacted:?}");
    let mixed = found(format!("etcd://{},{}", lone.address(), cluster.member(0).address())).await;
    assert!(has(&mixed, "different clusters"), "{mixed:?}");
    assert_eq!(left(&lone), (Vec::new(), 0), "it leaves nothing behind");
}
