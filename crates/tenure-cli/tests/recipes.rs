//! The files in `packaging` that stand before a job: their commands are run as they stand there, but for the job and for
//! the time that the lock is kept after it.

use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::{PermissionsExt, symlink},
    path::{Path, PathBuf},
    process::Command,
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use tenure_testkit::patience::eventually;
use yaml_rust2::YamlLoader;

use crate::stage::{Ended, PATIENCE, Stage, files::HOLD};
#[cfg(target_os = "linux")]
use crate::{containers::init, procfs::World};

/// Where the package installs the command.
const TENURE: &str = "/usr/bin/tenure";

/// A program whose name begins so is the job.
const JOBS: &str = "/usr/local/bin/";

fn packaging(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging").join(name)
}

fn text(name: &str) -> String {
    fs::read_to_string(packaging(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// The settings of a unit; none of ours stands there twice.
fn unit(name: &str) -> BTreeMap<String, String> {
    let text = text(name);
    let settings = text.lines().filter(|line| !line.starts_with('#')).filter_map(|line| line.split_once('='));
    settings.map(|(key, value)| (key.to_owned(), value.to_owned())).collect()
}

/// The words of a unit's command behind `tenure`.
fn arguments(unit: &BTreeMap<String, String>) -> Vec<String> {
    let words: Vec<String> = unit["ExecStart"].split_whitespace().map(str::to_owned).collect();
    assert_eq!(words[0], TENURE, "where the package has it");
    words[1..].to_vec()
}

/// The words of the CronJob's command behind `tenure`.
fn of_kubernetes() -> Vec<String> {
    let parsed = YamlLoader::load_from_str(&text("kubernetes/cronjob.yaml")).unwrap();
    let pod = &parsed[0]["spec"]["jobTemplate"]["spec"]["template"]["spec"];
    let job = &pod["containers"][0];
    let secret = &job["env"][0];
    assert_eq!(secret["name"].as_str(), Some("TENURE_URL"));
    assert_eq!(secret["valueFrom"]["secretKeyRef"]["key"].as_str(), Some("url"), "no password in the file");
    assert_eq!(pod["restartPolicy"].as_str(), Some("Never"), "a rule for exit codes needs that");
    let words: Vec<&str> =
        job["command"].as_vec().unwrap().iter().map(|word| word.as_str().unwrap()).collect();
    assert_eq!(words[0], "tenure");
    words[1..].iter().map(ToString::to_string).collect()
}

/// The command of the crontab's only line.
fn of_cron() -> String {
    let text = text("cron/nightly");
    let jobs: Vec<&str> =
        text.lines().filter(|line| line.starts_with(|c: char| c.is_ascii_digit())).collect();
    let [job] = jobs[..] else { panic!("one line: {jobs:?}") };
    assert!(!job.contains('%'), "cron would make a new line of it");
    let guide = include_str!("../../../docs/guides/cron-systemd-kubernetes.md");
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        assert!(guide.contains(line), "the guide shows the file, and lacks {line}");
    }
    job.split_whitespace().skip(5).collect::<Vec<_>>().join(" ")
}

fn stage() -> Stage {
    with_job(Stage::new())
}

/// A stage with a job that says that it ran.
fn with_job(stage: Stage) -> Stage {
    fs::write(stage.path("job"), "#!/bin/sh\necho ran >>ran\n").unwrap();
    fs::set_permissions(stage.path("job"), fs::Permissions::from_mode(0o755)).unwrap();
    stage
}

/// The words with the stage's job, and without a long time after it.
fn on_stage(stage: &Stage, words: &[String]) -> Vec<String> {
    let mut words = words.to_vec();
    for index in 0..words.len() {
        if words[index].starts_with(JOBS) {
            words[index] = stage.path("job").to_str().unwrap().to_owned();
        } else if words[index] == "--min-hold" {
            words[index + 1] = "1ms".to_owned();
        }
    }
    words
}

fn run(stage: &Stage, words: &[String]) -> Ended {
    let words = on_stage(stage, words);
    stage.run(&words.iter().map(String::as_str).collect::<Vec<_>>())
}

/// What a recipe ends with when the lock is free, and while another holds it.
fn free_and_held(stage: &Stage, lock: &str, recipe: impl Fn() -> Ended) -> (i32, i32) {
    let free = recipe().code;
    assert_eq!(stage.lines("ran"), ["ran"], "the job ran");
    let holder = stage.start(&["run", lock, "--", "sh", "-c", HOLD, "holder"]);
    stage.beats("holder");
    let held = recipe();
    assert_eq!(stage.lines("ran"), ["ran"], "the job did not run beside the holder");
    assert_ne!(held.code, 64, "the words of a recipe are right: {held:?}");
    stage.touch("go");
    holder.ended().silent(0);
    (free, held.code)
}

/// A host that comes second must not be shown as failed, and one that cannot reach the store must be started again.
#[test]
fn a_job_of_systemd_runs_or_another_host_has_it() {
    let (stage, unit) = (stage(), unit("systemd/tenure-nightly.service"));
    let words = arguments(&unit);
    let (free, held) = free_and_held(&stage, "nightly", || run(&stage, &words));
    assert_eq!((free, held.to_string()), (0, unit["SuccessExitStatus"].clone()));
    let mut away = words.clone();
    away.insert(1, "--url=sqlite:/dev/null/locks.db".to_owned());
    let code = run(&stage, &away).code.to_string();
    assert!(unit["RestartForceExitStatus"].split(' ').any(|other| other == code), "{code}");
}

/// Who stands by gets its turn.
#[test]
fn a_service_of_systemd_waits_for_its_turn() {
    let (stage, unit) = (stage(), unit("systemd/tenure-leader.service"));
    let words = on_stage(&stage, &arguments(&unit));
    let holder = stage.start(&["run", "leader", "--", "sh", "-c", HOLD, "holder"]);
    stage.beats("holder");
    let standby = stage.start_waiter("leader", &words.iter().map(String::as_str).collect::<Vec<_>>());
    stage.touch("go");
    holder.ended().silent(0);
    assert_eq!((standby.ended().code, stage.lines("ran")), (0, vec!["ran".to_owned()]));
}

/// Cron sends a mail for each word that is said, so the host that comes second says none.
#[test]
fn a_line_of_cron_runs_or_is_silent() {
    let (stage, line) = (stage(), of_cron());
    symlink(env!("CARGO_BIN_EXE_tenure"), stage.path("tenure")).unwrap();
    let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
    let line = on_stage(&stage, &words).join(" ");
    let path = format!("{}:/usr/bin:/bin", stage.path("").display());
    let recipe = || {
        let mut shell = stage.program("/bin/sh");
        shell.args(["-c", &line]).env("PATH", &path);
        let ended = stage.run_command(shell);
        assert_eq!((ended.out.as_str(), ended.err.as_str()), ("", ""), "no mail");
        ended
    };
    assert_eq!(free_and_held(&stage, "nightly", recipe), (0, 0));
}

/// A Job that comes second has succeeded: it has no other code for that. A Redis with its guard refuses a ttl that is
/// longer than the URL says, so the URL that the file proposes says as long a one.
#[test]
fn a_job_of_kubernetes_runs_or_another_has_it() {
    let (text, words) = (text("kubernetes/cronjob.yaml"), of_kubernetes());
    let (_, proposed) = text.split_once("url='redis://").unwrap();
    let (_, query) = proposed.split_once("'").unwrap().0.split_once('?').unwrap();
    let ttl = words.iter().skip_while(|word| *word != "--ttl").nth(1).unwrap();
    assert_eq!(query, format!("max_ttl={ttl}"));
    let stage = with_job(Stage::on_redis_with(&format!("?{query}&guard=off")));
    assert_eq!(free_and_held(&stage, "nightly", || run(&stage, &words)), (0, 0));
}

/// The commands of the Deployment, with the stage's program and folder: that of the container, and that of its probe.
fn of_deployment(stage: &Stage) -> [Vec<String>; 2] {
    let parsed = YamlLoader::load_from_str(&text("kubernetes/leader.yaml")).unwrap();
    let pod = &parsed[0]["spec"]["template"]["spec"];
    let container = &pod["containers"][0];
    assert_eq!(container["env"][1]["valueFrom"]["secretKeyRef"]["key"].as_str(), Some("url"));
    assert_eq!(container["volumeMounts"][0]["name"], pod["volumes"][0]["name"]);
    let folder = container["volumeMounts"][0]["mountPath"].as_str().unwrap();
    let here = |word: &str| {
        let word = word.replace(folder, stage.path("").to_str().unwrap());
        word.replace("/usr/local/bin/scheduler", stage.path("scheduler").to_str().unwrap())
    };
    [&container["command"], &container["livenessProbe"]["exec"]["command"]]
        .map(|words| words.as_vec().unwrap().iter().map(|word| here(word.as_str().unwrap())).collect())
}

/// As process 1 of two pods: one leads and one stands by, both are healthy, a signal reaches the program, and TERM hands the lead
/// on. A program that hangs is not healthy.
#[test]
#[cfg(target_os = "linux")]
fn a_deployment_of_kubernetes_leads_in_one_pod() {
    let first = Stage::on_redis_with("?max_ttl=15s&guard=off");
    let url = first.environment().into_iter().find(|(name, _)| *name == "TENURE_URL").unwrap().1;
    let second = Stage::at(url);
    let program = "#!/bin/sh\n[ \"$1\" = --healthy ] && exec test ! -e hangs
        trap 'echo USR1 >>heard' USR1; trap 'echo TERM >>heard; exit 0' TERM; echo >>leads; exec 2>/dev/null; while :; do sleep 0.05; done\n";
    let pods = [&first, &second].map(|stage| {
        fs::write(stage.path("scheduler"), program).unwrap();
        fs::set_permissions(stage.path("scheduler"), fs::Permissions::from_mode(0o755)).unwrap();
        let [words, probe] = of_deployment(stage);
        assert_eq!(words[0], "tenure");
        let world = World::new(stage, &["--pid", "--fork", "--mount-proc"], "").expect("namespaces");
        let start = move || world.start(stage, &words[1..].iter().map(String::as_str).collect::<Vec<_>>());
        // In the namespace of the pod, as the kubelet runs it.
        let healthy = move |tenure: Pid| {
            let mut inside = stage.program("nsenter");
            inside.args([
                "-p",
                "-m",
                "-t",
                &tenure.to_string(),
                &format!("--wd={}", stage.path("").display()),
            ]);
            stage
                .run_command({
                    inside.args(&probe);
                    inside
                })
                .code
                == 0
        };
        (start, healthy)
    });
    let leader = pods[0].0();
    first.has_lines("leads", 1);
    let standby = pods[1].0();
    eventually("it stands by", PATIENCE, || (!first.queue("scheduler").is_empty()).then_some(()));
    let [one, two] = [init(&first, &leader), init(&second, &standby)];
    assert!(pods[0].1(one) && pods[1].1(two));
    kill(one, Signal::SIGUSR1).unwrap();
    first.has_lines("heard", 1);
    first.touch("hangs");
    assert!(!pods[0].1(one));
    kill(one, Signal::SIGTERM).unwrap();
    leader.ended().silent(0);
    assert_eq!(first.lines("heard"), ["USR1", "TERM"]);
    second.has_lines("leads", 1);
    assert!(pods[1].1(two));
    kill(two, Signal::SIGTERM).unwrap();
    standby.ended().silent(0);
}

/// Settings that systemd does not take together are refused when the unit is started, which is late. Where it is not
/// installed, the names alone are checked.
#[test]
fn systemd_takes_the_units() {
    let stage = stage();
    for file in fs::read_dir(packaging("systemd")).unwrap() {
        let name = file.unwrap().file_name().into_string().unwrap();
        let text = text(&format!("systemd/{name}"));
        let tenure = env!("CARGO_BIN_EXE_tenure");
        let here = text.replace(TENURE, tenure).replace("Documentation=man:tenure-run(1)\n", "");
        fs::write(stage.path(&name), here).unwrap();
        assert!(name.starts_with("tenure-") && text.contains("[Unit]\nDescription="), "{name}");
    }
    for name in ["tenure-nightly.timer", "tenure-leader.service"] {
        let mut analyze = Command::new("systemd-analyze");
        let Ok(said) = analyze.arg("verify").arg(stage.path(name)).output() else {
            eprintln!("not tried: there is no systemd-analyze");
            continue;
        };
        let complaints = String::from_utf8_lossy(&said.stderr);
        assert!(said.status.success() && complaints.is_empty(), "{name}: {complaints}");
    }
}

/// A recipe that no paper names is not found, and one that is named has to be there.
#[test]
fn the_paper_names_each_file() {
    let paper = fs::read_to_string(packaging("../docs/guides/cron-systemd-kubernetes.md")).unwrap();
    for folder in ["systemd", "cron", "kubernetes"] {
        for file in fs::read_dir(packaging(folder)).unwrap() {
            let name = file.unwrap().file_name().into_string().unwrap();
            assert!(paper.contains(&format!("(../../packaging/{folder}/{name})")), "{folder}/{name}");
        }
    }
    let links = paper.split("](../../").skip(1).filter_map(|rest| rest.split_once(')'));
    let gone = links.map(|(path, _)| path).filter(|path| !packaging("..").join(path).exists());
    assert_eq!(gone.collect::<Vec<_>>(), Vec::<&str>::new(), "named, and not there");
}

/// The image is built with the compiler that the crates ask for, and CI runs what we run.
#[test]
fn the_image_and_the_workflow_follow_the_tree() {
    let image = format!("rust:{}-bookworm", env!("CARGO_PKG_RUST_VERSION"));
    let container = text("Containerfile");
    assert!(container.contains(&format!("FROM docker.io/library/{image} AS build\n")), "{image}");
    let workflow = YamlLoader::load_from_str(&text("../.github/workflows/ci.yml")).unwrap();
    let job = &workflow[0]["jobs"]["ci"];
    assert_eq!(job["container"].as_str(), Some(image.as_str()));
    let steps = job["steps"].as_vec().unwrap();
    assert!(steps.iter().any(|step| step["run"].as_str() == Some(".ci/run")), "{steps:?}");
}
