//! A picture of work lost and moves: a bar for each rebalancer.

use std::fmt::Write;

use crate::report::Row;

const ROW: f64 = 22.0;
const TOP: f64 = 46.0;
const NAMES: f64 = 210.0;
const BAR: f64 = 200.0;
const GAP: f64 = 80.0;

const STYLE: &str = "svg{background:#fff;color:#222}text{font:12px sans-serif;fill:currentColor}
.title{font-weight:bold}.agents{fill:#0b6e4f}.others{fill:#8a94a0}
@media(prefers-color-scheme:dark){svg{background:#0d1117;color:#ddd}.agents{fill:#2f9e78}}";

pub fn svg(title: &str, rows: &[Row]) -> String {
    let height = TOP + ROW * rows.len() as f64 + 10.0;
    let width = NAMES + 2.0 * (BAR + GAP);
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" \
         width=\"{width}\" role=\"img\" aria-label=\"{title}\">\n\
         <style>{STYLE}</style>\n\
         <text class=\"title\" x=\"8\" y=\"16\">{title}</text>\n"
    );
    for (number, row) in rows.iter().enumerate() {
        let y = TOP + ROW * number as f64;
        let _ = writeln!(out, "<text x=\"8\" y=\"{:.1}\">{}</text>", y + 14.0, row.arm.title());
    }
    bars(&mut out, rows, NAMES, "work lost, % of demand", &|row| row.lost_percent());
    bars(&mut out, rows, NAMES + BAR + GAP, "moves per VM and day", &|row| row.moves_a_day());
    out + "</svg>\n"
}

fn bars(out: &mut String, rows: &[Row], left: f64, title: &str, of: &dyn Fn(&Row) -> f64) {
    let most = rows.iter().map(of).fold(1e-9, f64::max);
    let _ = writeln!(out, "<text x=\"{left}\" y=\"36\">{title}</text>");
    for (number, row) in rows.iter().enumerate() {
        let (y, value) = (TOP + ROW * number as f64, of(row));
        let class = if row.arm.has_agents() { "agents" } else { "others" };
        let width = BAR * value / most;
        let _ = writeln!(
            out,
            "<rect class=\"{class}\" x=\"{left}\" y=\"{:.1}\" width=\"{width:.1}\" height=\"14\"/>\
             <text x=\"{:.1}\" y=\"{:.1}\">{value:.2}</text>",
            y + 3.0,
            left + width + 4.0,
            y + 14.0,
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arm::Arm;
    use crate::judge::Outcome;

    #[test]
    fn the_longest_bar_is_of_the_largest_value() {
        let row = |arm, lost_hours| {
            let one = Outcome {
                vms: 1.0,
                days: 1.0,
                demand_hours: 10.0,
                lost_hours,
                ..Outcome::default()
            };
            Row { arm, outcomes: vec![one] }
        };
        let svg = svg("A title", &[row(Arm::Nothing, 2.0), row(Arm::Score, 1.0)]);
        assert!(svg.contains("width=\"200.0\"") && svg.contains("width=\"100.0\""), "{svg}");
        assert!(svg.contains(">20.00<") && svg.ends_with("</svg>\n"));
    }
}
