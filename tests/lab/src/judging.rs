//! What judging a table gives, and on which side of a threshold a score must be. Pure.

/// A kind of scenarios, judged: a row of CSV for each, a summary of all, and what fails.
pub struct Verdict {
    pub rows: String,
    pub summary: String,
    pub failures: Vec<String>,
}

/// The thresholds: levels switch at the first and last.
pub const THRESHOLDS: [f64; 3] = [0.10, 0.20, 0.30];

/// Truth that is nearer than this to a threshold allows both sides: of CPU, and of memory and I/O, whose
/// truth compares two minutes in real time.
pub const TOLERANCE: f64 = 0.05;
pub const TOLERANCE_IN_REAL_TIME: f64 = 0.10;

/// For each threshold, whether the score is on its wrong side: truth is farther from it than the
/// tolerance, and the score is beyond it.
pub fn wrong_sides(truth: f64, score: f64, tolerance: f64) -> [bool; 3] {
    // What is exactly at the tolerance counts as farther, however it was rounded.
    let rounding = 1e-9;
    THRESHOLDS.map(|threshold| {
        // Else no truth would be far enough below the first threshold.
        let tolerance = tolerance.min(threshold / 2.0);
        if score < threshold {
            truth >= threshold + tolerance - rounding
        } else {
            truth < threshold - tolerance - rounding
        }
    })
}

/// The thresholds on whose wrong side a score is, such as ` ✗.10 ✗.20`; empty where there are none.
pub fn marks(wrong: [bool; 3]) -> String {
    let wrong = THRESHOLDS.iter().zip(wrong).filter(|(_, wrong)| *wrong);
    wrong.map(|(threshold, _)| format!(" ✗.{:.0}", threshold * 100.0)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wrong(truth: f64, score: f64) -> String {
        marks(wrong_sides(truth, score, TOLERANCE))
    }

    #[test]
    fn truth_beyond_a_threshold_needs_a_score_on_the_same_side() {
        assert_eq!(wrong(0.15, 0.099), " ✗.10");
        assert_eq!(wrong(0.29, 0.05), " ✗.10 ✗.20");
        assert_eq!(wrong(0.35, 0.0), " ✗.10 ✗.20 ✗.30");
        assert_eq!(wrong(0.04, 0.10), " ✗.10");
        assert_eq!(wrong(0.0, 0.5), " ✗.10 ✗.20 ✗.30");
        assert_eq!(wrong(0.24, 0.30), " ✗.30");
    }

    #[test]
    fn truth_within_the_tolerance_of_a_threshold_allows_both_sides() {
        for (truth, score) in [(0.14, 0.099), (0.05, 0.19), (0.26, 0.35), (0.34, 0.20), (0.9, 0.3)]
        {
            assert_eq!(wrong(truth, score), "", "{truth} {score}");
        }
        let in_real_time = |truth, score| marks(wrong_sides(truth, score, TOLERANCE_IN_REAL_TIME));
        assert_eq!(
            (in_real_time(0.12, 0.25), in_real_time(0.05, 0.15)),
            (String::new(), String::new())
        );
        assert_eq!((&*in_real_time(0.04, 0.15), &*in_real_time(0.16, 0.05)), (" ✗.10", " ✗.10"));
    }
}
