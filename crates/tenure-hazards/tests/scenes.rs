//! Every scene: both verdicts, and what becomes of each when its half is turned round.

use std::{fs, path::Path};

use tenure_hazards::{Half, Need, Outcome, Played, Report, SCENES, Scene, Setup, pictures, play};

/// Both verdicts; the scheme without the fault; and the scheme in Tenure's place.
fn shows(number: u8) {
    let scene: &'static Scene =
        SCENES.iter().find(|scene| scene.number == number).expect("there is such a scene");
    let program = Path::new(env!("CARGO_BIN_EXE_tenure-hazards"));
    let missing = scene.needs.iter().find_map(|need| need.missing());
    assert_eq!(missing, None, "`cargo xtask test` installs it");
    // Built with the tests. One that a test had built would take the place of that of the other tests, while they run.
    let tenure = Some(program.with_file_name("tenure")).filter(|file| file.is_file());
    let needs_tenure = scene.needs.contains(&Need::Tenure);
    assert!(tenure.is_some() || !needs_tenure, "the command `tenure` is missing: cargo build -p tenure-cli");
    let setup = Setup { tenure, ..Setup::of(program.to_owned()) };

    let naive = played(scene, Half::Naive, &setup);
    assert!(!naive.harms.is_empty(), "nobody was hurt: {:#?}", naive.events);
    let tenure = played(scene, Half::Tenure, &setup);
    assert!(tenure.harms.is_empty(), "{:?}: {:#?}", tenure.harms, tenure.events);

    let [naive, tenure] =
        [(Half::Naive, naive), (Half::Tenure, tenure)].map(|(half, played)| Outcome::of(scene, half, played));
    let shown = Report { scene, naive, tenure };
    assert!(shown.is_as_expected());
    let differences = pictures::compare(Path::new(PICTURES), &[shown]);
    assert!(
        differences.is_empty(),
        "cargo run -p tenure-hazards -- --pictures docs/evidence/hazards --only {number}\n{differences:#?}"
    );

    let without_fault = played(scene, Half::Naive, &Setup { has_fault: false, ..setup.clone() });
    assert!(without_fault.harms.is_empty(), "{:?}: {:#?}", without_fault.harms, without_fault.events);
    let impostor = played(scene, Half::Tenure, &Setup { has_impostor: true, ..setup });
    assert!(!impostor.harms.is_empty(), "the half of Tenure does not notice: {:#?}", impostor.events);
}

/// The gallery has every scene, in the words of its scene; the catalogue has the hazards that it names.
#[test]
fn the_paper_tells_every_scene() {
    let read = |name: &str| {
        let folder = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/evidence"));
        fs::read_to_string(folder.join(name)).expect("the paper")
    };
    let (paper, catalogue) = (read("hazards.md"), read("schedules.toml"));
    let paper: Vec<&str> = paper.split_whitespace().collect();
    let paper = paper.join(" ");
    for scene in &SCENES {
        let title = format!("### Scene {}: {}", scene.number, scene.title);
        for words in [title.as_str(), scene.fault, scene.harm, scene.instead] {
            assert!(paper.contains(words), "docs/evidence/hazards.md does not have: {words}");
        }
        for half in ["naive", "tenure"] {
            assert!(paper.contains(&format!("(hazards/{:02}-{half}.svg)", scene.number)), "{title}");
        }
        for hazard in scene.hazards {
            assert!(
                catalogue.contains(&format!("name = \"Hazard {hazard}\"")),
                "{title} names hazard {hazard}"
            );
        }
    }
}

/// The pictures of the paper.
const PICTURES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/evidence/hazards");

fn played(scene: &Scene, half: Half, setup: &Setup) -> Played {
    let played = play(scene, half, setup);
    assert_eq!(played.trouble, None, "{half:?}: {:#?}", played.events);
    played
}

macro_rules! scenes {
    ($($number:literal $name:ident,)*) => {
        $(#[test]
        fn $name() {
            shows($number);
        })*

        #[test]
        fn each_scene_has_a_test() {
            assert_eq!(SCENES.iter().map(|scene| scene.number).collect::<Vec<_>>(), [$($number),*]);
        }
    };
}

scenes! {
    1 get_then_set,
    2 a_lock_without_an_end,
    3 setnx_then_expire,
    4 clocks_that_are_apart,
    5 a_del_that_looks_at_nothing,
    6 get_compare_del,
    7 what_watch_costs,
    8 work_that_lasts_longer,
    9 a_watchdog_that_nobody_hears,
    10 an_end_that_is_far_away,
    11 a_failover_that_forgets,
    12 a_node_that_forgets,
    13 a_clock_that_steps,
    14 a_late_write,
    15 a_late_answer,
    16 two_halves_of_a_quorum,
    17 read_change_write_back,
    18 a_herd_of_pollers,
    19 a_session_that_ends,
    20 a_script_that_is_killed,
    21 a_late_update_in_one_database,
}
