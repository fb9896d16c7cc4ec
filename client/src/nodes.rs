//! `psi-agent nodes`: lists the cluster's nodes by published score, with its age, and prints those that
//! change. On a narrow terminal, the less important columns are omitted.

mod table;

use std::io::{ErrorKind, IsTerminal, Write, stderr, stdout};
use std::pin::pin;

use anyhow::Context;
use futures_util::StreamExt;
use jiff::Timestamp;
use serde_json::json;

use self::table::{Row, columns, lines, require_fresh, sort, table};
use crate::cluster::{ApiClient, NodeMetadata, WatchEvent};
use crate::contract::Prefix;
use crate::flags::{NodesFlags, NodesOutput};
use crate::output::print;

/// Lists the nodes on `out`, in lines that fit the terminal if possible. Malformed annotations are listed below
/// the table. With `--require-fresh`, it fails then unless all scores are fresh. With `--watch`, each node that
/// changes is printed after it, until `out` is closed.
pub async fn nodes(
    api: &ApiClient,
    prefix: &Prefix,
    flags: &NodesFlags,
    now: impl Fn() -> Timestamp,
    out: &mut impl Write,
) -> anyhow::Result<()> {
    let row = |node: &NodeMetadata| Row::new(prefix, node, now(), flags.stale.stale_after);
    let selector = flags.selector.as_deref().unwrap_or_default();
    let nodes = api.list_nodes(prefix, selector).await?;
    let mut rows: Vec<Row> = nodes.iter().map(|node| row(&node.metadata)).collect();
    sort(&mut rows, flags.sort_by);
    let is_wide = flags.output == Some(NodesOutput::Wide);
    let (columns, width) = (columns(is_wide), terminal_width().filter(|_| !is_wide));
    let text = match flags.output {
        Some(NodesOutput::Name) => rows.iter().map(Row::line_of_name).collect(),
        Some(NodesOutput::Json) => format!("{:#}\n", json!({ "items": rows })),
        Some(NodesOutput::Wide) | None => table(&rows, columns, width),
    };
    print(text, out).context("cannot write the nodes")?;
    if flags.require_fresh {
        require_fresh(&rows)?;
    }
    if !flags.watch {
        return Ok(());
    }
    let mut events = pin!(api.watch_nodes(prefix, selector));
    while let Some(event) = events.next().await {
        let changed = match event {
            WatchEvent::Listed(nodes) => {
                rows.retain(|row| nodes.iter().any(|node| node.name == row.name));
                nodes
            }
            WatchEvent::Changed(node) => vec![node],
            WatchEvent::Deleted(node) => {
                rows.retain(|row| row.name != node.name);
                continue;
            }
            WatchEvent::Following => continue,
            WatchEvent::Skipped(reason) => {
                writeln!(stderr(), "cannot decode a node: {reason}")?;
                continue;
            }
            WatchEvent::Failed(error) => {
                writeln!(stderr(), "cannot watch the nodes: {error}; retrying")?;
                continue;
            }
        };
        for node in changed {
            let Some(at) = table::update(&mut rows, row(&node)) else { continue };
            let text = match flags.output {
                Some(NodesOutput::Name) => rows.get(at).map(Row::line_of_name),
                Some(NodesOutput::Json) => rows.get(at).map(|row| format!("{:#}\n", json!(row))),
                Some(NodesOutput::Wide) | None => {
                    // As wide as the table of all.
                    let lines = lines(&rows, columns, width);
                    lines.lines().nth(at + 1).map(|line| format!("{line}\n"))
                }
            };
            match out.write_all(text.unwrap_or_default().as_bytes()).and_then(|()| out.flush()) {
                Err(error) if error.kind() == ErrorKind::BrokenPipe => return Ok(()),
                written => written.context("cannot write the nodes")?,
            }
        }
    }
    Ok(())
}

/// Columns of the terminal on stdout; `None` if stdout is not a terminal.
fn terminal_width() -> Option<usize> {
    let size = stdout().is_terminal().then(crossterm::terminal::size)?.ok();
    // A terminal of unknown size reports 0.
    size.map(|(columns, _)| usize::from(columns)).filter(|columns| *columns > 0)
}
