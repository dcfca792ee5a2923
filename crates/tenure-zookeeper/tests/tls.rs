//! TLS: with a client certificate all is as without TLS, and a certificate that is wrong is told from another one.

use std::time::Duration;

use tenure_core::{BackendError, ErrorKind, Outcome, Severity};
use tenure_testkit::{conformance::player::Player, redis::Certificates, zookeeper::ZooKeeperServer};

use crate::stage::{contenders, locker, raw, renewed, soon, until, waiter, zookeeper};

const TTL: Duration = Duration::from_secs(3);

/// Shows a certificate that this authority signed.
fn shows(certificates: &Certificates) -> String {
    let (cert, key) = certificates.client();
    format!("&cert={}&key={}", cert.display(), key.display())
}

async fn refusal(url: &str) -> BackendError {
    let player = Player::new(zookeeper(url), "job");
    let error = player.backend.claim(&player.claim).await.expect_err("it should have been refused");
    assert_eq!(error.outcome(), Outcome::NotApplied, "{error:?}");
    println!("{error}");
    error
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_is_acquired_waited_for_renewed_and_lost() {
    let certificates = Certificates::new();
    let server = ZooKeeperServer::tls(&certificates);
    let url = server.tls_url("127.0.0.1", &shows(&certificates));
    let (ours, theirs) = (locker(&url).await, locker(&url).await);
    let guard = soon("it holds", ours.mutex("job").ttl(TTL).acquire()).await.unwrap();
    let waiting = waiter(theirs.mutex("job").ttl(TTL));
    let client = raw(&server.address()).await;
    until("it waits", async || contenders(&client, "/tenure/job").await.len() == 2).await;
    assert!(renewed(&guard, 2).await, "it is renewed");
    assert!(!waiting.is_finished());
    guard.release().await.unwrap();
    let (_, guard) = soon("the next one enters", waiting).await.unwrap();
    server.stop();
    soon("it is lost", guard.lost()).await;
    assert!(guard.check().is_err());
    server.resume();
    let next = soon("the next one holds", ours.mutex("job").acquire()).await.unwrap();
    assert!(next.token() > guard.token());
}

/// A restart breaks the connection. The driver makes another one over TLS for the same session. The nodes belong to the user of
/// the certificate.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_outlives_a_restart_of_the_server() {
    let certificates = Certificates::new();
    let server = ZooKeeperServer::tls(&certificates);
    let locks = locker(&server.tls_url("localhost", &(shows(&certificates) + "&acl=creator"))).await;
    let guard = soon("it holds", locks.mutex("job").ttl(Duration::from_secs(50)).acquire()).await.unwrap();
    let stranger = raw(&server.address()).await.list_children("/tenure/job").await;
    assert_eq!(stranger.unwrap_err(), zookeeper_client::Error::NoAuth);
    server.kill();
    server.start_again();
    assert!(renewed(&guard, 1).await);
}

/// A wrong name, an unknown CA, no certificate and one that the server does not accept are four things to mend.
#[tokio::test]
async fn a_wrong_certificate_is_named() {
    let (ours, theirs) = (Certificates::new(), Certificates::new());
    let server = ZooKeeperServer::tls(&ours);
    let right = shows(&ours);
    let url = |host: &str, query: &str| server.tls_url(host, query);
    let unknown = url("127.0.0.1", &right)
        .replace(&ours.ca_file().display().to_string(), &theirs.ca_file().display().to_string());
    for (url, part) in [
        (url("127.0.0.2", &right), "is for another name; write one of its names as the host"),
        (unknown, "is not trusted; name the file of its CA with ca="),
        (url("127.0.0.1", ""), "wants a client certificate; name it with cert= and key="),
        (url("127.0.0.1", &shows(&theirs)), "does not accept the client certificate that cert= names"),
    ] {
        let error = refusal(&url).await;
        assert_eq!(error.kind(), ErrorKind::Denied, "{error:?}");
        assert!(error.to_string().contains(part), "{part}: {error}");
    }
    let (cert, key) = (ours.client().0, theirs.client().1);
    let cert = cert.display();
    for (query, part) in [
        (format!("&cert={cert}&key={cert}"), "the key of the client certificate cannot be read"),
        (format!("&cert={cert}&key={}", key.display()), "do not fit together"),
    ] {
        let error = refusal(&url("127.0.0.1", &query)).await;
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error:?}");
        assert!(error.to_string().contains(part), "{part}: {error}");
    }
    let nowhere = url("127.0.0.1", &right).replace("ca.pem", "no.pem");
    assert!(refusal(&nowhere).await.to_string().contains("cannot read the file of the CA"));
}

/// Others of an ensemble may be back soon, so a claim is tried again; it is said all the same.
#[tokio::test]
async fn one_server_of_several_that_is_not_believed_is_named() {
    let certificates = Certificates::new();
    let server = ZooKeeperServer::tls(&certificates);
    let gone = tenure_testkit::ports::free(false);
    let url = server.tls_url("127.0.0.2", &shows(&certificates));
    let error = refusal(&url.replacen("127.0.0.2", &format!("127.0.0.1:{gone},127.0.0.2"), 1)).await;
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
    assert!(error.to_string().contains("is for another name"), "{error}");
}

/// The four-letter words go over TLS as well.
#[tokio::test]
async fn doctor_reads_the_settings_of_the_server() {
    let certificates = Certificates::new();
    let server = ZooKeeperServer::tls(&certificates);
    let url = server.tls_url("127.0.0.1", &shows(&certificates)).replace("tick=500ms", "tick=100ms");
    let findings = zookeeper(&url).diagnose().await.unwrap();
    let is_found = findings.iter().any(|finding| {
        finding.severity == Severity::Problem && finding.what.contains("a server's tickTime is 500ms")
    });
    assert!(is_found, "{findings:?}");
}
