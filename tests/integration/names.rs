//! Name for name: what is exported under a name of cAdvisor's or node_exporter's has exactly their
//! type, HELP and labels. The table was taken from their sources, not from the agent's catalogue;
//! the golden cases say what the agent exports.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use crate::support::exposition::{Family, families};

fn table() -> BTreeMap<String, Family> {
    let rows = include_str!("../cases/names.tsv").lines().filter(|row| !row.starts_with('#'));
    let families = rows.map(|row| {
        let columns: Vec<&str> = row.split('\t').collect();
        let [name, kind, labels, _source, help] = columns[..] else {
            panic!("five columns: {row}")
        };
        let labels = labels.split(',').filter(|&label| label != "-").map(str::to_owned).collect();
        (name.to_owned(), Family { help: help.to_owned(), kind: kind.to_owned(), labels })
    });
    families.collect()
}

#[test]
fn every_family_has_the_type_help_and_labels_of_whom_it_is_named_after() {
    let table = table();
    let mut seen = BTreeSet::new();
    let cases = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cases");
    for case in fs::read_dir(cases).unwrap().map(|entry| entry.unwrap().path()) {
        let Ok(text) = fs::read_to_string(case.join("expected.prom")) else { continue };
        for (name, family) in families(&text) {
            let expected = table.get(&name);
            assert_eq!(Some(&family), expected, "{name} in {}", case.display());
            seen.insert(name);
        }
    }
    let named: BTreeSet<String> = table.into_keys().collect();
    assert_eq!(seen, named, "each family of the table is exported by some case");
}
