//! Who may look: which path is for whom (pure), whose token the API server vouches for, and the
//! certificate that connections are encrypted with.

pub mod certificate;
pub mod gate;
pub mod rules;
pub mod verdicts;
