//! Runs the tests of `tests/python` with the extension that Cargo has built, on real servers.

#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

mod servers;

use std::{
    env, fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::{Command, Output},
};

use tempfile::TempDir;
use tenure_testkit::patience::slowness;

/// The folder of this crate.
fn home() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// A folder with the module, as a wheel installs it.
fn module() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let package = folder.path().join("tenure");
    fs::create_dir(&package).unwrap();
    for file in fs::read_dir(home().join("python/tenure")).unwrap() {
        let file = file.unwrap().path();
        symlink(&file, package.join(file.file_name().unwrap())).unwrap();
    }
    symlink(extension(), package.join("_native.abi3.so")).unwrap();
    folder
}

/// The extension, which is built beside the tests.
fn extension() -> PathBuf {
    let tests = env::current_exe().unwrap();
    let built = tests.parent().unwrap().join("lib_native.so");
    assert!(built.exists(), "{} is not built", built.display());
    built
}

/// An interpreter that finds the module and the tests, and nothing that it writes beside them.
fn python(module: &TempDir, url: &str) -> Command {
    let own = [module.path().to_owned(), home().join("tests/python")];
    let path = own.into_iter().chain(libraries());
    let mut python = Command::new("python3");
    python
        .args(["-X", "faulthandler", "-B"])
        .env("PYTHONPATH", env::join_paths(path).unwrap())
        .env("TENURE_URL", url)
        .env("TENURE_TEST_SLOWNESS", slowness().to_string());
    python
}

/// What the test command has installed for Python.
fn libraries() -> [PathBuf; 2] {
    let test = env::current_exe().unwrap();
    ["python-sql", "python"].map(|folder| test.ancestors().nth(3).unwrap().join("clients").join(folder))
}

#[track_caller]
fn passes(output: &Output) {
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}\n{text}", output.status);
    assert!(text.contains("\nRan ") && !text.contains("\nRan 0 "), "it ran no test: {text}");
}

/// Runs all tests of one file on this store.
#[track_caller]
fn run(file: &str, url: &str) {
    let module = module();
    let tests = home().join("tests/python").join(file);
    passes(&python(&module, url).arg(tests).output().unwrap_or_else(|error| panic!("python3: {error}")));
}

/// A test for each store and each file that tests what all stores promise.
macro_rules! on_every_store {
    ($($(#[$when:meta])? $store:ident: $on:ident;)*) => {$(
        $(#[$when])?
        mod $store {
            #[test]
            fn contract() {
                super::servers::$on(|url| super::run("contract.py", url));
            }

            #[test]
            fn loops() {
                super::servers::$on(|url| super::run("loops.py", url));
            }
        }
    )*};
}

on_every_store! {
    memory: on_memory;
    sqlite: on_sqlite;
    redis: on_redis;
    redlock: on_quorum;
    postgres: on_postgres;
    #[cfg(feature = "mysql")]
    mysql: on_mysql;
    zookeeper: on_zookeeper;
    #[cfg(feature = "etcd")]
    etcd: on_etcd;
}

/// What does not depend on the store: stops, forks, signals, the end of the interpreter.
mod processes {
    #[test]
    fn on_sqlite() {
        super::servers::on_sqlite(|url| super::run("processes.py", url));
    }

    #[test]
    fn on_redis() {
        super::servers::on_redis(|url| super::run("processes.py", url));
    }
}

/// Beside a library that locks the same key.
#[test]
fn redis_py_and_the_module_exclude_each_other() {
    servers::on_redis(|url| run("migration.py", url));
}

/// Ownership inside a transaction of the program's own.
mod transactions {
    #[test]
    fn on_postgres() {
        super::servers::on_postgres(|url| super::run("transactions.py", url));
    }

    #[cfg(feature = "mysql")]
    #[test]
    fn on_mysql() {
        super::servers::on_mysql(|url| super::run("transactions.py", url));
    }
}

#[test]
fn the_examples_of_the_docstrings_run() {
    let module = module();
    let code =
        "import doctest, sys, tenure; failed, run = doctest.testmod(tenure); sys.exit(failed or not run)";
    let output = python(&module, "memory:").args(["-c", code]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
}

/// Each example of the guide is a program, unless the line above it says why it is not run.
#[test]
fn the_examples_of_the_guide_run() {
    let guide = fs::read_to_string(home().join("../../docs/guides/python.md")).unwrap();
    let mut examples = 0;
    for (before, block) in guide.split("```python\n").zip(guide.split("```python\n").skip(1)) {
        let is_run =
            !before.trim_end().lines().next_back().is_some_and(|line| line.starts_with("<!-- not run: "));
        let (code, _) = block.split_once("```").unwrap();
        if !is_run {
            continue;
        }
        examples += 1;
        servers::on_sqlite(|url| {
            let output = python(&module(), url).args(["-c", code]).output().unwrap();
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success() && said.is_empty(), "{code}\n{said}");
        });
    }
    assert_eq!(examples, 4);
}
