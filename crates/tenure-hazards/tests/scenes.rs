//! Every scene: both verdicts, and what becomes of each when its half is turned round.

use std::path::Path;

use tenure_hazards::{Cast, Fault, Half, Played, Scene, all, command, play};

/// Both verdicts; the scheme without the fault; and the scheme in Tenure's place.
fn shows(number: u8) {
    let scenes = all();
    let scene: &dyn Scene =
        *scenes.iter().find(|scene| scene.card().number == number).expect("there is such a scene");
    let program = Path::new(env!("CARGO_BIN_EXE_tenure-hazards"));
    let missing = scene.card().needs.iter().find_map(|need| need.missing());
    assert_eq!(missing, None, "`cargo xtask test` installs it");
    let cast = Cast { tenure: command::find(program), ..Cast::of(program.to_owned()) };

    let naive = played(scene, Half::Naive, &cast);
    assert!(!naive.harms.is_empty(), "nobody was hurt: {:#?}", naive.events);
    let tenure = played(scene, Half::Tenure, &cast);
    assert!(tenure.harms.is_empty(), "{:?}: {:#?}", tenure.harms, tenure.events);

    let without_fault = played(scene, Half::Naive, &Cast { fault: Fault::StaysAway, ..cast.clone() });
    assert!(without_fault.harms.is_empty(), "{:?}: {:#?}", without_fault.harms, without_fault.events);
    let impostor = played(scene, Half::Tenure, &Cast { has_impostor: true, ..cast });
    assert!(!impostor.harms.is_empty(), "the half of Tenure does not notice: {:#?}", impostor.events);
}

fn played(scene: &dyn Scene, half: Half, cast: &Cast) -> Played {
    let played = play(scene, half, cast);
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
            assert_eq!(all().iter().map(|scene| scene.card().number).collect::<Vec<_>>(), [$($number),*]);
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
}
