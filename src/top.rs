//! `psi-agent top`: the node and what it scores by contention, from a running agent, or, without one, from
//! readings of the kernel by this process.

mod client;
mod source;

use std::io::{IsTerminal, stdout};

use anyhow::bail;

use crate::client::cluster::block_on;
use crate::client::top::{Described, FETCH_INTERVAL, show};
use crate::config::TopConfig;
use crate::sampler::TICK_INTERVAL;
use client::{fetch, is_own, reachable};
use source::OwnReading;

/// Shows the node until the user quits; prints one table if stdout is not a terminal. The source is the agent at the
/// configured address or, if that is an address of this host that serves no snapshot, own readings.
pub fn top(config: &TopConfig) -> anyhow::Result<()> {
    let read_every = if stdout().is_terminal() { TICK_INTERVAL } else { FETCH_INTERVAL };
    let (agent, mut own) = (reachable(config.listen.listen_address), None);
    let next = async || -> anyhow::Result<Described> {
        let reason = match fetch(agent).await {
            Ok(snapshot) => {
                own = None;
                return Ok((format!("agent {} at {agent}", snapshot.version), snapshot));
            }
            Err(reason) if is_own(agent) => reason,
            Err(error) => bail!("{error:#}: run top on that host, or `kubectl psi top NODE`"),
        };
        let own = match &mut own {
            Some(own) => own,
            none => none.insert(OwnReading::start(config, read_every).await?),
        };
        Ok((format!("read from the kernel: {reason:#}"), own.next().await?))
    };
    block_on(show(config.color.color, next))
}
