//! Tables of outcomes, and whether the goals hold.

use std::fmt::Write;

use crate::arm::Arm;
use crate::judge::{Move, Outcome};

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

    fn late_percent(&self) -> f64 {
        100.0 * self.mean(|one| one.late_hours / one.demand_hours)
    }

    /// The share of the judged moves that hurt; 0 without moves.
    fn hurt(&self) -> f64 {
        let sum = |of: fn(&Outcome) -> f64| self.outcomes.iter().map(of).sum::<f64>();
        sum(|one| one.hurt) / sum(|one| one.judged).max(1.0)
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
            format!("{:.2} %", self.late_percent()),
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

/// A row of CSV for each rebalancer and seed.
pub fn csv_of_seeds(rows: &[Row]) -> String {
    let mut out = "seed,rebalancer,work lost,moves per VM and day\n".to_owned();
    let seeds = rows.iter().map(|row| row.outcomes.len()).max().unwrap_or(0);
    for (seed, row) in (0..seeds).flat_map(|seed| rows.iter().map(move |row| (seed, row))) {
        if let Some(outcome) = row.outcomes.get(seed) {
            let one = Row { arm: row.arm, outcomes: vec![outcome.clone()] };
            let (lost, moves) = (one.lost_percent(), one.moves_a_day());
            let _ = writeln!(out, "{},\"{}\",{lost:.2} %,{moves:.3}", seed + 1, row.arm.title());
        }
    }
    out
}

/// A row of CSV for each move, with what all VMs of both nodes waited for: means of the compared minutes, if there were
/// any.
pub fn csv_of_moves(rows: &[Row]) -> String {
    let mut out =
        "seed,rebalancer,vm,from,to,started s,ended s,minutes compared,CPUs waited for,CPUs \
                   waited for if it had stayed\n"
            .to_owned();
    for row in rows {
        for (seed, outcome) in row.outcomes.iter().enumerate() {
            for one in &outcome.each_move {
                let Move { vm, source, target, started_s, ended_s, effect } = one;
                let mean = |sum: f64| match effect.minutes {
                    0 => String::new(),
                    minutes => format!("{:.3}", sum / minutes as f64),
                };
                let (moved, stayed) = (mean(effect.moved), mean(effect.stayed));
                let _ = writeln!(
                    out,
                    "{},\"{}\",{vm},{source},{target},{started_s},{ended_s},{},{moved},{stayed}",
                    seed + 1,
                    row.arm.title(),
                    effect.minutes,
                );
            }
        }
    }
    out
}

/// What a scenario is to show.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Goal {
    Contended,
    Calm,
    ThrottledAlone,
}

/// Each goal with whether it holds: of the descheduler that evicts only the VM to move first, with VMs that
/// prefer headroom, and of the planner.
pub fn goals(goal: Goal, rows: &[Row]) -> Vec<(String, bool)> {
    let own = rows.iter().filter(|row| matches!(row.arm, Arm::Headroom | Arm::Planner));
    own.flat_map(|own| goals_of(own, goal, rows)).collect()
}

fn goals_of(own: &Row, goal: Goal, rows: &[Row]) -> Vec<(String, bool)> {
    let is_planner = own.arm == Arm::Planner;
    let mut bounds = vec![("VMs that move twice within 6 h", own.mean(|one| one.moved_again), 0.0)];
    let most_moves = match goal {
        Goal::ThrottledAlone => 0.0,
        Goal::Calm if is_planner => 0.02,
        Goal::Calm => 0.05,
        Goal::Contended => {
            let lost = |arm: Arm| rows.iter().find(|row| row.arm == arm).map(Row::lost_percent);
            let others = rows.iter().filter(|row| row.arm != own.arm);
            let others = others.filter(|row| is_planner || !row.arm.has_agents());
            let best = others.map(Row::lost_percent).fold(f64::INFINITY, f64::min);
            bounds.push(("% work lost, as of the best other", own.lost_percent(), best));
            let is_large = own.mean(|one| one.vms) > 1000.0;
            let most = if is_planner && !is_large { 0.55 } else { 0.6 };
            let share = lost(Arm::Nothing).map(|nothing| own.lost_percent() / nothing);
            bounds.extend(share.map(|share| ("of what nothing loses", share, most)));
            if is_planner {
                bounds.push(("of the moves hurt", own.hurt(), 0.08));
                let late = rows.iter().find(|row| row.arm == Arm::Candidate).map(Row::late_percent);
                let what = "% not caught up in 5 min, as of psi-agent, candidate";
                bounds.extend(late.map(|late| (what, own.late_percent(), late)));
                if is_large { 0.8 } else { 0.4 }
            } else {
                let openshift = rows.iter().find(|row| row.arm == Arm::Openshift);
                openshift.map_or(f64::INFINITY, |row| row.moves_a_day() / 3.0)
            }
        }
    };
    bounds.push(("moves per VM and day", own.moves_a_day(), most_moves));
    let goal = |(what, value, most): (&str, f64, f64)| {
        (format!("{}: at most {most:.3} {what} ({value:.3})", own.arm.title()), value <= most)
    };
    bounds.into_iter().map(goal).collect()
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
    use crate::judge::Effect;

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
        let rows = |own, lost, moves| {
            vec![
                row(Arm::Nothing, 10.0, 0.0),
                row(Arm::Openshift, 6.0, 9.0),
                row(Arm::Candidate, 5.8, 1.0),
                row(own, lost, moves),
            ]
        };
        let missed = |goal, own, lost, moves| -> Vec<String> {
            let all = goals(goal, &rows(own, lost, moves)).into_iter();
            all.filter(|(_, holds)| !holds).map(|(text, _)| text).collect()
        };
        let of_headroom = |lost, moves| missed(Goal::Contended, Arm::Headroom, lost, moves);
        assert_eq!(of_headroom(6.0, 3.0), Vec::<String>::new());
        assert_eq!(
            of_headroom(6.1, 4.0),
            [
                "at most 6.000 % work lost, as of the best other (6.100)",
                "at most 0.600 of what nothing loses (0.610)",
                "at most 0.300 moves per VM and day (0.400)"
            ]
            .map(|goal| format!("psi-agent, candidate, headroom: {goal}"))
        );
        let of_planner = |lost, moves| missed(Goal::Contended, Arm::Planner, lost, moves);
        assert_eq!(
            of_planner(5.5, 4.0),
            ["psi-agent, planner: at most 0.080 of the moves hurt (0.250)"]
        );
        assert_eq!(of_planner(5.9, 4.1).len(), 5);
        assert_eq!(missed(Goal::Calm, Arm::Planner, 6.0, 0.2).len(), 0);
        assert_eq!(missed(Goal::Calm, Arm::Planner, 6.0, 0.3).len(), 1);
        assert_eq!(missed(Goal::ThrottledAlone, Arm::Headroom, 6.0, 0.1).len(), 1);
        assert_eq!(missed(Goal::ThrottledAlone, Arm::Headroom, 6.0, 0.0).len(), 0);
    }

    #[test]
    fn each_move_has_a_row_with_what_it_changed() {
        let effect = Effect { minutes: 10, moved: 5.0, stayed: 20.0 };
        let one = Move { vm: 7, source: 0, target: 2, started_s: 120, ended_s: 150, effect };
        let each_move = vec![one, Move { effect: Effect::default(), ..one }];
        let outcomes = vec![Outcome::default(), Outcome { each_move, ..Outcome::default() }];
        let text = csv_of_moves(&[Row { arm: Arm::Planner, outcomes }]);
        let rows: Vec<&str> = text.lines().skip(1).collect();
        let expected = ["10,0.500,2.000", "0,,"]
            .map(|effect| format!("2,\"psi-agent, planner\",7,0,2,120,150,{effect}"));
        assert_eq!(rows, expected);
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
