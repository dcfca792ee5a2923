//! What the benches of the databases share: many processes that pass one lock on, what waiting costs, and ownership.

pub(crate) mod crowd;
pub(crate) mod ownership;
pub(crate) mod waiting;

/// A server of a bench.
pub(crate) trait Database {
    /// With this query, as in `?table=x`.
    fn url(&self, query: &str) -> String;

    /// How many statements of all clients it has run.
    fn statements(&self) -> u64;

    /// Its process; those that it has begun count as well.
    fn pid(&self) -> u32;
}

/// Seconds of processor time of the server and the processes of its connections.
pub(crate) fn cpu(server: &impl Database) -> f64 {
    let facts = |pid: u32| -> Option<Vec<String>> {
        let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        Some(text.rsplit_once(") ")?.1.split_whitespace().map(str::to_owned).collect())
    };
    // A tick is 10 ms on every Linux that this runs on.
    let ticks =
        |facts: Vec<String>| -> f64 { facts[11..15].iter().filter_map(|f| f.parse::<f64>().ok()).sum() };
    let parent = server.pid().to_string();
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let children = pids.filter_map(facts).filter(|facts| facts[1] == parent);
    (children.map(ticks).sum::<f64>() + facts(server.pid()).map_or(0.0, ticks)) / 100.0
}
