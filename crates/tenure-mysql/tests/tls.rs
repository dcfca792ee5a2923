//! TLS and logins: which servers are believed, which clients let in, and that no password is shown.

use std::process::Command;

use tenure_core::ErrorKind::{Denied, Invalid};
use tenure_testkit::{
    mysql::{MysqlServer, Recipe},
    redis::Certificates,
};

use crate::stage::{enter_in_time, mysql, player, refused_as};

fn alter(server: &MysqlServer, what: &str) {
    server.sql(&format!("ALTER USER tenure@'127.0.0.1' {what}"));
}

#[tokio::test]
async fn tls_believes_whom_it_is_told_to_believe() {
    let (ours, theirs) = (Certificates::new(), Certificates::new());
    let server = Recipe::new().tls(&ours).set("bind-address=127.0.0.1,127.0.0.2").start();
    alter(&server, "REQUIRE SSL");
    let (ca, other) = (ours.ca_file().display().to_string(), theirs.ca_file().display().to_string());
    for (n, query) in [
        String::new(),
        "?ssl-mode=PREFERRED".into(),
        "?ssl-mode=REQUIRED".into(),
        format!("?ssl-ca={ca}"),
        format!("?ssl-mode=VERIFY_CA&ssl-ca={ca}"),
        format!("?ssl-mode=VERIFY_IDENTITY&ssl-ca={ca}"),
    ]
    .into_iter()
    .enumerate()
    {
        enter_in_time(&player(&server.url(&query), &format!("{n}"))).await;
    }
    for query in [format!("?ssl-ca={other}"), format!("?ssl-mode=VERIFY_IDENTITY&ssl-ca={other}")] {
        refused_as(&server.url(&query), Denied, "is not trusted; name the file of its CA").await;
    }
    refused_as(&server.url("?ssl-mode=DISABLED"), Denied, "refuses this user or password").await;
    refused_as(&server.url("?ssl-ca=/nowhere/ca.pem"), Invalid, "cannot read").await;
    // The certificate is for 127.0.0.1 and localhost; the same machine has other addresses.
    let url = |mode: &str, host: &str| {
        server.url(&format!("?ssl-mode={mode}&ssl-ca={ca}")).replace("127.0.0.1", host)
    };
    enter_in_time(&player(&url("VERIFY_IDENTITY", "localhost"), "by name")).await;
    enter_in_time(&player(&url("VERIFY_CA", "127.0.0.2"), "by another name")).await;
    let part = "is for another name; write that name as the host, or use ssl-mode=VERIFY_CA";
    refused_as(&url("VERIFY_IDENTITY", "127.0.0.2"), Denied, part).await;
}

#[tokio::test]
async fn where_the_server_speaks_no_tls_only_those_come_in_who_do_not_demand_it() {
    let (server, certificates) = (MysqlServer::start(), Certificates::new());
    let ca = certificates.ca_file().display().to_string();
    enter_in_time(&player(&server.url(""), "one")).await;
    enter_in_time(&player(&server.url("?ssl-mode=PREFERRED"), "two")).await;
    for mode in ["REQUIRED", "VERIFY_CA", "VERIFY_IDENTITY"] {
        let ca = if mode == "REQUIRED" { String::new() } else { format!("&ssl-ca={ca}") };
        let url = server.url(&format!("?ssl-mode={mode}{ca}"));
        refused_as(&url, Invalid, "does not speak TLS").await;
    }
}

#[tokio::test]
async fn a_user_of_a_certificate_comes_in_with_it_alone() {
    let (ours, theirs) = (Certificates::new(), Certificates::new());
    let server = Recipe::new().tls(&ours).start();
    alter(&server, "REQUIRE X509");
    let with = |certificates: &Certificates| {
        let (certificate, key) = certificates.client();
        let (ca, certificate, key) =
            (ours.ca_file(), certificate.display().to_string(), key.display().to_string());
        server.url(&format!("?ssl-ca={}&ssl-cert={certificate}&ssl-key={key}", ca.display()))
    };
    enter_in_time(&player(&with(&ours), "one")).await;
    let part = "or wants a client certificate; name it with ssl-cert= and ssl-key=";
    refused_as(&server.url("?ssl-mode=REQUIRED"), Denied, part).await;
    let part = "does not accept the client certificate that ssl-cert= names";
    refused_as(&with(&theirs), Denied, part).await;
    let nowhere = server.url("?ssl-cert=/nowhere/c.pem&ssl-key=/nowhere/k.pem");
    refused_as(&nowhere, Invalid, "cannot read").await;
}

#[tokio::test]
async fn who_may_not_come_in_is_told_so_without_its_password() {
    let server = MysqlServer::start();
    alter(&server, "IDENTIFIED BY 'right'");
    let url = |login: &str, database: &str| format!("mysql://{login}@{}/{database}", server.address());
    refused_as(&url("tenure:secret", "tenure"), Denied, "refuses this user or password").await;
    refused_as(&url("nobody:secret", "tenure"), Denied, "refuses this user or password").await;
    refused_as(&url("tenure", "tenure"), Denied, "refuses this user or password").await;
    refused_as(&url("tenure:right", "nowhere"), Denied, "lacks a permission").await;
    server.sql("GRANT ALL ON *.* TO tenure@'127.0.0.1'");
    refused_as(&url("tenure:right", "nowhere"), Invalid, "no database of this name").await;
    enter_in_time(&player(&url("tenure:right", "tenure"), "one")).await;
    server.sql("INSTALL SONAME 'auth_ed25519'");
    server.sql("CREATE USER ed@'127.0.0.1' IDENTIFIED VIA ed25519 USING PASSWORD('secret')");
    refused_as(&url("ed:wrong", "tenure"), Denied, "refuses this user or password").await;
    server.sql("GRANT ALL ON tenure.* TO ed@'127.0.0.1'");
    enter_in_time(&player(&url("ed:secret", "tenure"), "two")).await;
    for round in 0..1200 {
        // The driver cannot answer one challenge of 256.
        if let Err(error) = mysql(&url("ed:secret", "tenure")).list("").await {
            panic!("login {round}: {error}");
        }
    }
    server.sql("CREATE USER old@'127.0.0.1' ACCOUNT LOCK");
    refused_as(&url("old", "tenure"), Denied, "refuses this user").await;
}

/// `MYSQL_PWD`, as the command `mysql` takes it; a password of the URL comes first.
#[tokio::test]
async fn a_password_may_stand_in_the_environment() {
    if let Ok(address) = std::env::var(ADDRESS) {
        enter_in_time(&player(&format!("mysql://tenure@{address}/tenure"), "one")).await;
        let wrong = format!("mysql://tenure:wrong@{address}/tenure");
        return refused_as(&wrong, Denied, "refuses this user or password").await;
    }
    let server = MysqlServer::start();
    alter(&server, "IDENTIFIED BY 'secret'");
    // A process of its own, since no other test may see the password.
    let name = "tls::a_password_may_stand_in_the_environment";
    let mut test = Command::new(std::env::current_exe().unwrap());
    test.args(["--exact", name]).env(ADDRESS, server.address()).env("MYSQL_PWD", "secret");
    let output = test.output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains("1 passed"), "{said}");
    assert_eq!(server.sql("SELECT name FROM tenure_lock"), "one");
}

const ADDRESS: &str = "TENURE_TEST_MYSQL_ADDRESS";
