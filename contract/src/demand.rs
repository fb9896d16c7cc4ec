//! What a Node's VMs want, for programs that place or move VMs.

use std::collections::BTreeMap;
use std::fmt;

use super::annotations::{Annotations, ContractError, whole};
use super::keys::{Key, Prefix};

/// Most candidates on a Node.
pub const MOST_CANDIDATES: usize = 3;

/// The demand of a Node as its agent published it: averages over 30 min. Its date and basis are those
/// of [`NodePressure`](super::NodePressure).
#[derive(Debug, Clone, PartialEq)]
pub struct NodeDemand {
    /// Busy vCPUs that can be added before the level is `medium`.
    pub headroom: u32,
    /// CPUs that the VMs would use if they did not wait.
    pub vms: f64,
    /// CPUs that all else on the node uses.
    pub others: f64,
    /// CPUs' worth of time that the VMs wait for CPUs and for memory because of the node.
    pub waiting: f64,
    /// The VMs whose moves end most waiting, the best first; empty unless the node is contended.
    pub candidates: Vec<Candidate>,
}

/// A VM whose move would end waiting.
#[derive(Debug, Clone, PartialEq)]
pub struct Candidate {
    /// UID of its virt-launcher pod.
    pub uid: String,
    /// CPUs that it would use if it did not wait.
    pub demand: f64,
    /// CPUs' worth of waiting on its node that would end if it left.
    pub relief: f64,
    /// Memory in use or requested, which a migration copies, in bytes; `None` if unknown.
    pub memory: Option<u64>,
}

impl NodeDemand {
    /// Parses a Node's annotations; `None` if the agent published no demand, since it has too little
    /// history or is older than this contract.
    ///
    /// # Errors
    /// [`ContractError`] if an annotation is malformed, or headroom, demand or waiting is missing beside
    /// the others.
    pub fn from_annotations(
        prefix: &Prefix,
        annotations: &BTreeMap<String, String>,
    ) -> Result<Option<Self>, ContractError> {
        let Some(own) = Annotations::of(prefix, &Key::OF_DEMAND, annotations) else {
            return Ok(None);
        };
        let headroom = own.required(Key::Headroom, "a whole number", whole)?;
        let (vms, others) = own.required(Key::Demand, "vms=CPUS,others=CPUS", |text| {
            let [vms, others] = fields(text, ["vms", "others"])?;
            Some((cpus(vms?)?, cpus(others?)?))
        })?;
        let waiting = own.required(Key::Waiting, "CPUs", cpus)?;
        let expected = "up to three of uid=UID,demand=CPUS,relief=CPUS,memory=BYTES";
        let candidates = own.optional(Key::Candidates, expected, candidates)?.unwrap_or_default();
        Ok(Some(Self { headroom, vms, others, waiting, candidates }))
    }

    /// The annotations, each with its value; `None` where a Node must not have it.
    #[must_use]
    pub fn annotations(&self) -> [(Key, Option<String>); 4] {
        let candidates: Vec<String> =
            self.candidates.iter().take(MOST_CANDIDATES).map(Candidate::to_string).collect();
        // A sum of nothing is -0.0, whose sign admission policies deny.
        let cpus = |cpus: f64| format!("{:.2}", cpus + 0.0);
        let demand = format!("vms={},others={}", cpus(self.vms), cpus(self.others));
        [
            (Key::Headroom, Some(self.headroom.to_string())),
            (Key::Demand, Some(demand)),
            (Key::Waiting, Some(cpus(self.waiting))),
            (Key::Candidates, (!candidates.is_empty()).then(|| candidates.join(";"))),
        ]
    }

    /// The value of the label `headroom`: the largest of 0, 1, 2, 4, 8 and so on that is not above the
    /// headroom. Node affinity compares it with `Gt`.
    #[must_use]
    pub fn headroom_class(&self) -> u32 {
        self.headroom.checked_ilog2().map_or(0, |power| 1 << power)
    }
}

impl fmt::Display for Candidate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { uid, demand, relief, memory } = self;
        write!(f, "uid={uid},demand={demand:.2},relief={relief:.2}")?;
        memory.map_or(Ok(()), |bytes| write!(f, ",memory={bytes}"))
    }
}

fn candidates(text: &str) -> Option<Vec<Candidate>> {
    let listed: Option<Vec<Candidate>> =
        text.split(';').filter(|one| !one.is_empty()).map(candidate).collect();
    listed.filter(|listed| listed.len() <= MOST_CANDIDATES)
}

fn candidate(text: &str) -> Option<Candidate> {
    let [uid, demand, relief, memory] = fields(text, ["uid", "demand", "relief", "memory"])?;
    let is_uid = |uid: &&str| {
        (1..=63).contains(&uid.len())
            && uid.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
    };
    let uid = uid.filter(is_uid)?.to_owned();
    let memory = match memory {
        Some(bytes) => Some(whole(bytes)?),
        None => None,
    };
    Some(Candidate { uid, demand: cpus(demand?)?, relief: cpus(relief?)?, memory })
}

/// The values of `NAME=VALUE,…` by name; `None` with an unknown or repeated name.
fn fields<'a, const N: usize>(text: &'a str, names: [&str; N]) -> Option<[Option<&'a str>; N]> {
    let mut found = [None; N];
    for field in text.split(',') {
        let (name, value) = field.split_once('=')?;
        let at = names.iter().position(|known| *known == name)?;
        if found.get_mut(at)?.replace(value).is_some() {
            return None;
        }
    }
    Some(found)
}

/// A number of CPUs: digits with at most one point, as agents write it, and no exponent, sign, infinity
/// or NaN.
fn cpus(text: &str) -> Option<f64> {
    let is_plain = text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    text.parse().ok().filter(|_| is_plain && text.len() <= 12)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn demand() -> NodeDemand {
        let candidate = |uid: &str, memory| Candidate {
            uid: uid.to_owned(),
            demand: 1.5,
            relief: 0.75,
            memory,
        };
        NodeDemand {
            headroom: 3,
            vms: 5.25,
            others: 0.5,
            waiting: 1.25,
            candidates: vec![candidate("a-1", Some(4096)), candidate("b-2", None)],
        }
    }

    fn parsed(annotations: &[(Key, Option<String>)]) -> Result<Option<NodeDemand>, ContractError> {
        let prefix = Prefix::default();
        let present = annotations.iter().filter_map(|(key, value)| Some((key, value.clone()?)));
        let present = present.map(|(key, value)| (key.of(&prefix), value)).collect();
        NodeDemand::from_annotations(&prefix, &present)
    }

    #[test]
    fn what_is_written_is_read() {
        let annotations = demand().annotations();
        assert_eq!(parsed(&annotations), Ok(Some(demand())));
        let [_, (_, written), _, (_, candidates)] = annotations;
        assert_eq!(written.as_deref(), Some("vms=5.25,others=0.50"));
        let expected =
            "uid=a-1,demand=1.50,relief=0.75,memory=4096;uid=b-2,demand=1.50,relief=0.75";
        assert_eq!(candidates.as_deref(), Some(expected));
        let nothing = || [0.0_f64; 0].iter().sum();
        let empty = NodeDemand { vms: nothing(), waiting: nothing(), ..demand() }.annotations();
        assert_eq!(empty[1].1.as_deref(), Some("vms=0.00,others=0.50"));
        assert_eq!(empty[2].1.as_deref(), Some("0.00"));
        let calm = NodeDemand { candidates: vec![], ..demand() };
        assert_eq!(calm.annotations()[3], (Key::Candidates, None));
        assert_eq!(parsed(&calm.annotations()), Ok(Some(calm)));
        assert_eq!(parsed(&[]), Ok(None));
    }

    #[test]
    fn a_missing_or_malformed_annotation_is_an_error_that_names_it() {
        let with = |key: Key, value: Option<&str>| {
            let mut annotations = demand().annotations();
            annotations.iter_mut().find(|(found, _)| *found == key).unwrap().1 =
                value.map(str::to_owned);
            parsed(&annotations).unwrap_err().to_string()
        };
        assert!(with(Key::Waiting, None).contains("psi-agent.io/waiting is missing"));
        for (key, value) in [
            (Key::Candidates, "uid=a\u{1b}[2J,demand=1,relief=1"),
            (Key::Headroom, "-1"),
            (Key::Headroom, "+1"),
            (Key::Demand, "5.25"),
            (Key::Demand, "vms=1.00"),
            (Key::Demand, "vms=1.00,vms=1.00,others=0"),
            (Key::Waiting, "NaN"),
            (Key::Waiting, "1e9"),
            (Key::Candidates, "uid=a,demand=1"),
            (Key::Candidates, "uid=,demand=1,relief=1"),
            (Key::Candidates, &["uid=a,demand=1,relief=1"; 4].join(";")),
        ] {
            assert!(with(key, Some(value)).contains(&format!("{value:?}")), "{value}");
        }
    }

    #[test]
    fn a_class_is_a_power_of_two_or_zero() {
        let class = |headroom| NodeDemand { headroom, ..demand() }.headroom_class();
        assert_eq!([0, 1, 2, 3, 4, 7, 8, 100].map(class), [0, 1, 2, 2, 4, 4, 8, 64]);
    }

    proptest! {
        #[test]
        fn any_text_is_parsed_or_an_error(at in 0_usize..4, value: String) {
            let mut annotations = demand().annotations();
            annotations[at].1 = Some(value);
            let _ = parsed(&annotations);
        }
    }
}
