//! `ZooKeeperServer`: one process that a test starts, asks, stops, kills and starts again.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use nix::sys::signal::Signal;
use tempfile::TempDir;

use crate::{
    daemon::{Daemon, started},
    folder,
    patience::{eventually, slowness},
    ports,
    redis::Certificates,
    zookeeper::{classes, words},
};

/// The tick of every server here.
pub const TICK: Duration = Duration::from_millis(500);

/// A server that dies with the test. Alone, unless an [`Ensemble`](super::Ensemble) made it.
#[derive(Debug)]
pub struct ZooKeeperServer {
    port: u16,
    /// Where it speaks TLS, with these certificates.
    tls: Option<(u16, Certificates)>,
    class: &'static str,
    is_durable: bool,
    daemon: Daemon,
    // Last: the process must end before its folder is deleted.
    folder: TempDir,
}

impl ZooKeeperServer {
    /// Starts a server with sessions of 1 to 60 s.
    pub fn start() -> Self {
        Self::with("")
    }

    /// The same with more lines in its settings, which override those before.
    ///
    /// # Panics
    /// If it does not start.
    pub fn with(settings: &str) -> Self {
        Self::reading(&classes::from_archive(Self::read_once), settings, false)
    }

    /// A server that answers a write when it is on the disk, as it is by default outside of tests.
    ///
    /// # Panics
    /// If it does not start.
    pub fn durable() -> Self {
        Self::reading(&classes::from_archive(Self::read_once), "", true)
    }

    /// A server that speaks TLS on another port, with clients whose certificate its authority signed.
    ///
    /// # Panics
    /// If it does not start.
    pub fn tls(certificates: &Certificates) -> Self {
        started("ZooKeeper", TRIES, || {
            let mut server = Self::prepare(ALONE, "", false);
            server.tls = Some((ports::free(false), certificates.clone()));
            server.add("");
            server.launch()?;
            // The first handshake of a Java VM takes longer on a busy host than a client waits.
            certificates.shake_hands(server.tls.as_ref().map_or(0, |(port, _)| *port));
            Ok(server)
        })
    }

    /// A server in whose JAAS file this user has this password.
    ///
    /// # Panics
    /// If it does not start.
    pub fn jaas(user: &str, password: &str) -> Self {
        started("ZooKeeper", TRIES, || {
            let server = Self::prepare(ALONE, SASL, false);
            let module = "org.apache.zookeeper.server.auth.DigestLoginModule";
            server.write(JAAS, &format!("Server {{ {module} required user_{user}=\"{password}\"; }};\n"));
            server.launch().map(|()| server)
        })
    }

    /// A server that gets this option of Java's for its classes.
    fn reading(classes: &str, settings: &str, is_durable: bool) -> Self {
        started("ZooKeeper", TRIES, || {
            let server = Self::prepare(ALONE, settings, is_durable);
            server.launch_reading(classes).map(|()| server)
        })
    }

    /// Starts a server with this option, and makes it end in order.
    fn read_once(classes: &str) {
        let server = Self::reading(classes, "", false);
        server.daemon.signal(Signal::SIGTERM);
        let has_ended = || (!server.daemon.is_running()).then_some(());
        eventually("a server that is asked to end does", PATIENCE, has_ended);
    }

    /// Prepares everything but the process.
    fn prepare(class: &'static str, settings: &str, is_durable: bool) -> Self {
        // A durable server needs a disk: in memory, nothing reaches one.
        let place = if is_durable { folder::temporary } else { folder::of_server };
        let (port, daemon, folder) = (ports::free(false), Daemon::default(), place("tenure-zookeeper-"));
        let server = Self { port, tls: None, class, is_durable, daemon, folder };
        server.write(SETTINGS, &server.settings(settings));
        server
    }

    /// A member of an ensemble, that does not run yet.
    pub(super) fn member(id: usize) -> Self {
        let server = Self::prepare(MEMBER, "", false);
        fs::create_dir(server.data()).expect("a folder in the temporary folder");
        server.write("data/myid", &id.to_string());
        server
    }

    /// Adds lines to its settings, before it is launched.
    pub(super) fn add(&self, settings: &str) {
        self.write(SETTINGS, &self.settings(settings));
    }

    fn settings(&self, more: &str) -> String {
        let (tick, data, port) = (TICK.as_millis(), self.data().display().to_string(), self.port);
        format!(
            "tickTime={tick}\ninitLimit=10\nsyncLimit=10\ndataDir={data}\nclientPort={port}\n\
             clientPortAddress=127.0.0.1\nadmin.enableServer=false\n4lw.commands.whitelist=*\n\
             minSessionTimeout=1000\nmaxSessionTimeout=60000\nmaxClientCnxns=0\n{}{more}\n",
            self.tls_settings()
        )
    }

    fn tls_settings(&self) -> String {
        let Some((port, certificates)) = &self.tls else { return String::new() };
        let ca = certificates.ca_file();
        let read =
            |name: &str| fs::read_to_string(ca.with_file_name(name)).expect("a file that was just made");
        self.write(KEYS, &(read("server.key") + &read("server.pem")));
        let (keys, ca) = (self.path(KEYS).display().to_string(), ca.display());
        format!(
            "secureClientPort={port}\nserverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory\n\
             ssl.clientAuth=need\nssl.keyStore.type=PEM\nssl.keyStore.location={keys}\nssl.trustStore.type=PEM\n\
             ssl.trustStore.location={ca}\n"
        )
    }

    /// Starts the process and waits until it listens. If it ends before that, the error is the end of its log. A
    /// member may have to wait for the others before it serves.
    pub(super) fn launch(&self) -> Result<(), String> {
        self.launch_reading(&classes::from_archive(Self::read_once))
    }

    fn launch_reading(&self, classes: &str) -> Result<(), String> {
        let serves = |_: &Path| match self.class {
            // Only this server answers with its folder: another process may have been faster on the port.
            ALONE => words::ask(self.port, "conf", words::HUNG)
                .is_ok_and(|conf| conf.contains(&self.data().display().to_string())),
            _ => words::ask(self.port, "ruok", words::HUNG).is_ok(),
        };
        self.daemon.launch(self.folder.path(), |_| self.command_line(classes), serves)
    }

    /// A small Java VM: many of them run at the same time on few processors.
    fn command_line(&self, classes: &str) -> Command {
        let (mut command, jaas) = (Command::new("java"), self.path(JAAS));
        // First the jar with which the archive was made.
        let jars = classes::JAR.to_owned() + if self.tls.is_some() { NETTY } else { "" };
        command
            .args(["-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto", classes])
            // A process that is killed loses nothing without a sync; only a machine that crashes would.
            .args((!self.is_durable).then_some("-Dzookeeper.forceSync=no"))
            .args(jaas.exists().then(|| format!("-Djava.security.auth.login.config={}", jaas.display())))
            .args(["-cp", &jars, self.class])
            .arg(self.path(SETTINGS))
            .current_dir(self.folder.path());
        command
    }

    /// The port on which it listens, at 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// `127.0.0.1:PORT`.
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// `zookeeper://127.0.0.1:PORT/tenure` with its tick and the rest of the query, each as `&key=value`.
    pub fn url(&self, query: &str) -> String {
        url(&self.address(), query)
    }

    /// The URL of locks on it over TLS, as a client that trusts its authority, with its tick and the rest of the query.
    ///
    /// # Panics
    /// If it does not speak TLS.
    pub fn tls_url(&self, host: &str, query: &str) -> String {
        let (port, certificates) = self.tls.as_ref().expect("a server that was started with TLS");
        let plain =
            url(&format!("{host}:{port}"), &format!("ca={}{query}", certificates.ca_file().display()));
        plain.replacen("zookeeper://", "zookeepers://", 1)
    }

    /// Its role: `standalone`, `leader` or `follower`. `None` while it does not serve.
    pub fn mode(&self) -> Option<String> {
        words::mode(self.port)
    }

    /// What it answers to a four-letter word, as `mntr`.
    ///
    /// # Panics
    /// If it does not answer.
    pub fn word(&self, word: &str) -> String {
        words::ask(self.port, word, Duration::from_secs(10) * slowness())
            .unwrap_or_else(|error| panic!("port {}: {error}", self.port))
    }

    /// The id of its process.
    ///
    /// # Panics
    /// If it was killed.
    pub fn pid(&self) -> u32 {
        self.daemon.pid()
    }

    /// Kills it as a crash does, and waits until it has ended. It may be stopped, or have ended already.
    pub fn kill(&self) {
        self.daemon.kill();
    }

    /// Starts it again after a [`kill`](Self::kill), with its data.
    ///
    /// # Panics
    /// If it runs, or does not listen in time.
    pub fn start_again(&self) {
        self.daemon.insist(|| self.launch());
    }

    /// Suspends it: the process does nothing, and its connections stay open. Returns when it has stopped.
    ///
    /// # Panics
    /// If it was killed.
    pub fn stop(&self) {
        self.daemon.stop();
    }

    /// Continues it after a [`stop`](Self::stop).
    ///
    /// # Panics
    /// If it was killed.
    pub fn resume(&self) {
        self.daemon.resume();
    }

    fn data(&self) -> PathBuf {
        self.path("data")
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.path(name), text).expect("a file in the temporary folder");
    }
}

/// The URL of the locks on these servers.
pub(super) fn url(hosts: &str, query: &str) -> String {
    let more = query.trim_start_matches(['?', '&']);
    let separator = if more.is_empty() { "" } else { "&" };
    format!("zookeeper://{hosts}/tenure?tick={}ms{separator}{more}", TICK.as_millis())
}

const ALONE: &str = "org.apache.zookeeper.server.ZooKeeperServerMain";
const MEMBER: &str = "org.apache.zookeeper.server.quorum.QuorumPeerMain";
const SETTINGS: &str = "zoo.cfg";
const JAAS: &str = "jaas.conf";
const SASL: &str = "authProvider.sasl=org.apache.zookeeper.server.auth.SASLAuthenticationProvider";
/// Key and certificate.
const KEYS: &str = "keys.pem";
/// What TLS needs and the manifest of [`classes::JAR`] leaves out.
const NETTY: &str = ":/usr/share/java/netty-codec.jar:/usr/share/java/netty-resolver.jar\
                     :/usr/share/java/netty-transport-native-unix-common.jar";
/// How often to try: another process may take the port between the check and the server's start.
const TRIES: usize = 5;
/// How long a server may take to end in order.
const PATIENCE: Duration = Duration::from_secs(30);
