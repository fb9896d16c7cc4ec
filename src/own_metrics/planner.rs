//! The planner's own metrics, and its log.

use std::iter::once;

use parking_lot::Mutex;
use strum::VariantNames;

use super::process::write_process;
use super::results::Results;
use crate::client::plan::planner::{Done, Round};
use crate::text_format::Number::Whole;
use crate::text_format::{FamiliesOf, families, write_families};

#[derive(Debug)]
pub struct PlannerMetrics(Mutex<State>);

#[derive(Debug)]
struct State {
    rounds: Results,
    moves: Results,
    /// The latest round that did not fail.
    latest: Option<Round>,
}

static PLANNER: &FamiliesOf<State> = families! {
    "psi_agent_planner_stopped" = |it, lines| {
            let known = it.latest.as_ref().filter(|round| !matches!(round, Round::Standby(_)));
            let stopped = known.map(|round| matches!(round, Round::Stopped(_)));
            lines.write(&[], stopped.map(|stopped| Whole(stopped.into())));
        },
        "State of the planner: 1 if it has stopped, else 0.";
    "psi_agent_planner_rounds_total" = |it, lines| it.rounds.write(lines),
        "Rounds of the planner, by result.";
    "psi_agent_planner_moves_total" = |it, lines| it.moves.write(lines),
        "Moves of the planner, by what was done.";
};

impl Default for PlannerMetrics {
    fn default() -> Self {
        let rounds = Results::from_start(&["planned", "held", "standby", "failed"]);
        let moves = Results::from_start(Done::VARIANTS);
        Self(Mutex::new(State { rounds, moves, latest: None }))
    }
}

impl PlannerMetrics {
    /// Records what was done about a move.
    pub fn done(&self, done: Done, what: &str) {
        let result = done.into_str();
        self.0.lock().moves.count(result);
        match done {
            Done::Proposed | Done::Created => tracing::info!("Move {result}: {what}"),
            Done::Refused | Done::Cancelled => tracing::warn!("Move {result}: {what}"),
        }
    }

    /// Records the end of a round. What is as in the round before is not logged again.
    pub fn ended(&self, round: anyhow::Result<Round>) {
        let mut state = self.0.lock();
        let round = match round {
            Ok(round) => round,
            Err(error) => {
                return state.rounds.failed("failed", &format!("{error:#}"), "A round failed");
            }
        };
        state.rounds.succeeded("Planning again");
        state.rounds.count(round.into_str());
        if state.latest.as_ref() != Some(&round) {
            match &round {
                Round::Standby(holder) => {
                    tracing::info!(%holder, "Another process holds the Lease")
                }
                Round::Planned(None) => {}
                Round::Planned(Some(reason)) | Round::Held(reason) => {
                    tracing::info!("No moves: {reason}")
                }
                Round::Stopped(reason) => tracing::error!(
                    "The planner creates no more migrations: {reason}; find the cause, then run \
                     `psi-agent plan --resume`"
                ),
            }
        }
        state.latest = Some(round);
    }

    /// The metrics in the text format.
    pub fn render(&self) -> Vec<u8> {
        let mut chunks = Vec::new();
        write_process(&mut chunks);
        write_families(&mut chunks, PLANNER, once(&*self.0.lock()));
        chunks.concat()
    }
}
