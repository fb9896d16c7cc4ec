use super::*;
use jiff::SignedDuration;
use proptest::prelude::*;

pub(in crate::bridge) const REACH: Reach =
    Reach { window: Duration::from_secs(600), stale_after: Duration::from_secs(600) };
const BASIS: Basis = Basis::Psi(2);

pub(in crate::bridge) fn at(seconds: i64) -> Timestamp {
    Timestamp::UNIX_EPOCH + SignedDuration::from_secs(1_000_000 + seconds)
}

fn value(score: u8, seconds: i64) -> NodePressure {
    let (cpu, observed_at) = (Some(score), at(seconds));
    NodePressure { score, cpu, memory: None, io: None, observed_at, basis: BASIS }
}

/// A window with these values, which arrived when they were observed.
fn window(values: &[(u8, i64)]) -> Window {
    let mut window = Window::default();
    for &(score, seconds) in values {
        window.change(Some(value(score, seconds)), at(seconds), REACH);
    }
    window
}

fn mean(window: &Window, seconds: i64) -> Option<f64> {
    Some(window.slow(at(seconds), REACH, BASIS)?.score.mean)
}

#[test]
fn a_value_counts_for_as_long_as_it_held() {
    // 20 for 450 s of the window, 60 for 150 s.
    let window = window(&[(20, 0), (60, 450)]);
    let slow = window.slow(at(600), REACH, BASIS).unwrap();
    assert_eq!(slow.score.mean, 30.0);
    assert_eq!(slow.score.deviation, 17.3205);
    assert_eq!(slow.cpu, Some(slow.score));
    assert_eq!(slow.memory, None, "what could not be read is absent");
    // A minute later a minute of 20 has left the window, and 60 held for one more.
    assert_eq!(mean(&window, 660), Some(34.0));
}

#[test]
fn half_of_the_window_must_be_known() {
    let window = window(&[(40, 0)]);
    assert_eq!(mean(&window, 299), None);
    assert_eq!(mean(&window, 300), Some(40.0));
}

#[test]
fn a_value_that_arrives_late_holds_since_its_date() {
    let mut window = Window::default();
    window.change(Some(value(40, 0)), at(300), REACH);
    assert_eq!(mean(&window, 300), Some(40.0));
}

#[test]
fn a_value_that_is_not_renewed_holds_until_it_is_stale() {
    let window = window(&[(40, 0)]);
    // At 900 s the value has been stale for 300 of the 600 s that the window goes back.
    assert_eq!(mean(&window, 900), Some(40.0));
    assert_eq!(mean(&window, 901), None);
}

#[test]
fn an_unusable_value_ends_the_one_before() {
    let mut window = window(&[(40, 0)]);
    window.change(None, at(400), REACH);
    assert_eq!(mean(&window, 500), Some(40.0));
    window.change(Some(value(80, 600)), at(600), REACH);
    // 40 held from 300 to 400 within the window, 80 from 600 to 900; nothing is known between.
    assert_eq!(mean(&window, 900), Some(70.0));
}

#[test]
fn values_of_another_basis_are_not_known() {
    let mut window = window(&[(40, 0)]);
    window.change(Some(NodePressure { basis: Basis::Psi(8), ..value(80, 200) }), at(200), REACH);
    assert_eq!(mean(&window, 600), None);
    assert_eq!(window.slow(at(600), REACH, Basis::Psi(8)).unwrap().score.mean, 80.0);
}

#[test]
fn a_date_before_the_last_or_after_now_takes_away_no_more_than_its_own_time() {
    let mut window = window(&[(40, 0), (60, 300)]);
    // The node's clock was set back. The values before 300 s stay as they were.
    window.change(Some(value(20, 100)), at(400), REACH);
    assert_eq!(mean(&window, 600), Some(30.0));
    // Its clock is a little ahead: the value counts from its arrival.
    window.change(Some(value(80, 620)), at(600), REACH);
    assert_eq!(mean(&window, 600), Some(30.0));
}

#[test]
fn changes_are_dropped_when_they_have_left_the_window() {
    let mut window = Window::default();
    for seconds in 0..5_000 {
        window.change(Some(value(40, seconds)), at(seconds), REACH);
    }
    assert_eq!(window.0.len(), MOST_CHANGES);
    let mut window = Window::default();
    for seconds in (0..6_000).step_by(60) {
        window.change(Some(value(40, seconds)), at(seconds), REACH);
    }
    assert_eq!(window.0.len(), 11);
}

/// Any sequence of changes: a score or none, its date relative to its arrival, and the time since
/// the change before, in seconds.
fn any_changes() -> impl Strategy<Value = Vec<(Option<u8>, i64, i64)>> {
    let change = (proptest::option::of(0_u8..=100), -900_i64..900, -100_i64..400);
    proptest::collection::vec(change, 0..40)
}

fn window_of(changes: &[(Option<u8>, i64, i64)]) -> (Window, i64) {
    let (mut window, mut now) = (Window::default(), 0);
    for &(score, date, passed) in changes {
        // The bridge's own clock may go back.
        now += passed;
        window.change(score.map(|score| value(score, now + date)), at(now), REACH);
    }
    (window, now)
}

proptest! {
    #[test]
    fn averages_lie_between_the_values(changes in any_changes(), later in 0_i64..1_000) {
        let (window, now) = window_of(&changes);
        if let Some(slow) = window.slow(at(now + later), REACH, BASIS) {
            let scores = || changes.iter().filter_map(|(score, ..)| *score).map(f64::from);
            let (least, most) = (scores().fold(100.0, f64::min), scores().fold(0.0, f64::max));
            prop_assert!((least..=most).contains(&slow.score.mean), "{slow:?}");
            prop_assert!((0.0..=50.0).contains(&slow.score.deviation), "{slow:?}");
        }
    }

    #[test]
    fn no_more_is_known_than_the_window_is_long(changes in any_changes(), later in 0_i64..1_000) {
        let (window, now) = window_of(&changes);
        let spans = window.spans(at(now + later), REACH, BASIS);
        let known_s: f64 = spans.map(|(span_s, _)| span_s).sum();
        prop_assert!(known_s <= REACH.window.as_secs_f64() + 1e-6, "{known_s}");
    }

    #[test]
    fn a_repeated_value_changes_nothing(
        scores in proptest::collection::vec((0_u8..=100, 1_i64..200), 1..20),
        again in 0_usize..20,
    ) {
        let mut seconds = 0;
        let mut values: Vec<(u8, i64)> = Vec::new();
        for (score, passed) in scores {
            seconds += passed;
            values.push((score, seconds));
        }
        let once = window(&values);
        let mut twice = Window::default();
        for (number, &(score, date)) in values.iter().enumerate() {
            twice.change(Some(value(score, date)), at(date), REACH);
            if number == again {
                twice.change(Some(value(score, date)), at(date), REACH);
            }
        }
        let now = at(seconds + 100);
        prop_assert_eq!(once.slow(now, REACH, BASIS), twice.slow(now, REACH, BASIS));
    }

    #[test]
    fn one_value_is_its_own_average(score in 0_u8..=100, parts in proptest::collection::vec(1_i64..120, 1..20)) {
        // For any parts of the window, and any rounding of their sum.
        let mut window = Window::default();
        let mut now = 0;
        for part in parts.iter().chain([&300]) {
            window.change(Some(value(score, now)), at(now), REACH);
            now += part;
        }
        prop_assert_eq!(mean(&window, now), Some(f64::from(score)));
    }
}
