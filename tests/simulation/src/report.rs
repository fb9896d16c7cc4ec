//! Tables of outcomes, and whether the goals hold.

use std::fmt::Write;

use crate::arm::Arm;
use crate::judge::Outcome;

/// The outcomes of a rebalancer, one for each seed.
#[derive(Debug, Clone)]
pub struct Row {
    pub arm: Arm,
    pub outcomes: Vec<Outcome>,
}

impl Row {
    fn mean(&self, of: impl Fn(&Outcome) -> f64) -> f64 {
        self.outcomes.iter().map(of).sum::<f64>() / self.outcomes.len() as f64
    }

    pub fn lost_percent(&self) -> f64 {
        100.0 * self.mean(|one| one.lost_hours / one.demand_hours)
    }

    /// Standard deviation over the seeds of the work lost, in percent.
    fn lost_deviation(&self) -> f64 {
        let mean = self.lost_percent();
        let square = |one: &Outcome| (100.0 * one.lost_hours / one.demand_hours - mean).powi(2);
        self.mean(square).sqrt()
    }

    pub fn moves_a_day(&self) -> f64 {
        self.mean(|one| one.moves / one.vms / one.days)
    }

    fn share_of_judged(&self, of: impl Fn(&Outcome) -> f64) -> String {
        let judged: f64 = self.outcomes.iter().map(|one| one.judged).sum();
        let counted: f64 = self.outcomes.iter().map(of).sum();
        if judged > 0.0 { format!("{:.0} %", 100.0 * counted / judged) } else { "–".to_owned() }
    }

    fn cells(&self) -> Vec<String> {
        let ages: Vec<f64> = self.outcomes.iter().filter_map(|one| one.age_s).collect();
        let age = match ages.len() {
            0 => "–".to_owned(),
            count => format!("{:.0}", ages.iter().sum::<f64>() / count as f64),
        };
        vec![
            self.arm.title().to_owned(),
            format!("{:.0}", self.mean(|one| one.contended_hours / one.days)),
            format!("{:.1} %", 100.0 * self.mean(|one| one.p99_wait)),
            format!("{:.2} ± {:.2} %", self.lost_percent(), self.lost_deviation()),
            format!("{:.2} %", 100.0 * self.mean(|one| one.late_hours / one.demand_hours)),
            format!("{:.3}", self.moves_a_day()),
            self.share_of_judged(|one| one.helped),
            self.share_of_judged(|one| one.hurt),
            format!("{:.1}", self.mean(|one| one.moved_again)),
            format!("{:.2}", self.mean(|one| one.writes_per_s)),
            format!("{:.0}", self.mean(|one| one.p99_writes)),
            age,
        ]
    }
}

const COLUMNS: [&str; 12] = [
    "rebalancer",
    "contended VM hours a day",
    "p99 CPU wait",
    "work lost",
    "not caught up in 5 min",
    "moves per VM and day",
    "moves that helped",
    "moves that hurt",
    "VMs moved twice in 6 h",
    "writes/s",
    "p99",
    "age of values, s",
];

pub fn table(rows: &[Row]) -> String {
    let mut out =
        format!("| {} |\n|---|{}\n", COLUMNS.join(" | "), "---:|".repeat(COLUMNS.len() - 1));
    for row in rows {
        let _ = writeln!(out, "| {} |", row.cells().join(" | "));
    }
    out
}

/// The same table as CSV. Cells with a comma are in quotes.
pub fn csv(rows: &[Row]) -> String {
    let header = COLUMNS.map(str::to_owned).to_vec();
    let lines = std::iter::once(header).chain(rows.iter().map(Row::cells)).map(|cells| {
        let quoted = |cell: &String| match cell.contains(',') {
            true => format!("\"{cell}\""),
            false => cell.clone(),
        };
        cells.iter().map(quoted).collect::<Vec<_>>().join(",") + "\n"
    });
    lines.collect()
}

/// What a scenario is to show.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Goal {
    Contended,
    Calm,
    ThrottledAlone,
}

/// Each goal with whether it holds, for the descheduler that evicts only the VM to move first, with VMs that
/// prefer headroom.
pub fn goals(goal: Goal, rows: &[Row]) -> Vec<(String, bool)> {
    let find = |arm: Arm| rows.iter().find(|row| row.arm == arm);
    let (Some(own), Some(nothing), Some(openshift)) =
        (find(Arm::Headroom), find(Arm::Nothing), find(Arm::Openshift))
    else {
        return Vec::new();
    };
    let moved_again = own.mean(|one| one.moved_again);
    let mut all = match goal {
        Goal::Contended => {
            let others = rows.iter().filter(|row| !row.arm.has_agents());
            let best = others.map(Row::lost_percent).fold(f64::INFINITY, f64::min);
            let saved = 100.0 * (1.0 - own.lost_percent() / nothing.lost_percent());
            let moves = own.moves_a_day() / openshift.moves_a_day();
            vec![
                (format!("work lost is at least 40 % below nothing ({saved:.0} %)"), saved >= 40.0),
                (
                    format!(
                        "and no worse than the best other ({:.2} % to {best:.2} %)",
                        own.lost_percent()
                    ),
                    own.lost_percent() <= best,
                ),
                (
                    format!("with at most a third of OpenShift's moves ({moves:.2})"),
                    moves <= 1.0 / 3.0,
                ),
            ]
        }
        Goal::Calm => vec![(
            format!("at most 0.05 moves per VM and day ({:.3})", own.moves_a_day()),
            own.moves_a_day() <= 0.05,
        )],
        Goal::ThrottledAlone => {
            vec![(format!("no moves ({:.3})", own.moves_a_day()), own.moves_a_day() == 0.0)]
        }
    };
    all.push((format!("no VM moves twice within 6 h ({moved_again:.1})"), moved_again == 0.0));
    all
}

pub fn goals_text(goal: Goal, rows: &[Row]) -> String {
    let mut out = String::new();
    for (text, holds) in goals(goal, rows) {
        let _ = writeln!(out, "- {}: {text}", if holds { "holds" } else { "**does not hold**" });
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(arm: Arm, lost_hours: f64, moves: f64) -> Row {
        let one = Outcome {
            vms: 10.0,
            days: 1.0,
            demand_hours: 100.0,
            lost_hours,
            late_hours: lost_hours / 2.0,
            moves,
            judged: moves,
            hurt: moves / 4.0,
            ..Outcome::default()
        };
        Row { arm, outcomes: vec![one; 2] }
    }

    #[test]
    fn goals_compare_with_nothing_and_with_the_best_other() {
        let rows = |lost, moves| {
            vec![
                row(Arm::Nothing, 10.0, 0.0),
                row(Arm::Openshift, 6.0, 9.0),
                row(Arm::Score, 1.0, 1.0),
                row(Arm::Headroom, lost, moves),
            ]
        };
        let holds = |lost, moves| -> Vec<bool> {
            goals(Goal::Contended, &rows(lost, moves)).into_iter().map(|goal| goal.1).collect()
        };
        assert_eq!(holds(6.0, 3.0), [true; 4]);
        assert_eq!(holds(6.1, 4.0), [false, false, false, true]);
        assert!(!goals(Goal::Calm, &rows(6.0, 1.0))[0].1);
        assert!(goals(Goal::ThrottledAlone, &rows(6.0, 0.0))[0].1);
    }

    #[test]
    fn the_table_has_a_row_for_each_rebalancer() {
        let text = table(&[row(Arm::Nothing, 10.0, 0.0), row(Arm::Openshift, 6.0, 8.0)]);
        assert!(
            text.contains("| nothing | 0 | 0.0 % | 10.00 ± 0.00 % | 5.00 % | 0.000 | – | – |"),
            "{text}"
        );
        assert!(
            text.contains(
                "| OpenShift | 0 | 0.0 % | 6.00 ± 0.00 % | 3.00 % | 0.800 | 0 % | 25 % |"
            )
        );
    }
}
