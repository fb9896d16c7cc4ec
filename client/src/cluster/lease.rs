//! Reads, takes and writes the Lease of the planner.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease as Object;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::api::{GetParams, PostParams, Request};

use super::call::{CallError, call, unreachable};
use super::client::ApiClient;

/// Its name, in each namespace.
pub const LEASE: &str = "psi-agent-planner";

/// A Lease as it was read. It is written only if no other client has changed it since.
pub struct Lease {
    namespace: String,
    object: Object,
}

impl ApiClient {
    /// The Lease [`LEASE`] of a namespace.
    pub async fn lease(&self, namespace: &str) -> Result<Lease, CallError> {
        let request = Request::new(path(namespace)).get(LEASE, &GetParams::default());
        let object = call(&self.client, request).await?;
        Ok(Lease { namespace: namespace.into(), object })
    }

    pub async fn write_lease(&self, lease: &mut Lease) -> Result<(), CallError> {
        let body = serde_json::to_vec(&lease.object).map_err(unreachable)?;
        let path = path(&lease.namespace);
        let request = Request::new(path).replace(LEASE, &PostParams::default(), body);
        lease.object = call(&self.client, request).await?;
        Ok(())
    }
}

impl Lease {
    pub fn annotation(&self, key: &str) -> Option<&str> {
        self.object.metadata.annotations.as_ref()?.get(key).map(String::as_str)
    }

    pub fn annotate(&mut self, key: String, value: String) {
        self.object.metadata.annotations.get_or_insert_default().insert(key, value);
    }

    /// Becomes or stays its holder. Fails with the name of another process that holds it.
    pub fn take(&mut self, holder: &str, duration: Duration, now: Timestamp) -> Result<(), String> {
        let spec = self.object.spec.get_or_insert_default();
        if spec.holder_identity.as_deref() != Some(holder) {
            let seconds = i64::from(spec.lease_duration_seconds.unwrap_or_default());
            let renewed = spec.renew_time.as_ref().map(|MicroTime(time)| time.as_second());
            // A date further ahead is of a wrong clock, and would hold it for as long.
            let age = |renewed: i64| now.as_second().saturating_sub(renewed);
            let is_held = renewed.is_some_and(|renewed| age(renewed).abs() < seconds);
            if let Some(other) = spec.holder_identity.as_ref().filter(|_| is_held) {
                return Err(other.clone());
            }
            spec.lease_transitions = Some(spec.lease_transitions.unwrap_or_default() + 1);
            spec.acquire_time = Some(MicroTime(now));
            spec.holder_identity = Some(holder.into());
        }
        spec.renew_time = Some(MicroTime(now));
        spec.lease_duration_seconds = i32::try_from(duration.as_secs()).ok();
        Ok(())
    }
}

fn path(namespace: &str) -> String {
    format!("/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_has_one_holder_until_its_time_is_over() {
        let mut lease = Lease { namespace: "n".into(), object: Object::default() };
        let at = |second| Timestamp::from_second(second).unwrap();
        let mut take =
            |holder: &str, second| lease.take(holder, Duration::from_secs(60), at(second));
        assert_eq!(take("a", 0), Ok(()), "it is free");
        assert_eq!(take("a", 50), Ok(()));
        assert_eq!(take("b", 109), Err("a".into()), "renewed at 50");
        assert_eq!(take("b", 110), Ok(()));
        assert_eq!(take("a", 110), Err("b".into()));
        assert_eq!(take("b", 100_000), Ok(()));
        assert_eq!(take("a", 99_941), Err("b".into()), "its clock is ahead");
        assert_eq!(take("a", 200), Ok(()), "its clock was wrong");
        let spec = lease.object.spec.unwrap();
        assert_eq!(
            (spec.lease_transitions, spec.acquire_time),
            (Some(3), Some(MicroTime(at(200))))
        );
    }
}
