//! One teller: a process that moves money from account to account, both locked.

use std::{error::Error, path::Path, time::Duration};

use tenure::blocking;

use crate::bank::{ACCOUNTS, Bank};

/// The word by which this program knows that it is a teller.
pub(crate) const VERB: &str = "__teller";

const TRANSFERS: u64 = 50;
/// For a server that was just started and grants nothing yet.
const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) fn run(number: &str, url: &str, folder: &Path) -> Result<(), Box<dyn Error>> {
    let (bank, locks) = (Bank::open(folder.to_owned()), blocking::connect(url)?);
    let (mut seed, mut moved) = (number.parse::<u64>()? + 1, 0);
    for _ in 0..TRANSFERS {
        let from = draw(&mut seed, ACCOUNTS);
        let to = (from + 1 + draw(&mut seed, ACCOUNTS - 1)) % ACCOUNTS;
        let amount = 1 + i64::try_from(draw(&mut seed, 300))?;
        let names = [Bank::lock_of(from), Bank::lock_of(to)];
        // Another teller may name the same two the other way round: both take them in one order, and neither waits for ever.
        let guards = locks.all(&names).within(PATIENCE).acquire()?;
        let payer = guards.get(&names[0]).expect("BUG: it was named");
        let payee = guards.get(&names[1]).expect("BUG: it was named");
        moved += u32::from(bank.transfer((from, payer), (to, payee), amount)?);
        guards.release()?;
    }
    println!(
        "teller {number} made {moved} of {TRANSFERS} transfers; for the others there was too little money"
    );
    Ok(())
}

/// A number below `limit`, from a seed that moves on.
fn draw(seed: &mut u64, limit: usize) -> usize {
    *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    // OK because it is below a small number.
    usize::try_from(*seed >> 33).unwrap_or(0) % limit
}
