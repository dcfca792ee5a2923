//! `Certificates`: an authority and a server's certificate, made for one test.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::Arc,
    time::Duration,
};

use tempfile::TempDir;

use crate::{folder, patience::eventually};

/// A separate authority, and a certificate for `127.0.0.1` and `localhost` that it signed. Clones are the same.
#[derive(Clone, Debug)]
pub struct Certificates {
    folder: Arc<TempDir>,
}

impl Certificates {
    /// New certificates. Only clients that are configured to do so trust them.
    ///
    /// # Panics
    /// If there is no `openssl`.
    pub fn new() -> Self {
        Self::of("DNS:localhost,IP:127.0.0.1")
    }

    /// The same, but the server's certificate is for this name and for no address.
    ///
    /// # Panics
    /// If there is no `openssl`.
    pub fn of_name(name: &str) -> Self {
        Self::of(&format!("DNS:{name}"))
    }

    fn of(names: &str) -> Self {
        let folder = folder::temporary("tenure-tls-");
        let extensions = format!("subjectAltName={names}\nextendedKeyUsage=serverAuth\n");
        fs::write(folder.path().join("extensions"), extensions).expect("a file in the temporary folder");
        for step in [AUTHORITY, REQUEST, SIGNATURE] {
            openssl(folder.path(), step);
        }
        Self { folder: Arc::new(folder) }
    }

    /// The authority's certificate, which a client must trust.
    pub fn ca_file(&self) -> PathBuf {
        self.folder.path().join("ca.pem")
    }

    /// A certificate that it signed for a client, and its key.
    ///
    /// # Panics
    /// If there is no `openssl`.
    pub fn client(&self) -> (PathBuf, PathBuf) {
        fs::write(self.folder.path().join("client"), "extendedKeyUsage=clientAuth\n")
            .expect("a file in the temporary folder");
        for step in [CLIENT_REQUEST, CLIENT_SIGNATURE] {
            openssl(self.folder.path(), step);
        }
        (self.folder.path().join("client.pem"), self.folder.path().join("client.key"))
    }

    /// Waits until a server has completed a handshake with a client of this authority.
    ///
    /// # Panics
    /// If it does not in time.
    pub(crate) fn shake_hands(&self, port: u16) {
        let (cert, key) = self.client();
        let mut client = Command::new("openssl");
        client.args([
            "s_client",
            "-verify_return_error",
            "-connect",
            &format!("127.0.0.1:{port}"),
            "-CAfile",
        ]);
        client.arg(self.ca_file()).arg("-cert").arg(cert).arg("-key").arg(key);
        client.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        eventually("the server speaks TLS", PATIENCE, || client.status().ok()?.success().then_some(()));
    }

    /// The settings of a server that asks its clients for certificates, and of its replicas and sentinels.
    pub(crate) fn settings_of_peers(&self) -> String {
        let (cert, key) = self.client();
        format!(
            "tls-auth-clients yes\ntls-replication yes\ntls-client-cert-file {}\ntls-client-key-file {}",
            cert.display(),
            key.display()
        )
    }

    /// The settings of a server that has these certificates.
    pub(crate) fn settings(&self, port: u16) -> String {
        let folder = self.folder.path().display();
        format!(
            "tls-port {port}\ntls-cert-file {folder}/server.pem\ntls-key-file {folder}/server.key\n\
             tls-ca-cert-file {folder}/ca.pem\ntls-auth-clients no"
        )
    }
}

impl Default for Certificates {
    fn default() -> Self {
        Self::new()
    }
}

fn openssl(folder: &Path, arguments: &str) {
    let output = Command::new("openssl")
        .args(arguments.split_whitespace())
        .current_dir(folder)
        .stdin(Stdio::null())
        .output()
        .unwrap_or_else(|error| panic!("cannot start openssl: {error}; `cargo xtask test` installs it"));
    let words = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "openssl {arguments}: {words}");
}

const PATIENCE: Duration = Duration::from_secs(30);
const AUTHORITY: &str = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -keyout ca.key \
                         -out ca.pem -days 3650 -subj /CN=tenure-test-authority";
const REQUEST: &str = "req -new -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -keyout server.key \
                       -out server.csr -subj /CN=localhost";
const SIGNATURE: &str = "x509 -req -in server.csr -CA ca.pem -CAkey ca.key -CAcreateserial -out server.pem \
                         -days 3650 -extfile extensions";
const CLIENT_REQUEST: &str = "req -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -keyout client.key \
                              -out client.csr -subj /CN=tenure-test-client";
const CLIENT_SIGNATURE: &str = "x509 -req -in client.csr -CA ca.pem -CAkey ca.key -CAcreateserial -out client.pem \
                                -days 3650 -extfile client";
