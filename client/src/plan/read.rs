//! Reads the cluster that a plan is made for.

use psi_agent_plan::cluster::Cluster;

use super::objects;
use crate::cluster::{ApiClient, Listed};
use crate::contract::Prefix;

pub(super) async fn read(api: &ApiClient, prefix: &Prefix) -> anyhow::Result<Cluster> {
    Ok(Cluster {
        prefix: prefix.clone(),
        // First: a migration that ends during the reads still counts as active.
        migrations: api.list_all(Listed::Migrations, |one| objects::migration(one, prefix)).await?,
        vms: api.list_all(Listed::Vms, objects::vm).await?,
        nodes: api.list_all(Listed::Nodes, |one| objects::node(one, prefix)).await?,
        pods: api.list_all(Listed::Pods, objects::pod).await?,
        ..Cluster::default()
    })
}
