//! `Recipe`: how an etcd server is started.

use std::path::PathBuf;

use crate::redis::Certificates;

/// How servers are started.
#[derive(Clone, Debug, Default)]
pub struct Recipe {
    pub(crate) args: Vec<String>,
    pub(crate) certificates: Option<Certificates>,
    pub(crate) is_durable: bool,
    /// The password of `root`, once [`login`](Self::login) has turned authentication on.
    pub(crate) root: Option<String>,
}

impl Recipe {
    /// With defaults: without TLS, without users, and without waiting for the disk.
    pub fn new() -> Self {
        Self::default()
    }

    /// With these arguments on the command line, after those of the testkit.
    #[must_use]
    pub fn args(mut self, args: &[&str]) -> Self {
        self.args.extend(args.iter().map(|arg| (*arg).to_owned()));
        self
    }

    /// A write is on the disk before the server answers it, as it is by default outside of tests.
    #[must_use]
    pub fn durable(mut self) -> Self {
        self.is_durable = true;
        self
    }

    /// Clients speak TLS only.
    #[must_use]
    pub fn tls(mut self, certificates: &Certificates) -> Self {
        self.certificates = Some(certificates.clone());
        self
    }

    /// Authentication is on: `root` has this password and may do anything. [`etcdctl`](super::EtcdServer::etcdctl)
    /// runs as `root` then, and can add others.
    #[must_use]
    pub fn login(mut self, password: &str) -> Self {
        self.root = Some(password.to_owned());
        self
    }

    pub(crate) fn scheme(&self) -> &'static str {
        if self.certificates.is_some() { "https" } else { "http" }
    }

    /// The arguments of a server, including its certificate.
    pub(crate) fn server_args(&self) -> Vec<String> {
        let mut args = self.args.clone();
        if let Some(certificates) = &self.certificates {
            let file = |name: &str| certificates.ca_file().with_file_name(name).display().to_string();
            args.extend(["--cert-file".into(), file("server.pem")]);
            args.extend(["--key-file".into(), file("server.key")]);
        }
        args
    }

    /// The arguments of a client: the authority that it trusts, and its user.
    pub(crate) fn client_args(&self) -> Vec<String> {
        let ca = self.certificates.as_ref().map(Certificates::ca_file);
        let ca = ca.map(|ca: PathBuf| format!("--cacert={}", ca.display()));
        let user = self.root.as_ref().map(|password| format!("--user=root:{password}"));
        ca.into_iter().chain(user).collect()
    }
}
