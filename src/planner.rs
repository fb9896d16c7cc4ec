//! `psi-agent planner` runs once in a cluster: it plans moves of VMs again and again, creates their
//! migrations if that is wanted, and serves its own metrics.

use std::net::IpAddr;
use std::sync::Arc;

use anyhow::anyhow;
use hyper::StatusCode;
use tokio::time::{MissedTickBehavior, interval, timeout};

use crate::client::cluster::block_on;
use crate::client::plan::planner::{Planner, TIME_LIMIT};
use crate::clock;
use crate::config::PlannerConfig;
use crate::own_metrics::planner::PlannerMetrics;
use crate::serve::authorization::{LIVEZ, METRICS, READYZ};
use crate::serve::body::{EXPOSITION, Request, Response, text, whole};
use crate::serve::connections::{Server, Service, serve_until_stopped};

/// Runs until SIGTERM or SIGINT.
pub fn planner(config: &PlannerConfig) -> anyhow::Result<()> {
    block_on(serve_until_stopped(async {
        let PlannerConfig { listen, api, flags, .. } = config;
        let prefix = api.prefix.clone();
        let planner = Planner { api: api.connect().await?, prefix, flags: flags.clone() };
        let server = Server::listen(listen.listen_address, None, None)?;
        let (apply, interval) = (flags.apply, flags.interval);
        tracing::info!(apply, ?interval, "Planning; serving {}", server.url);
        let metrics = Arc::new(PlannerMetrics::default());
        Ok((server, Arc::clone(&metrics), plan_on(planner, metrics)))
    }))
}

/// Never returns.
async fn plan_on(planner: Planner, metrics: Arc<PlannerMetrics>) -> anyhow::Result<()> {
    let mut rounds = interval(planner.flags.interval);
    rounds.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        rounds.tick().await;
        let on_done = |done, what: String| metrics.done(done, &what);
        let round = planner.round(|| clock::now().timestamp(), on_done);
        let too_long = |_| Err(anyhow!("it took longer than {} s", TIME_LIMIT.as_secs()));
        metrics.ended(timeout(TIME_LIMIT, round).await.unwrap_or_else(too_long));
    }
}

impl Service for PlannerMetrics {
    async fn respond(&self, request: Request, _: IpAddr) -> Response {
        match request.uri().path() {
            METRICS => whole(StatusCode::OK, EXPOSITION, self.render().into()),
            LIVEZ | READYZ => text(StatusCode::OK, "ok\n"),
            _ => text(StatusCode::NOT_FOUND, "Not found. Try /metrics.\n"),
        }
    }
}
