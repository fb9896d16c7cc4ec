//! The HTTP server that the agent and the bridge share: connections and their limits, TLS, bearer
//! tokens, and response bodies.

pub mod authentication;
pub mod authorization;
pub mod body;
pub mod compression;
pub mod connections;
mod places;
pub mod tls;
pub mod token_cache;
