//! `psi-agent top`: the node and what it scores by contention, from a running agent, or, without one, from
//! readings of the kernel by this process.

mod client;
mod source;

use std::io::{IsTerminal, stdout};

use crate::client::cluster::block_on;
use crate::client::top::{FETCH_INTERVAL, show};
use crate::config::TopConfig;
use crate::sampler::TICK_INTERVAL;
use source::AgentOrKernel;

/// Shows the node until the user quits; prints one table if stdout is not a terminal.
pub fn top(config: &TopConfig) -> anyhow::Result<()> {
    let read_every = if stdout().is_terminal() { TICK_INTERVAL } else { FETCH_INTERVAL };
    let mut source = AgentOrKernel::new(config, read_every);
    block_on(show(config.color.color, async || source.next().await))
}
