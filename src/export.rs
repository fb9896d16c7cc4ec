//! What leaves the agent: Prometheus' words, people's page, HTTP. In: samples and rates.

pub mod exposition;
pub mod families;
pub mod http;
mod page;
pub mod score_series;
pub mod scrape;
pub mod series;
