//! Access rules: what a request needs for a response, by its path and its peer. Pure.

use std::net::IpAddr;

use http::StatusCode;
use strum::{EnumString, VariantNames};

/// Clients that may open the page and its snapshot.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, EnumString, VariantNames)]
#[strum(serialize_all = "lowercase")]
pub enum Page {
    /// Clients on this host or in the agent's own pod, such as `kubectl port-forward`.
    #[default]
    Loopback,
    /// Every client that may read the metrics.
    Anywhere,
    Off,
}

pub const METRICS: &str = "/metrics";
pub const PAGE: &str = "/";
pub const SNAPSHOT: &str = "/snapshot.json";
pub const LIVEZ: &str = "/livez";
pub const READYZ: &str = "/readyz";

/// The response to a request that is refused before its token is checked.
pub type Refusal = (StatusCode, &'static str);

const NOT_ENCRYPTED: Refusal =
    (StatusCode::BAD_REQUEST, "This is an HTTPS server: use https://.\n");
const NO_PROBE: Refusal = (StatusCode::NOT_FOUND, "Not found. Try /livez or /readyz.\n");
const PAGE_IS_OFF: Refusal = (StatusCode::FORBIDDEN, "The page is off: see --page.\n");
const PAGE_IS_LOCAL: Refusal = (
    StatusCode::FORBIDDEN,
    "The page is served to this host only. In a cluster, use kubectl port-forward to this pod, or \
     run the agent with --page=anywhere.\n",
);
/// For the page on loopback under another name than localhost: any website can let a name of its own
/// resolve to a loopback address.
const FOREIGN_HOST: Refusal = (
    StatusCode::FORBIDDEN,
    "On loopback, the page is served for localhost and IP addresses only, not for other names.\n",
);

/// Why every server refuses a path to this peer. `is_plain`: the server has TLS, which this connection does not use.
/// `only_probes`: it is one to the address for probes.
pub fn refusal(peer: IpAddr, path: &str, is_plain: bool, only_probes: bool) -> Option<Refusal> {
    if only_probes {
        return (![LIVEZ, READYZ].contains(&path)).then_some(NO_PROBE);
    }
    // Loopback traffic can't be intercepted, so the page through kubectl needs no certificate.
    // The metrics need it: a client that sends its token unencrypted here would do so
    // elsewhere, too.
    let plain_allowed = peer.to_canonical().is_loopback() && path != METRICS;
    (is_plain && !plain_allowed).then_some(NOT_ENCRYPTED)
}

impl Page {
    /// What a request of this peer for this path needs where clients are authenticated: nothing, or a token whose
    /// account may get the path, as a ClusterRole lists it under `nonResourceURLs`. `host` is its header `Host`.
    pub fn requirement(
        self,
        peer: IpAddr,
        path: &str,
        host: Option<&str>,
    ) -> Result<Option<&'static str>, Refusal> {
        let path = [METRICS, PAGE, SNAPSHOT].into_iter().find(|restricted| *restricted == path);
        match (path, self) {
            (None, _) => Ok(None),
            (Some(METRICS), _) => Ok(path),
            (Some(_), Page::Off) => Err(PAGE_IS_OFF),
            (Some(_), _) if peer.to_canonical().is_loopback() => match host {
                Some(host) if !is_own_name(host) => Err(FOREIGN_HOST),
                _ => Ok(None),
            },
            (Some(_), Page::Loopback) => Err(PAGE_IS_LOCAL),
            (Some(_), Page::Anywhere) => Ok(path),
        }
    }
}

/// Whether a header `Host` is an IP address or `localhost`, and not the name of a website.
fn is_own_name(host: &str) -> bool {
    let is_port = |port: &str| port.bytes().all(|byte| byte.is_ascii_digit());
    let name = match host.rsplit_once(':') {
        Some((name, port)) if is_port(port) => name,
        _ => host,
    };
    let address = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(name);
    let is_address = |text: &str| text.parse::<IpAddr>().is_ok();
    name.eq_ignore_ascii_case("localhost") || is_address(address) || is_address(host)
}

/// The token in the value of an `Authorization` header; `None` for other schemes.
pub fn bearer_token(header: &str) -> Option<&str> {
    let (scheme, token) = header.trim().split_once(' ')?;
    let token = token.trim();
    let is_token = !token.is_empty() && token.bytes().all(|byte| byte.is_ascii_graphic());
    (scheme.eq_ignore_ascii_case("bearer") && is_token).then_some(token)
}

#[cfg(test)]
mod tests {
    use super::*;

    type Requirement = Result<Option<&'static str>, Refusal>;

    const FREE: Requirement = Ok(None);
    const PATHS: [&str; 5] = ["/", "/snapshot.json", "/metrics", "/livez", "/elsewhere"];

    fn refused(refusal: Refusal) -> Requirement {
        Err(refusal)
    }

    /// What each of [`PATHS`] needs.
    fn needed(page: Page, address: &str) -> [Requirement; 5] {
        let address = address.parse().unwrap();
        PATHS.map(|path| page.requirement(address, path, Some("localhost:9942")))
    }

    #[test]
    fn loopback_addresses_are_recognised_in_all_forms() {
        let page = |address: &str| Page::Loopback.requirement(address.parse().unwrap(), PAGE, None);
        for local in ["127.0.0.1", "127.8.8.8", "::1", "::ffff:127.0.0.1"] {
            assert_eq!(page(local), FREE, "{local}");
        }
        for foreign in ["10.0.0.7", "::ffff:10.0.0.7", "fe80::1", "::", "0.0.0.0", "::7f00:1"] {
            assert_eq!(page(foreign), refused(PAGE_IS_LOCAL), "{foreign}");
        }
    }

    #[test]
    fn metrics_need_a_token_from_every_address_and_the_page_from_other_hosts() {
        let [metrics, page, snapshot] = [METRICS, PAGE, SNAPSHOT].map(|path| Ok(Some(path)));
        let (local, off) = (refused(PAGE_IS_LOCAL), refused(PAGE_IS_OFF));
        assert_eq!(needed(Page::Anywhere, "10.0.0.7"), [page, snapshot, metrics, FREE, FREE]);
        assert_eq!(needed(Page::Loopback, "10.0.0.7"), [local, local, metrics, FREE, FREE]);
        assert_eq!(needed(Page::Off, "::1"), [off, off, metrics, FREE, FREE]);
        for page in [Page::Anywhere, Page::Loopback] {
            assert_eq!(needed(page, "127.0.0.1"), [FREE, FREE, metrics, FREE, FREE]);
        }
    }

    #[test]
    fn with_tls_plain_http_serves_loopback_and_never_the_metrics() {
        let refused = |address: &str, is_plain| {
            let address = address.parse().unwrap();
            PATHS.map(|path| refusal(address, path, is_plain, false))
        };
        let plain = Some(NOT_ENCRYPTED);
        assert_eq!(refused("10.0.0.7", true), [plain; 5]);
        assert_eq!(refused("::1", true), [None, None, plain, None, None]);
        assert_eq!(refused("10.0.0.7", false), [None; 5]);
    }

    #[test]
    fn a_page_on_loopback_is_refused_under_a_foreign_name() {
        let loopback = "127.0.0.1".parse().unwrap();
        let needed = |path, host| Page::Loopback.requirement(loopback, path, host);
        for own in ["localhost", "LOCALHOST:9942", "127.0.0.1", "127.0.0.1:80", "[::1]:9942", "::1"]
        {
            assert_eq!(needed("/", Some(own)), FREE, "{own}");
        }
        for foreign in
            ["evil.example", "evil.example:9942", "localhost.evil.example", "", ":", "127.0.0.1.x"]
        {
            for path in ["/", "/snapshot.json"] {
                assert_eq!(needed(path, Some(foreign)), refused(FOREIGN_HOST), "{foreign}");
            }
            assert_eq!(needed(METRICS, Some(foreign)), Ok(Some(METRICS)), "any name");
        }
        assert_eq!(needed("/", None), FREE, "no browser");
    }

    #[test]
    fn the_address_for_probes_serves_nothing_else() {
        let refused = |path| refusal("10.0.0.7".parse().unwrap(), path, true, true);
        let none = Some(NO_PROBE);
        assert_eq!(PATHS.map(refused), [none, none, none, None, none]);
        assert_eq!(refused("/readyz"), None);
    }

    #[test]
    fn only_the_bearer_scheme_carries_a_token() {
        assert_eq!(bearer_token("Bearer a.b-c_d~/+="), Some("a.b-c_d~/+="));
        assert_eq!(bearer_token("bearer   x "), Some("x"));
        for none in ["", "Bearer", "Bearer ", "Basic dTpw", "Bearerx", "Bearer a b", "Bearer é"] {
            assert_eq!(bearer_token(none), None, "{none}");
        }
    }
}
