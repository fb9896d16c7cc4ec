use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use serde_json::{Value, json};

use super::super::text::render;
use super::tests::{WIDE, frame, lines_of, vm};
use super::{Choice, Frame, Size, lines as frame_lines};

/// Presses these keys, one after another.
fn press(choice: &mut Choice, keys: &[KeyCode]) {
    for key in keys {
        assert!(!choice.press((*key).into()), "{key:?} quits");
    }
}

fn typed(text: &str) -> Vec<KeyCode> {
    text.chars().map(KeyCode::Char).collect()
}

#[test]
fn keys_sort_the_rows_and_the_header_marks_the_column() {
    let mut users = [vm("waits", 0.3), vm("uses", 0.1), vm("reclaims", 0.2)];
    users[1]["scored"]["usage"] = json!(3.5);
    users[2]["scored"]["waiting"]["memory"]["raw"] = json!(0.5);
    let seen = frame(&users);
    let mut choice = Choice::default();
    for (key, header, first) in [
        ('c', " >CONTENTION ", "shop/waits "),
        ('u', " >CPUS ", "shop/uses "),
        ('m', " >MEM-WAIT", "shop/reclaims "),
        ('r', " <MEM-WAIT", "shop/uses "),
        ('x', " <MEM-WAIT", "shop/uses "),
        ('c', " <CONTENTION ", "shop/uses "),
    ] {
        press(&mut choice, &[KeyCode::Char(key)]);
        let lines = lines_of(&seen, &mut choice, WIDE);
        assert!(lines[5].contains(header) && lines[6].starts_with(first), "{key}: {lines:#?}");
    }
}

#[test]
fn a_key_shows_the_meaning_of_the_columns_and_any_other_closes_it() {
    let mut choice = Choice::default();
    press(&mut choice, &typed("?"));
    let help = lines_of(&frame(&[vm("a", 0.1)]), &mut choice, Size { rows: 24, ..WIDE });
    assert!(help[5].starts_with("CONTENTION: share of its demand"), "{help:#?}");
    assert!(help.iter().any(|line| line.starts_with("Sort by: c CONTENTION, ")), "{help:#?}");
    for key in ["?", "x"] {
        press(&mut choice, &typed(key));
        assert!(!choice.help);
        choice.help = true;
    }
}

#[test]
fn the_rows_scroll_and_those_out_of_sight_are_counted() {
    let many: Vec<Value> = (0..20).map(|number| vm(&format!("v{number:02}"), 0.1)).collect();
    let seen = frame(&many);
    let mut choice = Choice::default();
    for (keys, first, hidden) in [
        (&[][..], "v00", "17 more"),
        (&[KeyCode::Down, KeyCode::Char('j')], "v02", "2 above, 15 more"),
        (&[KeyCode::PageDown], "v05", "5 above, 12 more"),
        (&[KeyCode::Up, KeyCode::PageUp], "v01", "1 above, 16 more"),
        (&[KeyCode::End], "v17", "17 above"),
        (&[KeyCode::Up], "v16", "16 above, 1 more"),
        (&[KeyCode::Home, KeyCode::Up], "v00", "17 more"),
    ] {
        press(&mut choice, keys);
        let lines = lines_of(&seen, &mut choice, WIDE);
        assert!(lines[6].starts_with(&format!("shop/{first} ")), "{keys:?}: {lines:#?}");
        assert_eq!(lines[9..], [hidden], "{keys:?}");
    }
    // Fewer rows than before are shown from the first.
    press(&mut choice, &[KeyCode::End]);
    assert_eq!(lines_of(&frame(&many[..2]), &mut choice, WIDE).len(), 8);
    assert_eq!(choice.above, 0);
}

#[test]
fn a_filter_selects_rows_by_their_names() {
    let seen = frame(&[vm("web-1", 0.1), vm("WEB-2", 0.2), vm("db", 0.3)]);
    let mut choice = Choice::default();
    let mut shown = |keys: &[KeyCode]| {
        press(&mut choice, keys);
        let lines = lines_of(&seen, &mut choice, WIDE);
        lines[5..]
            .iter()
            .map(|line| line.split("  ").next().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    // A letter that sorts, and the one that quits, are text while the filter is typed.
    assert_eq!(
        shown(&typed("/weqc")),
        ["VM /weqc_", "No name of 3 contains this text: Esc shows all."]
    );
    assert_eq!(shown(&[KeyCode::Backspace; 2]), ["VM /we_", "shop/WEB-2", "shop/web-1"]);
    assert_eq!(shown(&[KeyCode::Enter]), ["VM /we", "shop/WEB-2", "shop/web-1"]);
    assert_eq!(shown(&typed("r")), ["VM /we", "shop/web-1", "shop/WEB-2"]);
    assert_eq!(shown(&[KeyCode::Esc]).len(), 4);
    assert_eq!(shown(&typed("/\u{1b}"))[0], r"VM /\u{1b}_");
}

#[test]
fn escape_q_and_ctrl_c_quit() {
    for key in [KeyCode::Esc, KeyCode::Char('q')] {
        assert!(Choice::default().press(key.into()), "{key:?}");
    }
    let mut typing = Choice { is_typing: true, help: true, ..Choice::default() };
    assert!(typing.press(KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL)));
}

#[test]
fn scores_and_contention_have_the_colours_of_their_levels() {
    let mut seen = frame(&[vm("starved", 0.3), vm("waits", 0.1), vm("idle", 0.0)]);
    let coloured = |seen: &Frame| {
        let lines = frame_lines(seen, &mut Choice::default(), WIDE);
        lines.iter().map(|line| render(line, true)).collect::<Vec<_>>()
    };
    assert!(!coloured(&seen).concat().contains("\u{1b}[38"), "an agent without levels");
    seen.snapshot.levels = serde_json::from_value(json!({"medium": 0.1, "high": 0.3})).unwrap();
    crossterm::style::force_color_output(true);
    let [green, yellow, red] =
        [2, 3, 1].map(|color| move |text: &str| format!("\u{1b}[38;5;{color}m{text}\u{1b}["));
    let lines = coloured(&seen);
    assert!(lines[1].starts_with(&yellow("node: score 12")), "{lines:#?}");
    for (line, cell) in
        lines[6..].iter().zip([red("         30%"), yellow("         10%"), green("          0%")])
    {
        assert!(line.contains(&cell), "{lines:#?}");
    }
}
