//! How many CPUs a node lacks on average, from the mean demand of 30 min.

/// Spread of a node's demand around its mean, as a share of its CPUs: the scale of a logistic
/// distribution, whose standard deviation is 1.81 times as large, 15 % of the CPUs. It is chosen. With .05
/// and .12, simulated clusters of 300 VMs lose .17 points more and .04 less work (three seeds), by fewer
/// and more moves.
const SPREAD: f64 = 0.083;

/// CPUs that a node with so many CPUs lacks more on average because of a VM that demands `of_vm`, if all else
/// demands `others`.
pub(crate) fn waiting_through(of_vm: f64, others: f64, cpus: f64) -> f64 {
    expected_waiting(others + of_vm, cpus) - expected_waiting(others, cpus)
}

/// CPUs that a node with so many CPUs lacks on average, if its mean demand is `demand`. Demand varies,
/// so a node can lack some even if it has more than it needs on average.
fn expected_waiting(demand: f64, cpus: f64) -> f64 {
    let scale = SPREAD * cpus;
    if scale <= 0.0 {
        return demand.max(0.0);
    }
    // The mean of the part above `cpus`. For large arguments ln(1 + e^x) is x.
    let excess = (demand - cpus) / scale;
    if excess > 30.0 { demand - cpus } else { scale * excess.exp().ln_1p() }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// VMs that arrived in the lab: see docs/lab.md.
    const ARRIVALS: &str = include_str!("../../docs/lab/arrivals-6.12.csv");

    #[test]
    fn vms_that_arrived_in_the_lab_added_the_expected_waiting() {
        let errors: Vec<f64> = ARRIVALS
            .lines()
            .skip(1)
            .map(|row| {
                let columns: Vec<f64> =
                    row.split(',').skip(2).map(|column| column.parse().unwrap()).collect();
                let [cpus, of_vms, of_others, waiting, of_vm, waited] = columns[..] else {
                    panic!("{row}")
                };
                let expected = waiting + waiting_through(of_vm, of_vms + of_others, cpus);
                expected / (of_vms + of_vm) - waited
            })
            .collect();
        let mean = |errors: Vec<f64>| errors.iter().sum::<f64>() / errors.len() as f64;
        assert!(mean(errors.iter().map(|error| error.abs()).collect()) < 0.05);
        assert!(mean(errors).abs() < 0.03);
    }

    #[test]
    fn a_full_node_waits_and_an_overloaded_one_lacks_what_is_too_much() {
        let near = |value: f64, expected: f64| (value - expected).abs() < 0.01;
        assert!(near(expected_waiting(0.0, 32.0), 0.0));
        assert!(near(expected_waiting(16.0, 32.0), 0.0064));
        assert!(near(expected_waiting(32.0, 32.0), 32.0 * SPREAD * 2_f64.ln()));
        assert!(near(expected_waiting(96.0, 32.0), 64.0));
        assert_eq!(expected_waiting(3.0, 0.0), 3.0);
    }
}
