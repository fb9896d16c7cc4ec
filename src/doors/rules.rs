//! Which path is for whom. Pure: from where somebody comes, how, and for what, to what is asked of
//! them.

use std::net::IpAddr;

/// Who gets the page for people and the snapshot that it is made from.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Page {
    /// Whoever comes from this host, or from the agent's own pod: `kubectl port-forward` does.
    #[default]
    Loopback,
    /// Whoever may have the metrics.
    Anywhere,
    /// Nobody.
    Off,
}

/// A path that not everybody may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Door {
    /// The metrics.
    Metrics,
    /// The page.
    Page,
    /// What the page is made from.
    Snapshot,
}

impl Door {
    const ALL: [Door; 3] = [Door::Metrics, Door::Page, Door::Snapshot];

    fn at(path: &str) -> Option<Self> {
        Door::ALL.into_iter().find(|door| door.path() == path)
    }

    /// Its path, which is also what a right to it names.
    #[must_use]
    pub fn path(self) -> &'static str {
        match self {
            Door::Metrics => "/metrics",
            Door::Page => "/",
            Door::Snapshot => "/snapshot.json",
        }
    }
}

/// Where a connection comes from, and how.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Visit {
    /// Whether from this host, or this pod.
    pub is_local: bool,
    /// Whether by TLS.
    pub is_encrypted: bool,
}

impl Visit {
    /// A connection from this address. A socket that listens on IPv6 tells IPv4 as a part of it.
    #[must_use]
    pub fn from(peer: IpAddr, is_encrypted: bool) -> Self {
        Self { is_local: peer.to_canonical().is_loopback(), is_encrypted }
    }
}

/// What the agent was told to ask of its visitors.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Rules {
    /// It has a certificate.
    pub tls: bool,
    /// Who wants metrics shows a token.
    pub tokens: bool,
    /// Who gets the page.
    pub page: Page,
}

/// What is asked of a visitor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Admission {
    /// Nothing.
    Free,
    /// A token that may get this path.
    Token(Door),
    /// To go away.
    Refused(Refusal),
}

/// Why a visitor is turned away without being asked for anything.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// Plain HTTP where there is TLS.
    NotEncrypted,
    /// The page, from another host.
    PageIsLocal,
    /// The page, which is switched off.
    PageIsOff,
}

impl Rules {
    /// What is asked of who wants this path.
    #[must_use]
    pub fn admit(&self, visit: Visit, path: &str) -> Admission {
        let door = Door::at(path);
        // On loopback nobody listens in: a page through kubectl needs no certificate, but a token
        // must not become used to going in clear.
        let plain_will_do = visit.is_local && door != Some(Door::Metrics);
        if self.tls && !visit.is_encrypted && !plain_will_do {
            return Admission::Refused(Refusal::NotEncrypted);
        }
        match (door, self.page) {
            (None, _) => Admission::Free,
            (Some(Door::Metrics), _) => self.token(Door::Metrics),
            (Some(Door::Page | Door::Snapshot), Page::Off) => {
                Admission::Refused(Refusal::PageIsOff)
            }
            (Some(Door::Page | Door::Snapshot), _) if visit.is_local => Admission::Free,
            (Some(Door::Page | Door::Snapshot), Page::Loopback) => {
                Admission::Refused(Refusal::PageIsLocal)
            }
            (Some(door), Page::Anywhere) => self.token(door),
        }
    }

    fn token(&self, door: Door) -> Admission {
        if self.tokens { Admission::Token(door) } else { Admission::Free }
    }
}

/// The token in the value of an `Authorization` header; `None` for anything else.
#[must_use]
pub fn bearer_token(header: &str) -> Option<&str> {
    let (scheme, token) = header.trim().split_once(' ')?;
    let token = token.trim();
    let is_token = !token.is_empty() && token.bytes().all(|byte| byte.is_ascii_graphic());
    (scheme.eq_ignore_ascii_case("bearer") && is_token).then_some(token)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FREE: Admission = Admission::Free;
    const PATHS: [&str; 5] = ["/", "/snapshot.json", "/metrics", "/livez", "/elsewhere"];

    fn visit(address: &str, is_encrypted: bool) -> Visit {
        Visit::from(address.parse().unwrap(), is_encrypted)
    }

    fn refused(refusal: Refusal) -> Admission {
        Admission::Refused(refusal)
    }

    /// What is asked at each of [`PATHS`].
    fn asked(rules: Rules, address: &str, is_encrypted: bool) -> [Admission; 5] {
        PATHS.map(|path| rules.admit(visit(address, is_encrypted), path))
    }

    #[test]
    fn loopback_is_told_from_other_addresses_in_all_their_forms() {
        for local in ["127.0.0.1", "127.8.8.8", "::1", "::ffff:127.0.0.1"] {
            assert!(visit(local, false).is_local, "{local}");
        }
        for foreign in ["10.0.0.7", "::ffff:10.0.0.7", "fe80::1", "::", "0.0.0.0", "::7f00:1"] {
            assert!(!visit(foreign, false).is_local, "{foreign}");
        }
    }

    #[test]
    fn without_certificate_or_tokens_only_the_page_is_kept_from_others() {
        let rules = Rules::default();
        assert_eq!(asked(rules, "127.0.0.1", false), [FREE; 5]);
        let local = refused(Refusal::PageIsLocal);
        assert_eq!(asked(rules, "10.0.0.7", false), [local, local, FREE, FREE, FREE]);
        let anywhere = Rules { page: Page::Anywhere, ..rules };
        assert_eq!(asked(anywhere, "10.0.0.7", false), [FREE; 5]);
        let off = refused(Refusal::PageIsOff);
        let nowhere = Rules { page: Page::Off, ..rules };
        assert_eq!(asked(nowhere, "::1", false), [off, off, FREE, FREE, FREE]);
    }

    #[test]
    fn beside_tls_plain_http_is_for_loopback_and_never_for_metrics() {
        let rules = Rules { tls: true, tokens: true, page: Page::Anywhere };
        let plain = refused(Refusal::NotEncrypted);
        assert_eq!(asked(rules, "10.0.0.7", false), [plain; 5]);
        assert_eq!(asked(rules, "::1", false), [FREE, FREE, plain, FREE, FREE]);
    }

    #[test]
    fn metrics_need_a_token_from_everywhere_and_the_page_from_elsewhere() {
        let rules = Rules { tls: true, tokens: true, page: Page::Anywhere };
        let [metrics, page, snapshot] =
            [Door::Metrics, Door::Page, Door::Snapshot].map(Admission::Token);
        assert_eq!(asked(rules, "10.0.0.7", true), [page, snapshot, metrics, FREE, FREE]);
        assert_eq!(asked(rules, "127.0.0.1", true), [FREE, FREE, metrics, FREE, FREE]);
        let local = refused(Refusal::PageIsLocal);
        let closed = Rules { page: Page::Loopback, ..rules };
        assert_eq!(asked(closed, "10.0.0.7", true), [local, local, metrics, FREE, FREE]);
    }

    #[test]
    fn a_token_is_what_stands_behind_bearer() {
        assert_eq!(bearer_token("Bearer a.b-c_d~/+="), Some("a.b-c_d~/+="));
        assert_eq!(bearer_token("bearer   x "), Some("x"));
        for none in ["", "Bearer", "Bearer ", "Basic dTpw", "Bearerx", "Bearer a b", "Bearer é"] {
            assert_eq!(bearer_token(none), None, "{none}");
        }
    }
}
