//! `ls`, `show`, `break`, `completions`.

use std::io::{self, Write};

use clap::CommandFactory;
use comfy_table::{Table, presets::NOTHING};
use serde::Serialize;
use tenure::core::{HolderView, Label, LockView, WaiterView};

use crate::{
    args::{Break, Cli, Global, Ls, Show},
    exit::Stop,
    line, people, store,
};

#[derive(Serialize)]
struct LockJson<'a> {
    name: &'a str,
    holders: Vec<HolderJson<'a>>,
    queue: Vec<WaiterJson<'a>>,
    fence: u64,
}

#[derive(Serialize)]
struct HolderJson<'a> {
    owner: &'a str,
    mode: String,
    token: Option<u64>,
    label: Option<LabelJson<'a>>,
    since: Option<String>,
    /// `null` if it never ends by itself.
    expires_in_ms: Option<u128>,
}

#[derive(Serialize)]
struct WaiterJson<'a> {
    owner: &'a str,
    mode: String,
    label: Option<LabelJson<'a>>,
    waiting_ms: u128,
}

#[derive(Serialize)]
struct LabelJson<'a> {
    host: &'a str,
    pid: u32,
    user: &'a str,
    command: &'a str,
}

fn label(label: &Label) -> LabelJson<'_> {
    LabelJson { host: &label.host, pid: label.pid, user: &label.user, command: &label.command }
}

fn holder(holder: &HolderView) -> HolderJson<'_> {
    HolderJson {
        owner: &holder.owner,
        mode: holder.mode.to_string(),
        token: holder.token.map(tenure::FencingToken::get),
        label: holder.label.as_ref().map(label),
        since: holder.since.map(people::rfc3339),
        expires_in_ms: holder.expires_in.map(|left| left.as_millis()),
    }
}

fn waiter(waiter: &WaiterView) -> WaiterJson<'_> {
    WaiterJson {
        owner: &waiter.owner,
        mode: waiter.mode.to_string(),
        label: waiter.label.as_ref().map(label),
        waiting_ms: waiter.waiting.as_millis(),
    }
}

fn lock(view: &LockView) -> LockJson<'_> {
    LockJson {
        name: view.name.as_str(),
        holders: view.holders.iter().map(holder).collect(),
        queue: view.queue.iter().map(waiter).collect(),
        fence: view.fence.get(),
    }
}

/// Prints to the standard output; a reader that has gone is no error.
pub(crate) fn print(text: &str) {
    let _ = try_print(text);
}

fn try_print(text: &str) -> io::Result<()> {
    let mut out = io::stdout();
    out.write_all(text.trim_end().as_bytes())?;
    out.write_all(b"\n")?;
    out.flush()
}

/// Prints what the reader must not miss.
pub(crate) fn json<T: Serialize>(value: &T) -> io::Result<()> {
    try_print(&serde_json::to_string(value).expect("BUG: a view is plain data"))
}

pub(crate) async fn ls(global: &Global, args: &Ls) -> Result<u8, Stop> {
    let locks = store::connect(global).await?;
    let views = line::spin_while(global.quiet, "looking through the store", locks.list(&args.prefix));
    let views = views.await.map_err(|error| Stop::store(&error))?;
    if args.json {
        let _ = json(&views.iter().map(lock).collect::<Vec<_>>());
    } else if !views.is_empty() {
        print(&table(&views));
    }
    Ok(0)
}

fn table(views: &[LockView]) -> String {
    let mut table = Table::new();
    table.load_style(NOTHING).set_header(["NAME", "MODE", "HELD BY", "TOKEN", "SINCE", "LEFT", "WAITING"]);
    for view in views {
        let waiting = view.queue.len().to_string();
        for held in &view.holders {
            table.add_row([
                view.name.to_string(),
                held.mode.to_string(),
                people::who(held.label.as_ref(), &held.owner),
                held.token.map_or_else(|| "-".into(), |token| token.to_string()),
                held.since.map_or_else(String::new, people::clock),
                people::left(held.expires_in),
                waiting.clone(),
            ]);
        }
        if view.holders.is_empty() {
            let nobody = ["-", "-", "-", "-", "-"].map(String::from);
            table.add_row([vec![view.name.to_string()], nobody.to_vec(), vec![waiting]].concat());
        }
    }
    lines(table)
}

/// A table as lines, its columns two spaces apart.
pub(crate) fn lines(mut table: Table) -> String {
    for column in table.column_iter_mut() {
        column.set_padding((0, 2));
    }
    table.lines().map(|line| line.trim_end().to_owned() + "\n").collect()
}

pub(crate) async fn show(global: &Global, args: &Show) -> Result<u8, Stop> {
    let locks = store::connect(global).await?;
    let view = locks.inspect(&args.name).await.map_err(|error| Stop::store(&error))?;
    if args.json {
        let _ = json(&lock(&view));
        return Ok(0);
    }
    let mut text =
        if view.holders.is_empty() { format!("{} is free\n", view.name) } else { format!("{}\n", view.name) };
    for held in &view.holders {
        let token = held.token.map_or_else(String::new, |token| format!(", token {token}"));
        text += &format!("  held ({}) by {}{token}, owner {}\n", held.mode, people::holder(held), held.owner);
    }
    for (place, waits) in view.queue.iter().enumerate() {
        let who = people::who(waits.label.as_ref(), &waits.owner);
        text += &format!(
            "  {}. waits ({}) for {}: {who}\n",
            place + 1,
            waits.mode,
            people::seconds(waits.waiting)
        );
    }
    text += &format!("  fence {}\n", view.fence);
    print(&text);
    Ok(0)
}

pub(crate) async fn break_lock(global: &Global, args: &Break) -> Result<u8, Stop> {
    let locks = store::connect(global).await?;
    let robbed = locks.break_lock(&args.name).await.map_err(|error| Stop::store(&error))?;
    if global.quiet {
        return Ok(0);
    }
    if robbed.is_empty() {
        print(&format!("{} was free", args.name));
    }
    for holder in &robbed {
        print(&format!("{} was taken from {}", args.name, people::holder(holder)));
    }
    Ok(0)
}

pub(crate) fn completions(shell: clap_complete::Shell) -> Result<u8, Stop> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "tenure", &mut script);
    print(&String::from_utf8_lossy(&script));
    Ok(0)
}
