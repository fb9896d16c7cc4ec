use std::net::Ipv4Addr;

use super::*;
use crate::clock;
use crate::serve::authorization::{METRICS, PAGE};

const PROMETHEUS: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));

fn key(number: usize) -> TokenKey {
    let mut hash = [0; 32];
    hash[..8].copy_from_slice(&number.to_le_bytes());
    (hash, METRICS)
}

/// The address of an unknown client.
fn other(number: usize) -> IpAddr {
    let [.., a, b] = number.to_be_bytes();
    Ipv4Addr::new(10, 1, a, b).into()
}

fn seconds(count: u64) -> Duration {
    Duration::from_secs(count)
}

/// Sends a token for which a review has this decision.
fn send(
    cache: &mut TokenCache,
    token: usize,
    address: IpAddr,
    decision: Decision,
    now: Instant,
) -> Decision {
    cache.look_up(&key(token), address, now).unwrap_or_else(|| {
        cache.store(key(token), address, decision, now);
        decision
    })
}

/// Uses up the limit of all unknown addresses together.
fn exhaust(cache: &mut TokenCache, now: Instant) {
    while take(&mut cache.unknown, ALL_UNKNOWN, now) {}
}

#[test]
fn a_decision_holds_for_its_time_and_no_longer() {
    let start = clock::now().at;
    for (decision, holds_for) in [
        (Decision::Allowed, 60),
        (Decision::Forbidden, 10),
        (Decision::Unauthenticated, 10),
        (Decision::Unanswered, 2),
    ] {
        let mut cache = TokenCache::default();
        assert_eq!(send(&mut cache, 1, PROMETHEUS, decision, start), decision);
        let last = start + seconds(holds_for) - Duration::from_millis(1);
        assert_eq!(cache.look_up(&key(1), PROMETHEUS, last), Some(decision));
        let after = start + seconds(holds_for);
        assert_eq!(cache.look_up(&key(1), PROMETHEUS, after), None);
    }
}

#[test]
fn a_decision_is_about_one_token_and_one_path() {
    let now = clock::now().at;
    let mut cache = TokenCache::default();
    send(&mut cache, 1, PROMETHEUS, Decision::Allowed, now);
    assert_eq!(cache.look_up(&key(2), PROMETHEUS, now), None);
    let page = (key(1).0, PAGE);
    assert_eq!(cache.look_up(&page, PROMETHEUS, now), None);
}

#[test]
fn unknown_tokens_cause_a_bounded_number_of_reviews() {
    let start = clock::now().at;
    for (addresses, expected) in [(1, 5..=6), (10, 28..=42), (10_000, 45..=70)] {
        let mut cache = TokenCache::default();
        let mut reviews = 0;
        // A thousand tokens a second for a minute.
        for number in 0..60_000 {
            let now = start + Duration::from_millis(number);
            let number = usize::try_from(number).unwrap();
            let address = other(number % addresses);
            if cache.look_up(&key(number), address, now).is_none() {
                reviews += 1;
                cache.store(key(number), address, Decision::Unauthenticated, now);
            }
        }
        assert!(expected.contains(&reviews), "{reviews} from {addresses} addresses");
        assert!(cache.tokens.len() <= MAX_TOKENS && cache.senders.len() <= MAX_SENDERS);
    }
}

#[test]
fn a_rotated_token_is_reviewed_while_others_send_garbage() {
    let start = clock::now().at;
    let mut cache = TokenCache::default();
    send(&mut cache, 0, PROMETHEUS, Decision::Allowed, start);
    for second in 1..600 {
        let now = start + seconds(second);
        for address in 0..20 {
            let garbage = usize::try_from(second).unwrap() * 20 + address;
            send(&mut cache, garbage, other(address), Decision::Unauthenticated, now);
        }
    }
    let now = start + seconds(600);
    exhaust(&mut cache, now);
    assert_eq!(send(&mut cache, 1, PROMETHEUS, Decision::Allowed, now), Decision::Allowed);
}

#[test]
fn one_address_that_sends_garbage_leaves_reviews_for_new_addresses() {
    let start = clock::now().at;
    let mut cache = TokenCache::default();
    for second in 0..60 {
        let garbage = 100 + usize::try_from(second).unwrap();
        let now = start + seconds(second);
        send(&mut cache, garbage, other(0), Decision::Unauthenticated, now);
    }
    let now = start + seconds(60);
    assert_eq!(send(&mut cache, 1, PROMETHEUS, Decision::Allowed, now), Decision::Allowed);
}

#[test]
fn ten_addresses_that_send_garbage_lock_no_new_client_out() {
    let start = clock::now().at;
    let mut cache = TokenCache::default();
    // A hundred tokens a second, and every other second a new client with a good token.
    for number in 0..6_000 {
        let now = start + Duration::from_millis(number * 10);
        let number = usize::try_from(number).unwrap();
        let garbage = 1_000 + number;
        send(&mut cache, garbage, other(number % 10), Decision::Unauthenticated, now);
        if number >= 3_000 && number % 200 == 0 {
            let decision = send(&mut cache, number, other(number), Decision::Allowed, now);
            assert_eq!(decision, Decision::Allowed, "{number}");
        }
    }
}

#[test]
fn a_known_address_can_not_cause_reviews_without_end() {
    let now = clock::now().at;
    let mut cache = TokenCache::default();
    send(&mut cache, 0, PROMETHEUS, Decision::Allowed, now);
    // Also while the API server has not answered any of them yet.
    let reviews = (1..100).filter(|&number| cache.look_up(&key(number), PROMETHEUS, now).is_none());
    assert_eq!(reviews.count(), 3);
}

#[test]
fn a_good_token_is_reviewed_again_however_many_unknown_ones_there_are() {
    let start = clock::now().at;
    let mut cache = TokenCache::default();
    send(&mut cache, 0, PROMETHEUS, Decision::Allowed, start);
    let mut now = start;
    for number in 1..3_000 {
        now += seconds(1);
        send(&mut cache, number, PROMETHEUS, Decision::Unauthenticated, now);
    }
    exhaust(&mut cache, now);
    let decision = send(&mut cache, 0, PROMETHEUS, Decision::Unanswered, now);
    assert_eq!(decision, Decision::Unanswered);
    let later = now + UNANSWERED_FOR;
    assert_eq!(cache.look_up(&key(0), PROMETHEUS, later), None);
    // After a refusal, it is an unknown token.
    cache.store(key(0), PROMETHEUS, Decision::Forbidden, later);
    let later = later + REFUSED_FOR;
    exhaust(&mut cache, later);
    let decided = Some(Decision::NotAsked);
    assert_eq!(cache.look_up(&key(0), PROMETHEUS, later), decided);
}

#[test]
fn a_token_and_its_address_are_unknown_again_after_an_hour() {
    let start = clock::now().at;
    let mut cache = TokenCache::default();
    send(&mut cache, 0, PROMETHEUS, Decision::Allowed, start);
    let later = start + KNOWN_FOR;
    exhaust(&mut cache, later);
    for token in [0, 1] {
        let decided = Some(Decision::NotAsked);
        assert_eq!(cache.look_up(&key(token), PROMETHEUS, later), decided);
    }
}
