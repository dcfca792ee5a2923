//! What `cargo metadata` says of this workspace, as plain values.

use std::{
    collections::BTreeMap,
    env,
    ffi::OsString,
    path::{Path, PathBuf},
    process::Command,
};

use serde_json::Value;

use crate::{session, step::Failure};

/// What the lints look at: all, with what the command and the benchmarks have only if asked.
pub(crate) const LINTED: &[&str] = &[
    "--workspace",
    "--all-targets",
    "--features",
    "tenure-cli/etcd,tenure-cli/mysql,tenure-cli/zookeeper-sasl,tenure-cli/zookeeper-tls,tenure-python/etcd,tenure-python/mysql,tenure-python/zookeeper-sasl,tenure-python/zookeeper-tls,tenure-bench/etcd,tenure/metrics",
];

/// What is tested: all but the benchmarks, which have no tests, and crates of their own to build; and but [`HOUSE`].
pub(crate) const TESTED: &[&str] = &[
    "--workspace",
    "--exclude",
    "tenure-bench",
    "--exclude",
    "xtask",
    "--features",
    "tenure-cli/etcd,tenure-cli/mysql,tenure-cli/zookeeper-sasl,tenure-cli/zookeeper-tls,tenure-python/etcd,tenure-python/mysql,tenure-python/zookeeper-sasl,tenure-python/zookeeper-tls,tenure/metrics",
];

/// What the command and the module of Python have only if asked, and packages always: every store.
pub(crate) const ALL_STORES: &[&str] = &["--features", "etcd,mysql,zookeeper-sasl,zookeeper-tls"];

/// Our own tests, built as `cargo xtask` is. Among the others they would keep the macros of foreign crates from being those of the
/// command, and so all crates above them: this program reads Rust with the libraries that macros do (`docs/decisions/builds-and-tests.md`).
pub(crate) const HOUSE: &[&str] = &["test", "--package", "xtask", "--no-fail-fast"];

/// What builds the simulation on the foreign crates of the command: with its features, which cargo unites.
pub(crate) const SIMULATION: &[&str] =
    &["build", "--package", "tenure-cli", "--package", "tenure-sim", "--bin", "tenure-sim"];

/// How the names of variables begin with which `cargo run` describes the package that it runs.
const OF_OUR_PACKAGE: &[&str] = &["CARGO_PKG_", "CARGO_MANIFEST_"];

/// The workspace: where it is and which packages it has.
#[derive(Debug)]
pub(crate) struct Workspace {
    pub(crate) root: PathBuf,
    /// Where cargo puts what it built.
    pub(crate) target: PathBuf,
    /// Where it puts what it needs on the way; usually the same.
    pub(crate) build: PathBuf,
    pub(crate) packages: Vec<Package>,
}

/// One package of ours.
#[derive(Debug)]
pub(crate) struct Package {
    pub(crate) name: String,
    pub(crate) version: String,
    /// Path of its `Cargo.toml`, relative to the root, with `/`.
    pub(crate) manifest: String,
    /// Whether it may go to a registry (`publish` is not `false`).
    pub(crate) is_published: bool,
    pub(crate) dependencies: Vec<Dependency>,
    pub(crate) features: BTreeMap<String, Vec<String>>,
}

/// One line of a package's dependency tables.
#[derive(Debug)]
pub(crate) struct Dependency {
    /// The package's name, also where it is renamed.
    pub(crate) name: String,
    /// A dependency of tests, examples and benches only.
    pub(crate) is_dev: bool,
}

impl Workspace {
    /// Asks cargo.
    pub(crate) fn load() -> Result<Self, Failure> {
        let failed = |why: String| Failure::new("cargo metadata", why);
        let output = cargo()
            .args(["metadata", "--no-deps", "--format-version", "1"])
            .output()
            .map_err(|e| failed(format!("cannot start cargo: {e}")))?;
        if !output.status.success() {
            return Err(failed(String::from_utf8_lossy(&output.stderr).into_owned()));
        }
        Self::parse(&String::from_utf8_lossy(&output.stdout)).map_err(failed)
    }

    /// Reads the JSON of `cargo metadata --format-version 1`.
    pub(crate) fn parse(json: &str) -> Result<Self, String> {
        let metadata: Value = serde_json::from_str(json).map_err(|e| format!("not JSON: {e}"))?;
        let root = text(&metadata["workspace_root"])?;
        let packages =
            list(&metadata["packages"]).iter().map(|p| Package::parse(p, &root)).collect::<Result<_, _>>()?;
        let root = PathBuf::from(root);
        let folder = |key: &str| metadata[key].as_str().map(PathBuf::from);
        let target = folder("target_directory").unwrap_or_else(|| root.join("target"));
        let build = folder("build_directory").unwrap_or_else(|| target.clone());
        Ok(Self { root, target, build, packages })
    }

    /// Lets a cargo put its programs into another folder, and build where we do: foreign crates are the same ones.
    pub(crate) fn put(&self, command: &mut Command, folder: &Path) {
        command.env("CARGO_TARGET_DIR", folder).env("CARGO_BUILD_BUILD_DIR", &self.build);
    }

    /// The package of this name.
    pub(crate) fn package(&self, name: &str) -> Option<&Package> {
        self.packages.iter().find(|p| p.name == name)
    }
}

impl Package {
    fn parse(package: &Value, root: &str) -> Result<Self, String> {
        let path = text(&package["manifest_path"])?;
        let manifest = path.strip_prefix(root).unwrap_or(&path).replace('\\', "/");
        let features = package["features"].as_object().into_iter().flatten();
        Ok(Self {
            name: text(&package["name"])?,
            version: text(&package["version"])?,
            manifest: manifest.trim_start_matches('/').to_owned(),
            is_published: package["publish"].as_array().is_none_or(|registries| !registries.is_empty()),
            dependencies: list(&package["dependencies"])
                .iter()
                .map(Dependency::parse)
                .collect::<Result<_, _>>()?,
            features: features.map(|(name, turns_on)| (name.clone(), texts(turns_on))).collect(),
        })
    }
}

impl Dependency {
    fn parse(dependency: &Value) -> Result<Self, String> {
        Ok(Self { name: text(&dependency["name"])?, is_dev: dependency["kind"] == "dev" })
    }
}

/// The cargo that started us, so that a toolchain override holds for what we start, too. What it told us of our own package is
/// not for it: the build scripts of some crates (ring) run anew when that changes.
pub(crate) fn cargo() -> Command {
    cargo_under(&[])
}

/// [`cargo`], started by the program of these words.
pub(crate) fn cargo_under(starter: &[&str]) -> Command {
    let cargo = env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo"));
    let mut command = session::under(starter, cargo);
    for (name, _) in env::vars_os() {
        let is_ours =
            name.to_str().is_some_and(|name| OF_OUR_PACKAGE.iter().any(|kind| name.starts_with(kind)));
        if is_ours {
            command.env_remove(name);
        }
    }
    command
}

fn text(value: &Value) -> Result<String, String> {
    value.as_str().map(str::to_owned).ok_or_else(|| format!("expected a string, found {value}"))
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn texts(value: &Value) -> Vec<String> {
    list(value).iter().filter_map(Value::as_str).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_package_is_read_with_its_kinds_of_dependencies_and_features() {
        let workspace = Workspace::parse(
            r#"{"workspace_root": "/w", "packages": [{
                "name": "tenure", "version": "0.1.0", "manifest_path": "/w/crates/tenure/Cargo.toml",
                "publish": null, "features": {"default": ["memory"], "memory": ["dep:tenure-memory"]},
                "dependencies": [
                    {"name": "tenure-memory", "kind": null},
                    {"name": "tempfile", "kind": "dev"}
                ]}]}"#,
        )
        .unwrap();
        let package = workspace.package("tenure").unwrap();
        assert_eq!(package.manifest, "crates/tenure/Cargo.toml");
        assert!(package.is_published);
        assert_eq!(package.features["default"], ["memory"]);
        assert_eq!(package.dependencies.iter().map(|d| d.is_dev).collect::<Vec<_>>(), [false, true]);
    }

    #[test]
    fn a_package_that_no_registry_may_have_is_not_published() {
        let json = r#"{"workspace_root": "/w", "packages": [
            {"name": "a", "version": "1.0.0", "manifest_path": "/w/a/Cargo.toml", "publish": []}]}"#;
        assert!(!Workspace::parse(json).unwrap().packages[0].is_published);
    }

    #[test]
    fn nonsense_is_an_error_and_no_panic() {
        assert!(Workspace::parse("{").is_err());
        assert!(Workspace::parse("{}").is_err());
    }
}
