//! Whose shortage of memory a container's pages were reclaimed for, for the meters of memory and I/O
//! wait. Pure.

use super::readings::Readings;
use super::series::Ratio;

/// Share of the container's reclaimed pages that were reclaimed because of the node and not of a
/// limit. `None` if it is unknown, as in the first window in which its own limit was hit.
pub(super) fn reclaimed_by_node(readings: &Readings) -> Option<f64> {
    if readings.memory.own_limit()? { scanned_for_node(readings) } else { Some(1.0) }
}

/// Share of its pages scanned by reclaim that kswapd scanned. It runs only because of the node.
fn scanned_for_node(readings: &Readings) -> Option<f64> {
    let scanned = &readings.memory.scanned;
    let by_kswapd = scanned.increase(|pages| Some(pages.by_kswapd))?;
    let directly = scanned.increase(|pages| Some(pages.directly))?;
    Ratio::of(by_kswapd, (by_kswapd + directly).max(1.0)).map(Ratio::get)
}
