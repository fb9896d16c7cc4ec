//! Metrics text, page, snapshot and probes over HTTP.

pub mod exposition;
pub mod families;
pub mod http;
pub mod score_series;
pub mod series;
